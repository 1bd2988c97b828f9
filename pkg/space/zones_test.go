package space_test

import (
	_ "embed"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/space"
)

//go:embed testdata/zones.txt
var zoneList string

// everyZone is set by `make zones`. If it is set, the test covers every hour of every zone.
var everyZone = flag.Bool("every-zone", false, "check every hour of every time zone")

// sample lists the zones of the default test: zones with unusual rules, and some with usual rules.
var sample = []string{
	"UTC", "Europe/Paris", "Europe/Dublin", "America/St_Johns", "America/Sao_Paulo", "Africa/Casablanca", "Africa/Monrovia",
	"Antarctica/Troll", "Asia/Kathmandu", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Kwajalein",
}

var zoned = space.Calendar{Now: time.Date(2038, 1, 1, 0, 0, 0, 0, time.UTC), Zone: calendar.Zone}

// Each hour of a zone belongs to exactly one day, and its key names exactly one hour.
func TestHoursOfEveryZoneAreCountedOnce(t *testing.T) {
	zones, every := sample, false
	if *everyZone {
		zones, every = distinct(t, strings.Fields(zoneList)), true
	}
	hours, seen := 0, map[steadyDay]bool{}
	for _, zone := range zones {
		for _, d := range []space.Dimension{
			{Name: "hour", Kind: space.Hourly, Start: "1970-01-02", End: "2037-12-30", Timezone: zone},
			{Name: "time", Kind: space.Every, Minutes: 15, Start: "2005-01-02", End: "2014-12-30", Timezone: zone},
		} {
			if zoned.CheckZone(&d) != nil {
				continue // such periods cannot exist in the zone
			}
			hours++
			countOnce(t, d, every, seen)
		}
	}
	require.Greater(t, hours, len(zones)/2)
}

// distinct omits a zone if an earlier zone in the list has the same offsets at all times of the test. Both zones then
// have the same keys, because a key contains the offset, not the zone.
func distinct(t *testing.T, names []string) []string {
	t.Helper()
	from, to := time.Date(1969, 12, 1, 0, 0, 0, 0, time.UTC), time.Date(2038, 2, 1, 0, 0, 0, 0, time.UTC)
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		zone, err := calendar.Zone(name)
		require.NoError(t, err)
		var offsets strings.Builder
		previous := -1
		for at := from.In(zone); at.Before(to); at = space.Boundary(at).In(zone) {
			if _, offset := at.Zone(); offset != previous {
				fmt.Fprintln(&offsets, at.Unix(), offset)
				previous = offset
			}
			if space.Boundary(at).IsZero() {
				break
			}
		}
		known := seen[offsets.String()]
		seen[offsets.String()] = true
		return known
	})
}

// steadyDay is a day near which the offset of the zone does not change. The date and the offset determine the keys
// and the instants of the day's periods, whatever the zone is: CheckZone allows an offset to change only by whole
// periods, so an earlier change cannot have shifted where the periods of the day begin.
type steadyDay struct {
	kind   space.Kind
	date   string
	offset int
}

// countOnce checks every day if everyDay is true, and otherwise the days around each change of the offset. If
// several zones have the same steady day, it checks the periods of this day in one zone only. In every zone, it checks
// that each day begins where the previous one ends.
func countOnce(t *testing.T, fine space.Dimension, everyDay bool, seen map[steadyDay]bool) {
	t.Helper()
	day := space.Dimension{Name: "date", Kind: space.Daily, Start: fine.Start, End: fine.End, Timezone: fine.Timezone}
	m, err := space.Infer(space.New(fine), space.New(day), space.Map{})
	require.NoError(t, err)
	reader, err := zoned.Reader(m)
	require.NoError(t, err)
	days, err := zoned.Declared(space.New(day), space.MaxPeriods)
	require.NoError(t, err)
	zone, err := calendar.Zone(fine.Timezone)
	require.NoError(t, err)
	interval, err := zoned.Intervals(&fine)
	require.NoError(t, err)
	var next int64 // when the next period must start; 0: at any time
	for i, key := range days {
		values, err := space.New(day).Parse(key)
		require.NoError(t, err)
		text := values[0]
		near := changes(t, zone, text)
		if !everyDay && !near {
			next = 0
			continue
		}
		at, err := time.Parse(time.DateOnly, text)
		require.NoError(t, err)
		change := space.Boundary(at.AddDate(0, 0, -1).In(zone))
		if everyDay && (change.IsZero() || change.After(at.AddDate(0, 0, 2))) && i > 2 && i < len(days)-3 {
			_, offset := at.In(zone).Zone()
			steady := steadyDay{fine.Kind, text, offset}
			if seen[steady] {
				start, end := at.Unix()-int64(offset), at.AddDate(0, 0, 1).Unix()-int64(offset)
				require.True(t, next == 0 || next == start, text)
				next = end
				continue
			}
			seen[steady] = true
		}
		image, err := reader.Image(key)
		require.NoError(t, err)
		if i > 0 && i < len(days)-1 {
			require.Zero(t, image.Undeclared, text)
		}
		for _, key := range image.Keys {
			value := valueOf(t, &fine, key, near)
			start, end, err := interval(value)
			if err != nil || !strings.HasPrefix(value, text) {
				require.NoError(t, err)
				require.Failf(t, "another day", "%s does not belong to %s", key, text)
			}
			if next != 0 && start.Unix() != next && !midnightChange(zone, start) {
				require.Failf(t, "a gap", "%s: %s begins at %d, not at %d", fine.Timezone, key, start.Unix(), next)
			}
			next = end.Unix()
		}
	}
}

// valueOf returns the value in the key of a period. Near a change of the offset, it also checks that parsing the key
// returns this value. It does not check all keys, because the test would then take ten times as long.
func valueOf(t *testing.T, d *space.Dimension, key string, near bool) string {
	prefix := `{"` + d.Name + `":"`
	value := key[len(prefix) : len(key)-len(`"}`)]
	if near {
		values, err := space.New(*d).Parse(key)
		require.NoError(t, err)
		require.Equal(t, values[0], value)
	}
	return value
}

// changes reports whether the offset of a zone changes on a day, the day before it or the day after it.
func changes(t *testing.T, zone *time.Location, day string) bool {
	t.Helper()
	at, err := time.Parse(time.DateOnly, day)
	require.NoError(t, err)
	_, before := at.AddDate(0, 0, -1).In(zone).Zone()
	_, after := at.AddDate(0, 0, 2).In(zone).Zone()
	return before != after
}

// midnightChange reports whether the clocks were set back across midnight near an instant. In that
// case, some keys of the day come after keys of the next day.
func midnightChange(zone *time.Location, at time.Time) bool {
	for d := -3 * time.Hour; d <= 3*time.Hour; d += time.Minute {
		before, after := at.Add(d-time.Minute).In(zone), at.Add(d).In(zone)
		if after.Day() != before.Day() && after.Format(time.DateTime) < before.Format(time.DateTime) {
			return true
		}
	}
	return false
}

func TestHoursOfParisOnClockChanges(t *testing.T) {
	fine := space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2025-01-01", Timezone: "Europe/Paris"}
	day := space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01", Timezone: "Europe/Paris"}
	m, err := space.Infer(space.New(fine), space.New(day), space.Map{})
	require.NoError(t, err)
	reader, err := zoned.Reader(m)
	require.NoError(t, err)
	for text, want := range map[string]int{"2025-03-30": 23, "2025-07-01": 24, "2025-10-26": 25} {
		image, err := reader.Image(space.New(day).Key(text))
		require.NoError(t, err)
		require.Len(t, image.Keys, want, text)
		chosen, err := zoned.Resolve(space.New(fine), selection(t, "hour="+text))
		require.NoError(t, err)
		require.Len(t, chosen.Values[0], want, text)
	}
	start, end, err := zoned.Interval(&day, "2025-03-30")
	require.NoError(t, err)
	require.Equal(t, "2025-03-29T23:00:00Z 2025-03-30T22:00:00Z", start.Format(time.RFC3339)+" "+end.Format(time.RFC3339))
	twice, err := zoned.Resolve(space.New(fine), selection(t, "hour=2025-10-26T02:00"))
	require.NoError(t, err)
	require.Equal(t, []string{"2025-10-26T02:00+02:00", "2025-10-26T02:00+01:00"}, twice.Values[0])
	_, err = zoned.Resolve(space.New(fine), selection(t, "hour=2025-03-30T02:00"))
	require.ErrorContains(t, err, "its clocks skipped it")
	_, err = zoned.Resolve(space.New(fine), selection(t, "hour=2025-10-26T02:00+03:00"))
	require.ErrorContains(t, err, "write 2025-10-26T01:00+02:00")
}

func TestHoursNeedWholeChangesOfOffset(t *testing.T) {
	d := space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2025-01-01", Timezone: "Australia/Lord_Howe"}
	require.ErrorContains(t, zoned.CheckZone(&d), "the UTC offset of Australia/Lord_Howe changes by 30 minutes on 2025-04-05")
	d.Kind, d.Minutes = space.Every, 30
	require.NoError(t, zoned.CheckZone(&d))
	d.Kind = space.Daily
	require.NoError(t, zoned.CheckZone(&d))
	apia := space.Dimension{Name: "date", Kind: space.Daily, Start: "2011-12-30", Timezone: "Pacific/Apia"}
	require.ErrorContains(t, zoned.CheckZone(&apia), "skipped it")
	apia.Start, apia.End = "2011-12-29", "2011-12-31"
	days, err := zoned.Expected(space.New(apia), 100)
	require.NoError(t, err)
	require.Equal(t, []string{`{"date":"2011-12-29"}`, `{"date":"2011-12-31"}`}, days)
	start, end, err := zoned.Interval(&apia, "2011-12-30")
	require.NoError(t, err)
	require.Equal(t, start, end)
}
