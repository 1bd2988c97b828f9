package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
)

// After the clock was an hour ahead and was set back, heartbeats must be recorded at once. If they were recorded only
// after an hour, running tasks would exceed their heartbeat timeout.
func TestHeartbeatsAreRecordedAfterClockIsSetBack(t *testing.T) {
	h := newHeartbeats()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	require.True(t, h.due("a", time.Minute, now.Add(time.Hour)))
	require.True(t, h.due("a", time.Minute, now))
	require.False(t, h.due("a", time.Minute, now.Add(time.Second)))
}

// Actions that were executed while the clock was ahead can be executed again after it was set back.
func TestActionsRepeatAfterClockIsSetBack(t *testing.T) {
	f := newInFlight()
	now := event.At(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	require.True(t, f.begin("executed", now.Add(time.Hour)))
	f.done("executed", now.Add(time.Hour))
	require.True(t, f.begin("busy", now.Add(time.Hour)))
	require.True(t, f.begin("executed", now))
	require.False(t, f.begin("busy", now), "it still executes")
}
