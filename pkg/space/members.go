package space

import (
	"slices"
	"time"
)

// Members checks which partition keys a space declares at the time of a calendar. One Members serves for any number
// of keys.
type Members struct {
	space *Space
	axes  []axis
	sets  []map[string]bool // the values of each static dimension
	keys  [][]string        // the keys of each dynamic dimension, sorted
	// newest contains the last expected period of each time dimension. The field due is the time at which this period
	// became expected. A partition that was made at due or later is not early (see [Members.Early]), because all
	// expected periods were already expected at due.
	newest []int64
	due    time.Time
}

// Members returns the [Members] of a space. These include the declared partitions whose periods have not begun.
func (c Calendar) Members(s *Space) (*Members, error) {
	if s == nil {
		return &Members{}, nil
	}
	m := &Members{
		space: s, axes: make([]axis, len(s.Dimensions)), sets: make([]map[string]bool, len(s.Dimensions)),
		keys: make([][]string, len(s.Dimensions)), newest: make([]int64, len(s.Dimensions)),
	}
	for i := range s.Dimensions {
		d := &s.Dimensions[i]
		switch d.Kind {
		case Static:
			m.sets[i] = make(map[string]bool, len(d.Values))
			for _, key := range d.Values {
				m.sets[i][key] = true
			}
			continue
		case Dynamic:
			m.keys[i] = c.keysOf(d)
			continue
		case Every, Hourly, Daily, Weekly, Monthly, Yearly:
		}
		var err error
		if m.axes[i], err = c.axis(d); err != nil {
			return nil, err
		}
		m.newest[i] = c.expected(&m.axes[i])
		if a := &m.axes[i]; m.newest[i] >= a.first {
			_, end := a.interval(m.newest[i])
			m.due = end.Add(a.readyAfter())
		}
	}
	return m, nil
}

// Expects reports whether the space declares a partition that should be materialized by now, because its period is
// expected.
func (m *Members) Expects(key string) bool {
	values, err := m.space.Parse(key)
	if err != nil || !m.HasValues(values) {
		return false
	}
	for i, v := range values {
		if !m.space.Dimensions[i].IsTime() {
			continue
		}
		if n, err := m.axes[i].index(v); err != nil || n > m.newest[i] {
			return false
		}
	}
	return true
}

// Early reports whether a partition is expected by now, but was not yet expected when it was made, because its period
// had not ended or [Dimension.ReadyAfterSec] had not passed. Such a partition may lack data from the end of its
// period.
func (m *Members) Early(key string, made time.Time) bool {
	if m.space == nil || !made.Before(m.due) {
		return false
	}
	values, err := m.space.Parse(key)
	if err != nil {
		return false
	}
	for i, v := range values {
		if !m.space.Dimensions[i].IsTime() {
			continue
		}
		a := &m.axes[i]
		n, err := a.index(v)
		if err == nil && n <= m.newest[i] && n >= a.current(made.Add(-a.readyAfter())) {
			return true
		}
	}
	return false
}

// Has reports whether the space declares a partition key.
func (m *Members) Has(key string) bool {
	values, err := m.space.Parse(key)
	return err == nil && m.HasValues(values)
}

// HasValues reports whether the space declares the partition with these values.
func (m *Members) HasValues(values []string) bool {
	for i, v := range values {
		if !m.HasValue(i, v) {
			return false
		}
	}
	return true
}

// HasValue reports whether the i-th dimension declares a value.
func (m *Members) HasValue(i int, value string) bool {
	switch {
	case m.sets[i] != nil:
		return m.sets[i][value]
	case m.space.Dimensions[i].Kind == Dynamic:
		_, has := slices.BinarySearch(m.keys[i], value)
		return has
	}
	a := &m.axes[i]
	n, err := a.index(value)
	if err != nil || n < a.first || n > a.last || !a.exists(n) {
		return false
	}
	return !a.clocked() || a.key(n) == value
}
