package space_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/space"
)

func TestDeadlinesFollowPeriods(t *testing.T) {
	c := space.Calendar{Zone: calendar.Zone}
	noon := func(_, end time.Time) time.Time { return end.Add(12 * time.Hour) }
	day := space.Dimension{Name: "date", Kind: space.Daily, Start: "2026-01-01", End: "2026-01-05"}
	d, err := c.Deadlines(&day, noon)
	require.NoError(t, err)
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		require.NoError(t, err)
		return parsed
	}
	key, due, ok := d.First(at("2026-01-03T12:00:00Z"))
	require.True(t, ok)
	require.Equal(t, "2026-01-03", key, "the deadline of the day before has just passed")
	require.Equal(t, at("2026-01-04T12:00:00Z"), due)
	key, _, ok = d.First(at("2020-01-01T00:00:00Z"))
	require.True(t, ok)
	require.Equal(t, "2026-01-01", key)
	next, due, ok, err := d.Next("2026-01-03")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "2026-01-04", next)
	require.Equal(t, at("2026-01-05T12:00:00Z"), due)
	_, _, ok, err = d.Next("2026-01-05")
	require.NoError(t, err)
	require.False(t, ok, "the partitions have ended")
	_, _, ok = d.First(at("2027-01-01T00:00:00Z"))
	require.False(t, ok)
	_, _, _, err = d.Next("x")
	require.Error(t, err)
}

// If clocks repeat an hour, both hours are periods, and each has a deadline of its own.
func TestDeadlinesCoverRepeatedHours(t *testing.T) {
	c := space.Calendar{Zone: calendar.Zone}
	hours := space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2026-01-01", Timezone: "Europe/Paris"}
	d, err := c.Deadlines(&hours, func(_, end time.Time) time.Time { return end.Add(time.Minute) })
	require.NoError(t, err)
	key, due, ok := d.First(time.Date(2026, 10, 24, 23, 30, 0, 0, time.UTC))
	seen := map[string]bool{}
	for range 4 {
		require.True(t, ok)
		require.False(t, seen[key], key)
		seen[key] = true
		before := due
		key, due, ok, err = d.Next(key)
		require.NoError(t, err)
		require.Equal(t, time.Hour, due.Sub(before))
	}
	require.Contains(t, seen, "2026-10-25T02:00+02:00")
	require.Contains(t, seen, "2026-10-25T02:00+01:00")
}
