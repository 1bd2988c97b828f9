package space

import (
	"fmt"
	"sort"
	"time"
)

// Deadlines computes the deadlines of the periods of a time dimension.
type Deadlines struct {
	axis axis
	due  func(start, end time.Time) time.Time
}

// Deadlines returns the deadlines of a time dimension. due computes the deadline of a period. A later period must not
// have an earlier deadline.
func (c Calendar) Deadlines(d *Dimension, due func(start, end time.Time) time.Time) (*Deadlines, error) {
	a, err := c.axis(d)
	if err != nil {
		return nil, err
	}
	return &Deadlines{a, due}, nil
}

// ahead is the number of periods after the current one that First examines, because their deadlines may already have
// passed, too.
const ahead = 2

// First returns the first declared period whose deadline is later than after, and this deadline. ok is false if no such
// period exists.
func (d *Deadlines) First(after time.Time) (key string, at time.Time, ok bool) {
	lo, hi := d.axis.first, min(d.axis.last, d.axis.current(after)+ahead)
	if lo > hi {
		return d.firstFrom(lo)
	}
	n := sort.Search(int(hi-lo+1), func(i int) bool { return d.at(lo + int64(i)).After(after) })
	return d.firstFrom(lo + int64(n))
}

// Next returns the declared period after the period with the given key, and the deadline of this next period.
func (d *Deadlines) Next(key string) (next string, at time.Time, ok bool, err error) {
	n, err := d.axis.index(key)
	if err != nil {
		return "", time.Time{}, false, fmt.Errorf("dimension %s: %w", d.axis.Name, err)
	}
	if d.axis.clocked() { // index ignores the phase of the axis
		start, err := time.Parse(layoutHour, key)
		if err != nil {
			return "", time.Time{}, false, d.axis.notAPeriod(key)
		}
		n = d.axis.current(start)
	}
	next, at, ok = d.firstFrom(n + 1)
	return next, at, ok, nil
}

func (d *Deadlines) at(n int64) time.Time { return d.due(d.axis.interval(n)) }

// firstFrom returns the first declared period that exists and whose number is at least n, and its deadline.
func (d *Deadlines) firstFrom(n int64) (key string, at time.Time, ok bool) {
	for ; n <= d.axis.last; n++ {
		if d.axis.exists(n) {
			return d.axis.key(n), d.at(n), true
		}
	}
	return "", time.Time{}, false
}
