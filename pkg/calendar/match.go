package calendar

import (
	"math/bits"
	"time"
)

const (
	minute = 60
	hour   = 60 * minute
	day    = 24 * hour
)

// match returns the first matching local time in [wall, limit), or limit if there is none. Local times are in seconds
// since 1970-01-01T00:00 of the zone's clocks.
func (c *cron) match(wall, limit int64) int64 {
	wall = -floorDiv(-wall, minute) * minute
	for wall < limit {
		n := floorDiv(wall, day)
		date := dateOf(n)
		if c.months&(1<<date.month) == 0 {
			wall = (n - int64(date.day) + int64(daysIn(date.year, date.month)) + 1) * day
			continue
		}
		if c.matches(date) {
			if at := c.inDay(wall - n*day); at < day {
				return min(n*day+at, limit)
			}
		}
		wall = (n + 1) * day
	}
	return limit
}

// inDay returns the first matching time of day at or after a time of day, in seconds. If there is none, it
// returns 24 hours.
func (c *cron) inDay(at int64) int64 {
	h := at / hour
	if c.hours&(1<<h) != 0 {
		if m := bits.TrailingZeros64(c.minutes &^ (1<<(at%hour/minute) - 1)); m < 60 {
			return h*hour + int64(m)*minute
		}
	}
	if next := bits.TrailingZeros64(c.hours &^ (1<<(h+1) - 1)); next < 24 {
		return int64(next)*hour + int64(bits.TrailingZeros64(c.minutes))*minute
	}
	return day
}

// count returns how many matching local times are in [from, to).
func (c *cron) count(from, to int64) int64 {
	total := int64(0)
	for from < to {
		n := floorDiv(from, day)
		if from == n*day && (n+1)*day <= to {
			date := dateOf(n)
			switch {
			case c.months&(1<<date.month) == 0:
				n += int64(daysIn(date.year, date.month) - date.day)
			case c.matches(date):
				total += int64(bits.OnesCount64(c.hours) * bits.OnesCount64(c.minutes))
			}
			from = (n + 1) * day
			continue
		}
		end := min(to, (n+1)*day)
		for at := c.match(from, end); at < end; at = c.match(at+minute, end) {
			total++
		}
		from = end
	}
	return total
}

// date is a day of the Gregorian calendar.
type date struct {
	year, month, day int
	weekday          int // 0 is Sunday
}

func dateOf(n int64) date {
	y, m, d := time.Unix(n*day, 0).UTC().Date()
	const thursday = 4 // 1970-01-01
	return date{y, int(m), d, int(((n+thursday)%7 + 7) % 7)}
}

func daysIn(year, month int) int {
	return time.Date(year, time.Month(month+1), 0, 0, 0, 0, 0, time.UTC).Day()
}

// matches reports whether the expression ticks on a date. If the expression restricts both the days of the month and
// the days of the week, the date must match only one of them.
func (c *cron) matches(d date) bool {
	if c.months&(1<<d.month) == 0 {
		return false
	}
	switch {
	case c.anyDay && c.anyWeekday:
		return true
	case c.anyDay:
		return c.matchesWeekday(d)
	case c.anyWeekday:
		return c.matchesDay(d)
	}
	return c.matchesDay(d) || c.matchesWeekday(d)
}

func (c *cron) matchesDay(d date) bool {
	if c.days&(1<<d.day) != 0 {
		return true
	}
	if c.beforeLast == 0 && c.nearest == 0 && !c.lastWorkday {
		return false
	}
	last := daysIn(d.year, d.month)
	if c.beforeLast&(1<<(last-d.day)) != 0 {
		return true
	}
	if d.weekday == saturday || d.weekday == sunday {
		return false
	}
	if c.lastWorkday && (d.day == last || d.weekday == friday && d.day+2 >= last) {
		return true
	}
	// near is the set of days n for which nW matches this date. It contains the day of this date. A Friday also matches
	// for the Saturday after it, and a Monday for the Sunday before it. At the ends of a month, the nearest weekday in
	// the same month may be two days away.
	near := uint64(1) << d.day
	if d.weekday == friday && d.day < last {
		near |= 1 << (d.day + 1)
		if d.day+2 == last {
			near |= 1 << last
		}
	}
	if d.weekday == monday && d.day > 1 {
		near |= 1 << (d.day - 1)
		if d.day == 3 {
			near |= 1 << 1
		}
	}
	return c.nearest&near != 0
}

const (
	sunday   = 0
	monday   = 1
	friday   = 5
	saturday = 6
)

func (c *cron) matchesWeekday(d date) bool {
	if c.weekdays&(1<<d.weekday) != 0 {
		return true
	}
	if c.lastWeekdays&(1<<d.weekday) != 0 && d.day+7 > daysIn(d.year, d.month) {
		return true
	}
	return c.nth[d.weekday]&(1<<((d.day-1)/7+1)) != 0
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
