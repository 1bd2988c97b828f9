package compactor_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
)

// busy is a clock that advances with each call of Now and records how long the compactor paused.
type busy struct {
	*steppedClock
	step   time.Duration
	paused atomic.Int64
}

func (c *busy) Now() time.Time {
	c.pass(c.step)
	return c.steppedClock.Now()
}

func (c *busy) Sleep(ctx context.Context, d time.Duration) error {
	if d > 50*time.Millisecond { // a wait for the next maintenance, not a pause
		<-ctx.Done()
		return ctx.Err()
	}
	c.paused.Store(int64(d))
	return c.steppedClock.Sleep(ctx, d)
}

func TestRunPausesForTheEncodingTime(t *testing.T) {
	for name, row := range map[string]struct {
		options compactor.Options
		step    time.Duration
		pauses  bool
	}{
		"files":                 {files, time.Microsecond, true},
		"files that take long":  {files, time.Minute, true}, // the pause is at most 50 ms
		"rows in the manifest":  {compactor.Options{}, time.Microsecond, false},
		"encoding took no time": {files, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			clock := &busy{steppedClock: w.clock, step: row.step}
			c, err := compactor.Open(t.Context(), compactor.Config{
				Handle:  domain.Open(domain.Handle{Domain: foldtest.Domain, Store: w.store(), Manifests: w.manifests(), Codec: codec, IDs: w.ids, Clock: clock}),
				Writer:  "one",
				Options: row.options,
			})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			for range 2 { // the second batch begins after the pause that follows the first
				_, entry := w.trigger(foldtest.Task("a"))
				_, err := c.Compact(ctx, compactor.Request{Entries: []compactor.Entry{entry}})
				require.NoError(t, err)
			}
			require.Equal(t, row.pauses, clock.paused.Load() > 0)
			cancel()
			require.NoError(t, <-ended)
		})
	}
}
