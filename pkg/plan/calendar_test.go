package plan_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// calendarAt returns the calendar at a time.
func calendarAt(now string) plan.Calendar {
	at, err := time.Parse(time.RFC3339, now)
	if err != nil {
		panic(err)
	}
	return plan.Calendar{Now: at, Zone: calendar.Zone}
}

// zoned returns an asset with one partition for each day of a time zone.
func zoned(start, zone string) plan.Asset {
	asset, err := ids.ParseAssetKey("a/days")
	if err != nil {
		panic(err)
	}
	return plan.Asset{
		Key: asset, WorkerQueue: "default", Work: plan.Work{Command: []string{"x"}, Dimensions: map[string]string{"date": "DATE"}},
		Partitions: space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: start, Timezone: zone}),
	}
}

func planned(t *testing.T, now string, selection string, all bool, assets ...plan.Asset) (*plan.Plan, error) {
	t.Helper()
	s, err := plan.ParseSelection(selection)
	require.NoError(t, err)
	r := plan.Request{Assets: assets, All: all, Partitions: []plan.Selection{s}, Calendar: calendarAt(now)}
	if !all {
		r.Select = []ids.AssetKey{assets[0].Key}
	}
	return plan.Build(r)
}

func TestBuildRejectsDaysThatHaveNotBegun(t *testing.T) {
	const noon = "2025-03-01T12:00:00Z" // 2025-03-02 has begun only in zones at least 12 hours ahead of UTC
	for zone, last := range map[string]string{
		"": "2025-03-01", "UTC": "2025-03-01", "Pacific/Kiritimati": "2025-03-02", "America/New_York": "2025-03-01", "Pacific/Midway": "2025-03-01",
	} {
		first, err := time.Parse(time.DateOnly, last)
		require.NoError(t, err)
		next := first.AddDate(0, 0, 1).Format(time.DateOnly)
		for _, all := range []bool{false, true} {
			p, err := planned(t, noon, "date=2025-02-27.."+last, all, zoned("2025-01-01", zone))
			require.NoError(t, err, zone)
			require.NotEmpty(t, p.Tasks)
			_, err = planned(t, noon, "date=2025-02-27.."+next, all, zoned("2025-01-01", zone))
			require.ErrorContains(t, err, "asset a/days: date="+next+" has not begun: it is "+last+" in the time zone ", zone)
		}
	}
	_, err := planned(t, "2025-03-01T04:59:59Z", "date=2025-03-01", false, zoned("2025-01-01", "America/New_York"))
	require.EqualError(t, err, "asset a/days: date=2025-03-01 has not begun: it is 2025-02-28 in the time zone America/New_York: select earlier days")
	_, err = planned(t, "2025-03-01T05:00:00Z", "date=2025-03-01", false, zoned("2025-01-01", "America/New_York"))
	require.NoError(t, err)
}

func TestBuildRejectsDaysThatTheZoneSkipped(t *testing.T) {
	const now = "2025-03-01T12:00:00Z"
	apia := zoned("2011-01-01", "Pacific/Apia")
	for _, all := range []bool{false, true} {
		_, err := planned(t, now, "date=2011-12-30", all, apia)
		require.EqualError(t, err, "asset a/days: no partition date=2011-12-30: the time zone Pacific/Apia skipped this day: select another")
		p, err := planned(t, now, "date=2011-12-29..2011-12-31", all, apia)
		require.NoError(t, err)
		require.Len(t, p.Tasks, 2, "a range has the days that exist")
		require.Equal(t, []string{"a/days has no partition date=2011-12-30: the time zone Pacific/Apia skipped it"}, p.Warnings)
		p, err = planned(t, now, "date=2011-12-29..2011-12-31", all, zoned("2011-01-01", ""))
		require.NoError(t, err)
		require.Len(t, p.Tasks, 3)
	}
}

func TestDaylightSavingSkipsNoDay(t *testing.T) {
	c := calendarAt("2026-01-01T00:00:00Z")
	count := func(start, end, zone string) int {
		days, err := c.Count(space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: start, End: end, Timezone: zone}))
		require.NoError(t, err)
		return days
	}
	require.Equal(t, 2, count("2011-12-29", "2011-12-31", "Pacific/Apia"))
	require.Equal(t, 2, count("1993-08-20", "1993-08-22", "Pacific/Kwajalein"))
	require.Equal(t, 2, count("1994-12-30", "1995-01-01", "Pacific/Kiritimati"))
	// In 2018, some of these zones skipped or repeated midnight, but none skipped or repeated a whole day.
	for _, zone := range []string{"America/Sao_Paulo", "Asia/Beirut", "Europe/London", "Africa/Cairo", "America/Havana", "UTC", "Pacific/Apia"} {
		require.Equal(t, 365, count("2018-01-01", "2018-12-31", zone), zone)
	}
}

func TestCalendarCountsDaysThatHaveEnded(t *testing.T) {
	c := calendarAt("2011-12-31T12:00:00Z") // in Apia, it is already 2012
	days := func(start, end, zone string) *space.Space {
		return space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: start, End: end, Timezone: zone})
	}
	count := func(s *space.Space) int {
		n, err := c.Count(s)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 2, count(days("2011-12-29", "", "UTC")), "29, 30")
	require.Equal(t, 2, count(days("2011-12-29", "", "Pacific/Apia")), "29, 31: the zone skipped the 30th")
	require.Equal(t, 2, count(days("2011-12-29", "2020-01-01", "UTC")))
	require.Equal(t, 1, count(days("2011-12-29", "2011-12-29", "UTC")))
	require.Zero(t, count(days("2012-01-01", "", "UTC")))
	_, err := c.Count(days("2012-01-01", "", "No/Where"))
	require.ErrorContains(t, err, "load time zone No/Where")
}
