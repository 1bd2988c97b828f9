package calendar_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
)

func compile(t *testing.T, s calendar.Spec) *calendar.Schedule {
	t.Helper()
	c, err := s.Compile()
	require.NoError(t, err)
	return c
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	when, err := time.Parse("2006-01-02T15:04Z07:00", text)
	require.NoError(t, err)
	return when.UTC()
}

// following lists the next n ticks after an instant, in UTC.
func following(s *calendar.Schedule, after time.Time, n int) []string {
	var list []string
	for range n {
		next, ok := s.Next(after)
		if !ok {
			return append(list, "end")
		}
		list = append(list, next.Format("2006-01-02T15:04Z07:00"))
		after = next
	}
	return list
}

func TestTicksFollowPolicies(t *testing.T) {
	for _, test := range []struct {
		spec calendar.Spec
		from string
		want string
	}{
		{calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris"}, "2025-03-29T02:00Z", "2025-03-30T01:00Z 2025-03-31T00:30Z"},
		{calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris", DST: calendar.DST{Gap: "skip"}}, "2025-03-29T02:00Z", "2025-03-31T00:30Z"},
		{calendar.Spec{Cron: "0,15,30,45 2 * * *", Timezone: "Europe/Paris"}, "2025-03-29T02:00Z", "2025-03-30T01:00Z 2025-03-31T00:00Z"},
		{calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris"}, "2025-10-25T02:00Z", "2025-10-26T00:30Z 2025-10-27T01:30Z"},
		{calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris", DST: calendar.DST{Overlap: "last"}}, "2025-10-25T02:00Z", "2025-10-26T01:30Z 2025-10-27T01:30Z"},
		{calendar.Spec{Cron: "30 2 * * *", Timezone: "Europe/Paris", DST: calendar.DST{Overlap: "both"}}, "2025-10-25T02:00Z", "2025-10-26T00:30Z 2025-10-26T01:30Z 2025-10-27T01:30Z"},
		{calendar.Spec{Cron: "30 * * * *", Timezone: "Europe/Paris"}, "2025-03-30T00:00Z", "2025-03-30T00:30Z 2025-03-30T01:30Z"},
		{calendar.Spec{Cron: "30 * * * *", Timezone: "Europe/Paris"}, "2025-10-26T00:00Z", "2025-10-26T00:30Z 2025-10-26T01:30Z 2025-10-26T02:30Z"},
		{calendar.Spec{Cron: "0 12 * * *", Timezone: "Pacific/Apia"}, "2011-12-29T12:00Z", "2011-12-29T22:00Z 2011-12-30T10:00Z 2011-12-30T22:00Z"},
		{calendar.Spec{EverySec: 420, Start: at(t, "2025-01-01T00:00Z"), End: at(t, "2025-01-01T00:20Z")}, "2024-01-01T00:00Z", "2025-01-01T00:00Z 2025-01-01T00:07Z 2025-01-01T00:14Z end"},
	} {
		want := strings.Fields(test.want)
		require.Equal(t, want, following(compile(t, test.spec), at(t, test.from), len(want)), test.spec)
	}
}

func TestZoneVersionIsThatOfData(t *testing.T) {
	require.Equal(t, calendar.ZoneVersion, calendar.PackedVersion())
	require.Greater(t, len(calendar.Zones()), 590)
	for _, name := range calendar.Zones() {
		zone, err := calendar.Zone(name)
		require.NoError(t, err)
		require.Equal(t, name, zone.String())
	}
}

func TestWholeHoursKnowsZonesOfHalfHours(t *testing.T) {
	for zone, want := range map[string]bool{
		"UTC": true, "Europe/Paris": true, "Asia/Kolkata": false, "Australia/Lord_Howe": false, "Europe/Nowhere": false,
	} {
		require.Equal(t, want, calendar.WholeHours(zone), zone)
	}
}

// Clocks go from 02:00 to 03:00, and at 03:30 back to 02:30. No real zone has done this so far.
func TestResolveFindsLocalTimesOfTwoChanges(t *testing.T) {
	const hour = 3600
	spans := [][2]int64{{math.MinInt64, 0}, {2 * hour, hour}, {2*hour + hour/2, 0}}
	for wall, want := range map[int64]string{
		hour:          "[3600] 0",
		2 * hour:      "[] 1",     // clocks skip this time
		2*hour + 1800: "[9000] 0", // clocks skip this time at first, and show it later
		3 * hour:      "[7200 10800] 0",
		3*hour + 1800: "[12600] 0",
	} {
		instants, gap := calendar.Resolve(spans, wall)
		require.Equal(t, want, fmt.Sprint(instants, gap), wall)
	}
}
