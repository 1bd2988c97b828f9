package calendar

// PackedVersion returns the version that the zone data names.
func PackedVersion() string { return unpacked().version }

// Resolve returns the instants of a local time in a zone that consists of the given spans. If the local time is in a
// gap, Resolve returns the index of the span after the gap. A span is given by its start and its offset.
func Resolve(spans [][2]int64, wall int64) (instants []int64, gap int) {
	z := &zone{}
	for _, s := range spans {
		z.spans = append(z.spans, span{s[0], s[1]})
	}
	l := z.resolve(wall)
	return l.instants[:l.n], l.gap
}
