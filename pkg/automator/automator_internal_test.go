package automator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// In an earlier build, new work waited for up to 30 seconds until work that had failed was repeated.
func TestPauseEndsWhenNewWorkArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &Automator{cfg: Config{Clock: clock.System{}}, wake: make(chan struct{}, 1)}
		for _, c := range []struct {
			nudge, failed bool
			want          time.Duration
		}{
			{nudge: true, want: 0},
			{nudge: true, failed: true, want: minWait},
			{want: maxWait},
			{failed: true, want: maxWait},
		} {
			if c.nudge {
				a.Nudge()
			}
			began := clock.System{}.Now()
			nudged, err := a.pause(t.Context(), maxWait, c.failed)
			require.NoError(t, err)
			require.Equal(t, c.nudge, nudged)
			require.Equal(t, c.want, clock.System{}.Now().Sub(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := a.pause(ctx, maxWait, false)
		require.ErrorIs(t, err, context.Canceled)
	})
}
