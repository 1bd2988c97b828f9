package space

import (
	"cmp"
	"slices"
)

// ByTime returns partition keys in the order of their periods. Keys with the same period are sorted as text. Keys
// that do not belong to the space come first.
func (s *Space) ByTime(keys []string) []string {
	at := -1
	if s != nil {
		at = slices.IndexFunc(s.Dimensions, func(d Dimension) bool { return d.IsTime() })
	}
	type keyed struct {
		key    string
		period int64
	}
	found := make([]keyed, len(keys))
	for i, key := range keys {
		found[i] = keyed{key, -1 << 63}
		if at < 0 {
			continue
		}
		if values, err := s.Parse(key); err == nil {
			if n, err := s.Dimensions[at].index(values[at]); err == nil {
				found[i].period = n
			}
		}
	}
	slices.SortStableFunc(found, func(a, b keyed) int { return cmp.Or(cmp.Compare(a.period, b.period), cmp.Compare(a.key, b.key)) })
	sorted := make([]string, len(keys))
	for i := range found {
		sorted[i] = found[i].key
	}
	return sorted
}
