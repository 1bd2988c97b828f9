package space

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// MaxPeriods is the maximum number of values of a dimension in one selection: about 270 years of
// days.
const MaxPeriods = 100_000

// MaxListed is the maximum number of partitions that are listed for one asset.
const MaxListed = 1_000_000

// TooManyError means that an asset has more partitions than can be listed.
type TooManyError struct{ text string }

// Error implements error.
func (e *TooManyError) Error() string { return e.text }

// Calendar contains the time, the zone data and the key sets that, together with the declaration of a space,
// determine the partitions of the space. In the zero Calendar, every zone is UTC and every period has begun.
type Calendar struct {
	// Now is the time of the request.
	Now time.Time
	// ReadsAt is the time of planning. It has an effect only if it is later than Now: a tick of a schedule may be
	// planned late. A partition that reads all or the newest periods reads those that have begun at ReadsAt. It must
	// not omit any of them, because its output will be compared with all versions that are visible at planning.
	ReadsAt time.Time
	// Future allows a selection to contain declared periods that have not begun.
	Future bool
	// Zone returns a time zone by its IANA name.
	Zone func(name string) (*time.Location, error)
	// Keys returns the keys of a key set in ascending order. Nil: every set is empty.
	Keys func(set string) []string
}

// NotBegunError means that a selection contains a period that has not begun. With [Calendar.Future], this is not an
// error.
type NotBegunError struct{ text string }

func (e *NotBegunError) Error() string { return e.text }

// axis is a time dimension with its zone and its declared range.
type axis struct {
	*Dimension
	zone  *time.Location
	phase int64
	// first and last are the numbers of the first and the last declared period. If no end is declared, last is noEnd.
	first, last int64
}

const noEnd = math.MaxInt64

// zone returns the time zone of d.
func (c Calendar) zone(d *Dimension) (*time.Location, error) {
	if c.Zone == nil {
		if d.clocked() && d.Zone() != "UTC" {
			return nil, fmt.Errorf("no zone data for %s", d.Zone())
		}
		return time.UTC, nil
	}
	zone, err := c.Zone(d.Zone())
	if err != nil {
		return nil, fmt.Errorf("load time zone %s: %w", d.Zone(), err)
	}
	return zone, nil
}

// axis returns a time dimension with its zone and range.
func (c Calendar) axis(d *Dimension) (axis, error) {
	zone, err := c.zone(d)
	if err != nil {
		return axis{}, err
	}
	a := axis{Dimension: d, zone: zone, last: noEnd}
	start, err := d.bound(d.Start)
	if err != nil {
		return axis{}, fmt.Errorf("invalid start of dimension %s: %w", d.Name, err)
	}
	if d.clocked() {
		p := d.period()
		first := firstInstant(start.from, zone).Unix()
		a.phase = first - floorDiv(first, p)*p
	}
	a.first, _ = a.within(start)
	if d.End != "" {
		end, err := d.bound(d.End)
		if err != nil {
			return axis{}, fmt.Errorf("invalid end of dimension %s: %w", d.Name, err)
		}
		_, a.last = a.within(end)
	}
	return a, nil
}

// within returns the first and the last period that begin in an interval of civil time. If no period begins there,
// last is less than first.
func (a *axis) within(c civil) (first, last int64) {
	if !a.clocked() {
		first = a.ordinal(c.from)
		if a.startOf(first).Before(c.from) {
			first++
		}
		return first, a.ordinal(c.to.Add(-time.Second))
	}
	p := a.period()
	from, to := firstInstant(c.from, a.zone).Unix()-a.phase, firstInstant(c.to, a.zone).Unix()-a.phase
	return -floorDiv(-from, p), -floorDiv(-to, p) - 1
}

// margin is greater than the difference between any two UTC offsets, including two offsets of one zone at different
// times: some zones have crossed the date line, which changed their offset by a day.
const margin = 60 * time.Hour

// firstInstant returns the first instant at which the clocks of a zone show the civil time wall or a later time.
func firstInstant(wall time.Time, zone *time.Location) time.Time {
	t := wall.Add(-margin)
	for {
		local := t.In(zone)
		_, offset := local.Zone()
		end := boundary(local)
		shown := wall.Add(-time.Duration(offset) * time.Second)
		if shown.Before(t) {
			return t.UTC()
		}
		if end.IsZero() || shown.Before(end) {
			return shown
		}
		t = end
	}
}

// boundary returns the time up to which the zone keeps the offset that it has at t. It returns the zero time if the
// zone keeps this offset forever. Near some transitions, [time.Time.ZoneBounds] returns t itself. In this case,
// boundary returns the time one hour later, so that its result is always after t.
func boundary(t time.Time) time.Time {
	_, end := t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		return t.Add(time.Hour).UTC()
	}
	return end.UTC()
}

// interval returns the instants at which a period begins and ends. They are equal if the zone
// skipped the period.
func (a *axis) interval(n int64) (start, end time.Time) {
	if a.clocked() {
		return time.Unix(n*a.period()+a.phase, 0).UTC(), time.Unix((n+1)*a.period()+a.phase, 0).UTC()
	}
	return firstInstant(a.startOf(n), a.zone), firstInstant(a.startOf(n+1), a.zone)
}

// exists reports whether a period exists in the zone. For example, Pacific/Apia skipped 2011-12-30 when it crossed
// the date line.
func (a *axis) exists(n int64) bool {
	if a.Kind != Daily || a.zone == time.UTC {
		return true
	}
	const noon = 12 // daylight saving time may skip an hour at night, but not noon
	day := a.startOf(n)
	return time.Date(day.Year(), day.Month(), day.Day(), noon, 0, 0, 0, a.zone).Day() == day.Day()
}

// current returns the period that contains an instant.
func (a *axis) current(now time.Time) int64 {
	if a.clocked() {
		return floorDiv(now.Unix()-a.phase, a.period())
	}
	local := now.In(a.zone)
	return a.ordinal(time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, time.UTC))
}

// begun returns the last declared period that has begun. If no declared period has begun, it returns a number less
// than a.first.
func (c Calendar) begun(a *axis) int64 {
	if c.Zone == nil {
		return a.last
	}
	return min(a.last, a.current(c.Now))
}

// expected returns the last declared period that is expected: it ended at least ReadyAfterSec ago. If no such period
// exists, expected returns a number less than a.first. In the zero Calendar, all declared periods are expected if the
// dimension declares an end, and none otherwise.
func (c Calendar) expected(a *axis) int64 {
	if c.Zone == nil {
		if a.last == noEnd {
			return a.first - 1
		}
		return a.last
	}
	ready := c.Now.Add(-a.readyAfter())
	return min(a.last, a.current(ready)-1)
}

// Progress identifies which periods of a space have begun, and which are expected. While its result and the keys of
// the key sets stay the same, the space has the same partitions. s may be nil.
func (c Calendar) Progress(s *Space) string {
	if s == nil {
		return ""
	}
	var b strings.Builder
	for i := range s.Dimensions {
		d := &s.Dimensions[i]
		if !d.IsTime() {
			continue
		}
		if a, err := c.axis(d); err != nil {
			fmt.Fprintf(&b, " %v", err)
		} else {
			fmt.Fprintf(&b, " %d %d", c.begun(&a), c.expected(&a))
		}
	}
	return b.String()
}

// readyAfter returns the time from the end of a period until the period is expected.
func (a *axis) readyAfter() time.Duration { return time.Duration(a.ReadyAfterSec) * time.Second }

// Interval returns the start and the end of the period with the given key. The end is exclusive.
func (c Calendar) Interval(d *Dimension, key string) (start, end time.Time, err error) {
	n, err := d.index(key)
	if err != nil {
		return start, end, err
	}
	a, err := c.axis(d)
	if err != nil {
		return start, end, err
	}
	start, end = a.interval(n)
	return start, end, nil
}

// horizon is the year up to which the offsets of a zone are checked.
const horizon = 2100

// CheckZone returns an error if the periods of d cannot exist in its zone. If the periods are hours or shorter, the
// zone's offset must be in whole minutes and may change only by whole periods. CheckZone also reports a start or an
// end that the zone skipped.
func (c Calendar) CheckZone(d *Dimension) error {
	if !d.IsTime() {
		return nil
	}
	a, err := c.axis(d)
	if err != nil {
		return err
	}
	if !d.clocked() {
		for _, n := range []int64{a.first, a.last} {
			if n != noEnd && !a.exists(n) {
				return fmt.Errorf("%[1]s %[2]s does not exist: the time zone %[3]s skipped it: write the %[1]s before or after it", d.singular(), a.key(n), a.zone)
			}
		}
		return nil
	}
	from, _ := a.interval(a.first)
	to := time.Date(horizon, 1, 1, 0, 0, 0, 0, time.UTC)
	if a.last != noEnd {
		_, to = a.interval(a.last)
	}
	_, before := from.In(a.zone).Zone()
	for t := from; ; {
		_, offset := t.In(a.zone).Zone()
		if offset%60 != 0 {
			return fmt.Errorf("the UTC offset of %s is not in whole minutes on %s: use daily partitions, a later start, or another time zone",
				a.zone, t.Format(layoutDay))
		}
		if change := int64(offset - before); change%d.period() != 0 {
			return fmt.Errorf("the UTC offset of %s changes by %d minutes on %s, which is not a multiple of %s: "+
				"use daily partitions, shorter periods, or another time zone", a.zone, max(change, -change)/60, t.Format(layoutDay), d.withArticle())
		}
		before = offset
		end := boundary(t.In(a.zone))
		if end.IsZero() || !end.Before(to) {
			return nil
		}
		t = end
	}
}

// values returns the keys of the existing periods from first to last.
func (a *axis) values(first, last int64) ([]string, error) {
	if last < first {
		return nil, nil
	}
	if last == noEnd {
		return nil, fmt.Errorf("the %s from %s on have no end: select a range", a.Kind.Plural(), a.key(first))
	}
	if last-first >= MaxListed {
		return nil, &TooManyError{fmt.Sprintf("%s to %s is %d %s; at most %d can be listed: use a later start or longer periods",
			a.key(first), a.key(last), last-first+1, a.Kind.Plural(), MaxListed)}
	}
	keys := make([]string, 0, last-first+1)
	for n := first; n <= last; n++ {
		if a.exists(n) {
			keys = append(keys, a.key(n))
		}
	}
	return keys, nil
}

func (a *axis) key(n int64) string { return a.value(n, a.zone, a.phase) }

// readable returns a calendar whose Now is the later of Now and ReadsAt. This time determines which periods have
// begun for a partition that reads all or the newest periods.
func (c Calendar) readable() Calendar {
	if c.ReadsAt.After(c.Now) {
		c.Now = c.ReadsAt
	}
	return c
}

// declaredValues returns the declared values of a dimension that exist by now: the periods that have begun, the
// values of a static dimension, or the keys of a key set.
func (c Calendar) declaredValues(d *Dimension) ([]string, error) {
	if !d.IsTime() {
		return c.keysOf(d), nil
	}
	a, err := c.axis(d)
	if err != nil {
		return nil, err
	}
	return a.values(a.first, c.begun(&a))
}

// expectedValues returns the declared values that should be materialized by now: the expected periods, the values of
// a static dimension, or the keys of a key set.
func (c Calendar) expectedValues(d *Dimension) ([]string, error) {
	if !d.IsTime() {
		return c.keysOf(d), nil
	}
	a, err := c.axis(d)
	if err != nil {
		return nil, err
	}
	return a.values(a.first, c.expected(&a))
}

// Newest returns the newest n expected periods of a time dimension, in order.
func (c Calendar) Newest(d *Dimension, n int) ([]string, error) {
	a, err := c.axis(d)
	if err != nil {
		return nil, err
	}
	last := c.expected(&a)
	return a.values(max(a.first, last-int64(n)+1), last)
}

// EmptySet returns the name of an empty key set of the space. It returns "" if every key set has keys. A space with an
// empty key set has no partitions.
func (c Calendar) EmptySet(s *Space) string {
	if s == nil {
		return ""
	}
	for i := range s.Dimensions {
		if d := &s.Dimensions[i]; d.Kind == Dynamic && len(c.keysOf(d)) == 0 {
			return d.Set
		}
	}
	return ""
}

func (c Calendar) keysOf(d *Dimension) []string {
	if d.Kind == Static {
		return d.Values
	}
	if c.Keys == nil {
		return nil
	}
	return c.Keys(d.Set)
}
