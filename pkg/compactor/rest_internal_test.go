package compactor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sleeps is a clock that notes for how long it was asked to wait.
type sleeps []time.Duration

func (s *sleeps) Now() time.Time { return time.Unix(0, 0) }

func (s *sleeps) Sleep(ctx context.Context, d time.Duration) error {
	*s = append(*s, d)
	return ctx.Err()
}

func TestEntriesGatherForAsLongAsEncodingTook(t *testing.T) {
	var slept sleeps
	c := &Compactor{Config: Config{Clock: &slept}}
	for _, took := range []time.Duration{0, 3 * time.Millisecond, 0, time.Minute} {
		c.encoding = took
		require.NoError(t, c.rest(t.Context()))
	}
	require.Equal(t, sleeps{3 * time.Millisecond, maxRest}, slept, "not at all after a small batch, and never for long")
}
