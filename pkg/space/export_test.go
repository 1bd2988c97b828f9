package space

import "time"

// Boundary is boundary.
var Boundary = boundary

// Intervals returns a function that is like [Calendar.Interval] for one dimension. It computes the zone and the range
// of the dimension only once.
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
