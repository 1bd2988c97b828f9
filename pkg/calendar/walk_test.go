package calendar_test

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/calendar"
)

// everyZone is set by `make zones`: the test then walks through 68 years of all zones.
var everyZone = flag.Bool("every-zone", false, "walk through every minute of every time zone")

// The walk below is an independent implementation, which shares no code with the package. It finds the periods with
// one offset by probing the zone every quarter of an hour, and lists all matching local times in them. Then it
// applies the policy to the whole list.

// stretch is a period in which a zone has one offset.
type stretch struct{ from, to, offset int64 }

func offsetAt(zone *time.Location, at int64) int64 {
	_, offset := time.Unix(at, 0).In(zone).Zone()
	return int64(offset)
}

// look finds the stretches of a zone between two instants by probing its offset.
func look(zone *time.Location, from, to int64) []stretch {
	const quarter = 15 * 60
	found := []stretch{{from, to, offsetAt(zone, from)}}
	for at := from; at < to; at += quarter {
		last := &found[len(found)-1]
		offset := offsetAt(zone, at+quarter)
		if offset == last.offset {
			continue
		}
		low, high := at, at+quarter // the change is in (low, high]
		for high-low > 1 {
			if middle := (low + high) / 2; offsetAt(zone, middle) == last.offset {
				low = middle
			} else {
				high = middle
			}
		}
		last.to = high
		found = append(found, stretch{high, to, offset})
	}
	return found
}

// pattern is a cron expression, and Go functions that match the same local times.
type pattern struct {
	cron   string
	hourly bool
	time   func(hour, minute int) bool
	date   func(year int, month time.Month, day int, weekday time.Weekday) bool
}

func daily(int, time.Month, int, time.Weekday) bool { return true }

var patterns = []pattern{
	{"30 2 * * *", false, func(h, m int) bool { return h == 2 && m == 30 }, daily},
	{"*/20 0-3,23 * * *", false, func(h, m int) bool { return (h < 4 || h == 23) && m%20 == 0 }, daily},
	{"5 * * * *", true, func(_, m int) bool { return m == 5 }, daily},
	{
		"0,59 */2 LW,30,13 * 5", false, func(h, m int) bool { return h%2 == 0 && (m == 0 || m == 59) },
		func(y int, month time.Month, d int, w time.Weekday) bool {
			last := time.Date(y, month+1, 0, 0, 0, 0, 0, time.UTC)
			for last.Weekday() == time.Saturday || last.Weekday() == time.Sunday {
				last = last.AddDate(0, 0, -1)
			}
			return d == last.Day() || d == 30 || d == 13 || w == time.Friday
		},
	},
	{
		"15 0 * 3,10,12 SUNL,FRI#5,SAT", false, func(h, m int) bool { return h == 0 && m == 15 },
		func(y int, month time.Month, d int, w time.Weekday) bool {
			next := time.Date(y, month, d+7, 0, 0, 0, 0, time.UTC).Month()
			return (month == 3 || month == 10 || month == 12) &&
				(w == time.Sunday && next != month || w == time.Friday && d > 28 || w == time.Saturday)
		},
	},
}

// matching calls a callback with each matching local time in [from, to), in order. Local times are whole minutes, given
// as the Unix times at which clocks in UTC show them.
func (p *pattern) matching(from, to int64, found func(wall int64)) {
	var times [24 * 60]bool
	for i := range times {
		times[i] = p.time(i/60, i%60)
	}
	wall := from
	for wall%60 != 0 {
		wall++
	}
	for minute := (wall/60%(24*60) + 24*60) % (24 * 60); wall < to; wall += 60 {
		if times[minute] {
			at := time.Unix(wall, 0).UTC()
			if p.date(at.Year(), at.Month(), at.Day(), at.Weekday()) {
				found(wall)
			}
		}
		if minute++; minute == 24*60 {
			minute = 0
		}
	}
}

// shown holds all instants at which clocks show a matching local time, in order, and the instants of each local time.
type shown struct {
	all []int64
	of  map[int64][]int64
}

// walk finds the matching local times of a pattern.
func (p *pattern) walk(stretches []stretch) shown {
	w := shown{of: map[int64][]int64{}}
	for _, s := range stretches {
		p.matching(s.from+s.offset, s.to+s.offset, func(wall int64) {
			w.all = append(w.all, wall-s.offset)
			if !p.hourly {
				w.of[wall] = append(w.of[wall], wall-s.offset)
			}
		})
	}
	return w
}

// ticks returns the ticks of the pattern under a policy for daylight saving time.
func (p *pattern) ticks(w *shown, stretches []stretch, dst calendar.DST) []int64 {
	if p.hourly {
		return slices.Clone(w.all)
	}
	var ticks []int64
	for _, instants := range w.of {
		switch dst.Overlap {
		case "first":
			instants = instants[:1]
		case "last":
			instants = instants[len(instants)-1:]
		}
		ticks = append(ticks, instants...)
	}
	if dst.Gap == "shift" {
		for i := 1; i < len(stretches); i++ {
			p.matching(stretches[i].from+stretches[i-1].offset, stretches[i].from+stretches[i].offset, func(wall int64) {
				if len(w.of[wall]) == 0 {
					ticks = append(ticks, stretches[i].from)
				}
			})
		}
	}
	slices.Sort(ticks)
	return slices.Compact(ticks)
}

func TestTicksAreThoseOfMinuteWalk(t *testing.T) {
	named := []string{
		"Pacific/Apia", "Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca", "Europe/Dublin",
		"Africa/Monrovia", "Africa/Cairo", "America/St_Johns", "Asia/Pyongyang", "UTC",
	}
	if *everyZone {
		seen := map[string]bool{}
		for _, name := range calendar.Zones() {
			walkZone(t, name, 1970, 2038, seen)
		}
		t.Logf("%d zones with %d different offsets", len(calendar.Zones()), len(seen))
		return
	}
	for _, name := range named {
		walkZone(t, name, 2024, 2026, map[string]bool{})
	}
	walkZone(t, "Pacific/Apia", 2011, 2013, map[string]bool{})
	walkZone(t, "Africa/Monrovia", 1970, 1973, map[string]bool{})
}

// walkZone compares the ticks of the package with those of the walk, for the given years. A local time near a bound may
// occur a second time outside of the bounds, so a margin of two days is not compared. walkZone skips a zone with the
// same offsets as an earlier zone, because two such zones have the same ticks.
func walkZone(t *testing.T, name string, first, last int, seen map[string]bool) {
	t.Helper()
	const margin = 2 * 24 * 60 * 60
	zone, err := calendar.Zone(name)
	require.NoError(t, err)
	from := time.Date(first, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	to := time.Date(last, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	stretches := look(zone, from-margin, to+margin)
	key := fmt.Sprint(stretches)
	if seen[key] {
		return
	}
	seen[key] = true
	for i, p := range patterns {
		w := p.walk(stretches)
		policies := []calendar.DST{{Gap: "shift", Overlap: "first"}, {Gap: "skip", Overlap: "last"}, {Gap: "shift", Overlap: "both"}}
		if i > 1 {
			policies = policies[i-2 : i-1]
		}
		for _, dst := range policies {
			s := compile(t, calendar.Spec{Cron: p.cron, Timezone: name, DST: dst})
			want := slices.DeleteFunc(p.ticks(&w, stretches, dst), func(at int64) bool { return at < from || at >= to })
			got := make([]int64, 0, len(want))
			after := time.Unix(from-1, 0)
			for {
				next, ok := s.Next(after)
				if !ok || next.Unix() >= to {
					break
				}
				got, after = append(got, next.Unix()), next
			}
			if !slices.Equal(want, got) {
				difference(t, s, want, got)
			}
			for _, at := range got[:min(len(got), 1000)] {
				tick := time.Unix(at, 0)
				require.True(t, calendar.IsTick(s.Explain(tick), tick), "%+v %s", s.Spec(), tick.UTC())
			}
			newest, dropped := s.Between(time.Unix(from-1, 0), time.Unix(to-1, 0), 50)
			require.Equal(t, len(want), len(newest)+int(dropped), "%+v", s.Spec())
			for i, at := range newest {
				require.Equal(t, want[len(want)-len(newest)+i], at.Unix(), "%+v", s.Spec())
			}
		}
	}
}

func difference(t *testing.T, s *calendar.Schedule, want, got []int64) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			require.Equal(t, time.Unix(want[i], 0).In(s.Location()), time.Unix(got[i], 0).In(s.Location()), "%+v", s.Spec())
		}
	}
	require.Len(t, got, len(want), "%+v", s.Spec())
}

// Ticks that were missed in an outage of several years are counted by days, not one by one.
func TestBetweenCountsEveryMinuteOfYears(t *testing.T) {
	s := compile(t, calendar.Spec{Cron: "* * * * *", Timezone: "Europe/Paris"})
	from, to := at(t, "1970-01-01T00:00Z"), at(t, "2099-01-01T00:00Z")
	ticks, dropped := s.Between(from, to, 3)
	require.Len(t, ticks, 3)
	require.Equal(t, to, ticks[2])
	require.EqualValues(t, to.Sub(from)/time.Minute-3, dropped)
	ticks, dropped = s.Between(to, from, 3)
	require.Empty(t, ticks)
	require.Zero(t, dropped)
}
