package space_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/space"
)

// If Progress is equal at two times, the same periods have begun, and the same periods are expected.
func TestProgressIdentifiesPeriods(t *testing.T) {
	s := &space.Space{Dimensions: []space.Dimension{
		{Name: "hour", Kind: space.Hourly, Start: "2025-03-29", End: "2025-03-31", Timezone: "Europe/Paris", ReadyAfterSec: 600},
		{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}},
		{Name: "date", Kind: space.Daily, Start: "2025-03-29", Timezone: "Europe/Paris"},
	}}
	type seen struct{ begun, expected int }
	known := map[string]seen{}
	from := time.Date(2025, 3, 28, 23, 0, 0, 0, time.UTC) // midnight in Paris
	for minute := range 72 * 60 {
		c := space.Calendar{Now: from.Add(time.Duration(minute) * time.Minute), Zone: calendar.Zone}
		begun, err := c.Declared(s, space.MaxListed)
		require.NoError(t, err)
		expected, err := c.Expected(s, space.MaxListed)
		require.NoError(t, err)
		got, progress := seen{len(begun), len(expected)}, c.Progress(s)
		if _, has := known[progress]; !has {
			known[progress] = got
		}
		require.Equal(t, known[progress], got, c.Now)
	}
	require.Greater(t, len(known), 72)
	require.Empty(t, space.Calendar{}.Progress(nil))
}
