package space

import (
	"fmt"
	"time"
)

// The periods of a kind of time are numbered in order. Days and weeks are counted from 1970-01-01, and months and
// years from the year 0. Hours and shorter periods are counted from 1970 in UTC. So the numbers do not depend on zone
// data, and if clocks repeat an hour, the two hours have different numbers.
//
// A civil time is the date and the time that clocks show. It is represented as a time.Time in UTC.

// civil is a half-open interval of civil time.
type civil struct {
	from, to time.Time
	layout   string // the layout of the text from which it was parsed
}

// parseCivil parses a year, a month, a day, or a local time at which a period begins. The parameter length is the
// length of the period in seconds.
func parseCivil(text string, length int64) (civil, bool) {
	for _, layout := range []string{layoutDay, layoutMonth, layoutYear, layoutLocal} {
		t, err := time.Parse(layout, text)
		if err != nil || t.Format(layout) != text || t.Year() == 0 {
			continue
		}
		switch layout {
		case layoutYear:
			return civil{t, t.AddDate(1, 0, 0), layout}, true
		case layoutMonth:
			return civil{t, t.AddDate(0, 1, 0), layout}, true
		case layoutDay:
			return civil{t, t.AddDate(0, 0, 1), layout}, true
		default:
			return civil{t, t.Add(time.Duration(length) * time.Second), layout}, true
		}
	}
	return civil{}, false
}

// layoutOf returns the layout of the keys of d.
func (d *Dimension) layoutOf() string {
	switch d.Kind {
	case Every, Hourly:
		return layoutHour
	case Monthly:
		return layoutMonth
	case Yearly:
		return layoutYear
	default:
		return layoutDay
	}
}

// example returns advice on how to write a period of d.
func (d *Dimension) example() string {
	switch d.Kind {
	case Every, Hourly:
		return "write a local time with its offset, for example 2025-01-15T06:00+01:00"
	case Weekly:
		return "write the first day of a week, for example " + d.value(d.ordinal(time.Date(2025, 1, 15, 0, 0, 0, 0, time.UTC)), nil, 0)
	case Monthly:
		return "write year-month, for example 2025-01"
	case Yearly:
		return "write a year, for example 2025"
	default:
		return "write year-month-day, for example 2025-01-15"
	}
}

// singular returns the noun for one period of d.
func (d *Dimension) singular() string {
	switch d.Kind {
	case Every:
		return fmt.Sprintf("period of %d minutes", d.Minutes)
	case Hourly:
		return "hour"
	case Weekly:
		return "week"
	case Monthly:
		return "month"
	case Yearly:
		return "year"
	default:
		return "day"
	}
}

// withArticle returns the noun for one period of d, with its article.
func (d *Dimension) withArticle() string {
	if d.Kind == Hourly {
		return "an hour"
	}
	return "a " + d.singular()
}

// bound parses the declared start or end of a dimension into the interval that the text names.
func (d *Dimension) bound(text string) (civil, error) {
	c, ok := parseCivil(text, d.period())
	switch {
	case !ok:
	case d.clocked():
		if c.layout == layoutDay || c.layout == layoutLocal && int64(c.from.Minute()*60)%d.period() == 0 {
			return c, nil
		}
		return civil{}, fmt.Errorf("%q is not a day or the beginning of %s: write, for example, 2025-01-15 or 2025-01-15T06:00",
			text, d.withArticle())
	case c.layout == d.layoutOf() && (d.Kind != Weekly || d.startOf(d.ordinal(c.from)).Equal(c.from)):
		return c, nil
	}
	if d.clocked() {
		return civil{}, fmt.Errorf("%q is not a day or a local time: write, for example, 2025-01-15 or 2025-01-15T06:00", text)
	}
	return civil{}, d.notAPeriod(text)
}

func (d *Dimension) notAPeriod(text string) error {
	if c, ok := parseCivil(text, 0); ok && d.Kind == Weekly && c.layout == layoutDay {
		first := d.startOf(d.ordinal(c.from)).Format(layoutDay)
		return fmt.Errorf("%q is not the first day of a week: write %s", text, first)
	}
	return fmt.Errorf("%q is not %s: %s", text, d.withArticle(), d.example())
}

// floorDiv returns a divided by b, rounded down.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

const secondsADay = 24 * 60 * 60

// thursday is the weekday of 1970-01-01. Monday is 0.
const thursday = 3

// ordinal returns the number of the civil period that contains a civil time. d must not be clocked.
func (d *Dimension) ordinal(t time.Time) int64 {
	const months = 12
	switch d.Kind {
	case Yearly:
		return int64(t.Year())
	case Monthly:
		return int64(t.Year())*months + int64(t.Month()) - 1
	case Weekly:
		return floorDiv(floorDiv(t.Unix(), secondsADay)+thursday-d.weekStart(), 7)
	default:
		return floorDiv(t.Unix(), secondsADay)
	}
}

// startOf returns the civil time at which a civil period begins. d must not be clocked.
func (d *Dimension) startOf(n int64) time.Time {
	const months = 12
	switch d.Kind {
	case Yearly:
		return time.Date(int(n), 1, 1, 0, 0, 0, 0, time.UTC)
	case Monthly:
		return time.Date(int(floorDiv(n, months)), time.Month(n-floorDiv(n, months)*months)+1, 1, 0, 0, 0, 0, time.UTC)
	case Weekly:
		return time.Unix((n*7-thursday+d.weekStart())*secondsADay, 0).UTC()
	default:
		return time.Unix(n*secondsADay, 0).UTC()
	}
}

// index returns the number of the period with the given key. It needs no zone data.
func (d *Dimension) index(key string) (int64, error) {
	if !d.clocked() {
		t, err := time.Parse(d.layoutOf(), key)
		if err != nil || t.Year() == 0 {
			return 0, d.notAPeriod(key)
		}
		n := d.ordinal(t)
		if d.Kind == Weekly && !d.startOf(n).Equal(t) {
			return 0, d.notAPeriod(key)
		}
		return n, nil
	}
	t, err := time.Parse(layoutHour, key)
	if err != nil || t.Format(layoutHour) != key || int64(t.Minute()*60)%d.period() != 0 {
		return 0, d.notAPeriod(key)
	}
	return floorDiv(t.Unix(), d.period()), nil
}

// value returns the key of a period. zone and phase are needed only if d is clocked. The periods of such a dimension
// begin phase seconds after multiples of their length in UTC, for example because the offset of the zone is +05:30.
func (d *Dimension) value(n int64, zone *time.Location, phase int64) string {
	if !d.clocked() {
		return d.startOf(n).Format(d.layoutOf())
	}
	return time.Unix(n*d.period()+phase, 0).In(zone).Format(layoutHour)
}

// civilStart returns the civil date at which the period with the given key begins or, for a clocked period, the local
// time.
func (d *Dimension) civilStart(key string) (time.Time, error) {
	t, err := time.Parse(d.layoutOf(), key)
	if err != nil {
		return time.Time{}, d.notAPeriod(key)
	}
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC), nil
}

// CheckBound returns an error unless text is valid as the declared start or end of a dimension.
func (d *Dimension) CheckBound(text string) error {
	_, err := d.bound(text)
	return err
}

// EndsBeforeStart reports whether the end is before the start. The caller must have checked both with [CheckBound].
func (d *Dimension) EndsBeforeStart() bool {
	if d.End == "" {
		return false
	}
	start, err := d.bound(d.Start)
	if err != nil {
		return false
	}
	end, err := d.bound(d.End)
	return err == nil && !end.to.After(start.from)
}

// Noun says in words what a start or an end of d must be: "a day".
func (d *Dimension) Noun() string {
	if d.clocked() {
		return "a day or a local time"
	}
	return d.withArticle()
}

// Help returns a text that explains how to write a start or an end.
func (d *Dimension) Help() string {
	if d.clocked() {
		return "write, for example, 2025-01-15 or 2025-01-15T06:00"
	}
	return d.example()
}

// ExampleBound returns a valid start or end, as an example.
func (d *Dimension) ExampleBound() string {
	if d.clocked() {
		return "2025-01-01"
	}
	return d.value(d.ordinal(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)), nil, 0)
}
