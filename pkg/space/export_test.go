package space

import "time"

// Boundary is boundary.
var Boundary = boundary

// Intervals is like [Calendar.Interval], for many periods of one dimension. It reads the zone and the range of the
// dimension only once.
func (c Calendar) Intervals(d *Dimension) (func(key string) (start, end time.Time, err error), error) {
	a, err := c.axis(d)
	if err != nil {
		return nil, err
	}
	return func(key string) (start, end time.Time, err error) {
		n, err := d.index(key)
		if err != nil {
			return start, end, err
		}
		start, end = a.interval(n)
		return start, end, nil
	}, nil
}
