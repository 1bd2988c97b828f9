package sim

import (
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// The oracle has its own calendar: it checks minute by minute whether a minute is an instant.

// zoneOf describes a time zone in the simulated weeks, in which its offset changes at most once.
type zoneOf struct {
	name          string
	before, after time.Duration
	at            time.Time // when the offset changes
}

var zonesOf = []zoneOf{
	{"", 0, 0, time.Date(2000, 3, 26, 1, 0, 0, 0, time.UTC)},
	{"Asia/Kolkata", 330 * time.Minute, 330 * time.Minute, time.Date(2000, 3, 26, 1, 0, 0, 0, time.UTC)},
	{"Europe/Paris", time.Hour, 2 * time.Hour, time.Date(2000, 3, 26, 1, 0, 0, 0, time.UTC)},
	{"America/New_York", -5 * time.Hour, -4 * time.Hour, time.Date(2000, 4, 2, 7, 0, 0, 0, time.UTC)},
	{"Australia/Sydney", 11 * time.Hour, 10 * time.Hour, time.Date(2000, 3, 25, 16, 0, 0, 0, time.UTC)},
	{"Australia/Lord_Howe", 11 * time.Hour, 630 * time.Minute, time.Date(2000, 3, 25, 15, 0, 0, 0, time.UTC)},
}

// cadence says when a schedule ticks.
type cadence struct {
	every int64 // seconds
	cron  string
	// minute reports whether the minute field of cron matches a minute. If hourly is set, the hour field matches every
	// hour. Otherwise it matches the hours from "first" to "last".
	minute      func(int) bool
	hourly      bool
	first, last int
}

var cadences = []cadence{
	{every: 60},
	{every: 120},
	{every: 300},
	{cron: "* * * * *", minute: func(int) bool { return true }, hourly: true},
	{cron: "*/2 * * * *", minute: func(m int) bool { return m%2 == 0 }, hourly: true},
	{cron: "1-59/3 */1 * * *", minute: func(m int) bool { return m%3 == 1 }, hourly: true},
	{cron: "*/2 0-23 * * *", minute: func(m int) bool { return m%2 == 0 }, last: 23},
	{cron: "0,7,30,31,58 0-12 * * *", minute: func(m int) bool { return slices.Contains([]int{0, 7, 30, 31, 58}, m) }, last: 12},
	{cron: "*/3 2 * * *", minute: func(m int) bool { return m%3 == 0 }, first: 2, last: 2},
}

// farSchedule is the schedule of idle worlds. It ticks once a year, and never during a world.
const (
	farSchedule = "far"
	yearly      = "0 0 1 1 *"
)

// isInstant reports whether a time, in whole minutes, is an instant of a schedule.
func isInstant(s *event.Schedule, at time.Time) bool {
	if s.Cron == yearly {
		return at.Equal(time.Date(at.UTC().Year(), 1, 1, 0, 0, 0, 0, time.UTC))
	}
	if at.Before(s.Start.Time()) || s.End != 0 && !at.Before(s.End.Time()) {
		return false
	}
	if s.EverySec != 0 {
		from := int64(0)
		if s.Start != 0 {
			from = s.Start.Time().Unix()
		}
		return (at.Unix()-from)%s.EverySec == 0
	}
	c := cadences[slices.IndexFunc(cadences, func(c cadence) bool { return c.cron == s.Cron })]
	z := zonesOf[slices.IndexFunc(zonesOf, func(z zoneOf) bool { return z.name == s.Timezone })]
	if at.Before(z.at) {
		return c.matches(at.Add(z.before)) && !c.other(s, z, at, at.Add(z.before-z.after), event.RepeatedLast)
	}
	if at.Equal(z.at) && !c.hourly && s.Gap != event.GapSkip {
		for local := at.Add(z.before); local.Before(at.Add(z.after)); local = local.Add(time.Minute) {
			if c.matches(local) {
				return true
			}
		}
	}
	return c.matches(at.Add(z.after)) && !c.other(s, z, at, at.Add(z.after-z.before), event.RepeatedFirst)
}

// other compares two instants that may have the same local time: "at" and "other". It reports whether a schedule ticks
// at "other", but not at "at". This requires two things: the clocks are set back between the two instants, and the
// schedule has the given policy for repeated local times.
func (c cadence) other(s *event.Schedule, z zoneOf, at, other time.Time, policy string) bool {
	occurs := z.after < z.before && at.Before(z.at) != other.Before(z.at)
	chosen := s.Repeated
	if chosen == "" {
		chosen = event.RepeatedFirst
	}
	return occurs && !c.hourly && chosen == policy
}

func (c cadence) matches(local time.Time) bool {
	return c.minute(local.Minute()) && (c.hourly || c.first <= local.Hour() && local.Hour() <= c.last)
}

// instantsOf returns the instants of a schedule after one time and up to a later time.
func instantsOf(s *event.Schedule, after, through event.Time) (instants []event.Time) {
	for at := after.Time().Truncate(time.Minute).Add(time.Minute); event.At(at) <= through; at = at.Add(time.Minute) {
		if isInstant(s, at) {
			instants = append(instants, event.At(at))
		}
	}
	return instants
}

// firstAfter returns the first instant after a time, or 0 if the schedule has no later instant.
func firstAfter(s *event.Schedule, after event.Time) event.Time {
	if s.Cron == yearly {
		return event.At(time.Date(after.Time().UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC))
	}
	from := after.Time().Truncate(time.Minute)
	for at := from.Add(time.Minute); at.Before(s.End.Time()); at = at.Add(time.Minute) {
		if isInstant(s, at) {
			return event.At(at)
		}
	}
	return 0
}
