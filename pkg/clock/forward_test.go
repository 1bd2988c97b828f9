package clock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// set is a clock whose time a test sets.
type set struct{ now time.Time }

func (s *set) Now() time.Time { return s.now }

func (s *set) Sleep(ctx context.Context, d time.Duration) error {
	s.now = s.now.Add(d)
	return ctx.Err()
}

func TestForwardContinuesWhenClockIsSetBack(t *testing.T) {
	right := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	machine := &set{right}
	f := clock.NewForward(machine)
	require.Equal(t, right, f.Now())

	machine.now = right.Add(-time.Minute)
	require.Equal(t, right.Add(-time.Minute), f.Now(), "a small step back is not corrected")

	machine.now = right.Add(2 * time.Hour)
	require.Equal(t, right.Add(2*time.Hour), f.Now())
	machine.now = right.Add(time.Minute)
	require.Equal(t, right.Add(2*time.Hour), f.Now(), "the time does not go back")
	require.NoError(t, f.Sleep(t.Context(), time.Minute))
	require.Equal(t, right.Add(2*time.Hour+time.Minute), f.Now(), "the clock continues from there")
}

func TestFollowContinuesFromRecordedTime(t *testing.T) {
	right := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	machine := &set{right}
	f := clock.NewForward(machine)
	require.Zero(t, f.Follow(time.Time{}))
	require.Zero(t, f.Follow(right.Add(-time.Hour)))
	require.Zero(t, f.Follow(right.Add(4*time.Minute)), "a few minutes need no correction")
	require.Equal(t, right, f.Now())
	const twoYears = 2 * 365 * 24 * time.Hour
	require.Equal(t, twoYears, f.Follow(right.Add(twoYears)))
	machine.now = right.Add(time.Second)
	require.Equal(t, right.Add(twoYears+time.Second), f.Now())
}
