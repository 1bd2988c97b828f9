package space

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Reader computes the images of a mapping: the image of a partition is the set of upstream partitions that it reads.
// One Reader can compute the images of any number of partitions. In this file, the reader is the asset that reads the
// upstream asset.
type Reader struct {
	*Mapping
	calendar Calendar
	up, down []axis
	members  *Members // the members of the upstream space
	keys     [][]string
}

// Reader returns a [Reader] for a mapping at the time of a calendar.
func (c Calendar) Reader(m *Mapping) (*Reader, error) {
	r := &Reader{Mapping: m, calendar: c}
	var err error
	if r.up, err = c.axes(m.Upstream); err != nil {
		return nil, err
	}
	if r.down, err = c.axes(m.Downstream); err != nil {
		return nil, err
	}
	if r.members, err = c.Members(m.Upstream); err != nil {
		return nil, err
	}
	r.keys = make([][]string, len(m.parts))
	for i, p := range m.parts {
		if p.Op == All {
			if r.keys[i], err = c.readable().declaredValues(&m.Upstream.Dimensions[i]); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func (c Calendar) axes(s *Space) ([]axis, error) {
	if s == nil {
		return nil, nil
	}
	axes := make([]axis, len(s.Dimensions))
	for i := range s.Dimensions {
		axes[i] = axis{Dimension: &s.Dimensions[i]}
		if !s.Dimensions[i].IsTime() {
			continue
		}
		var err error
		if axes[i], err = c.axis(&s.Dimensions[i]); err != nil {
			return nil, err
		}
	}
	return axes, nil
}

// Image contains the upstream partitions that a partition reads.
type Image struct {
	// All means that the partition reads every partition of the upstream asset. In this case, Keys is empty.
	All bool
	// Keys are the partition keys, in order. The upstream asset declares them, but their periods need not have begun.
	Keys []string
	// Latest means that the partition reads only some of Keys: those whose period is the newest materialized one.
	Latest bool
	// Undeclared is the number of values that the mapping yields but that the upstream asset does not declare.
	Undeclared int
	// OnlyUndeclared means that, in at least one upstream dimension, the mapping yields only values that the upstream
	// asset does not declare. So the partition will never have anything to read.
	OnlyUndeclared bool
}

// KeyRead names keys of a key set that determine what a partition reads. If one of these keys is removed or added
// again, the partition reads other data.
type KeyRead struct {
	Set string
	// Keys is nil if all keys that the set has or has had determine what the partition reads.
	Keys []string
}

// KeyReads returns the keys of key sets that determine what a partition reads. It omits keys of dimensions that the
// reader shares with the upstream asset: if such a key is removed, the partition of the reader no longer exists,
// either.
func (r *Reader) KeyReads(key string) ([]KeyRead, error) {
	var reads []KeyRead
	if r.Upstream == nil || r.same {
		return nil, nil
	}
	var values []string
	for i := range r.Upstream.Dimensions {
		up := &r.Upstream.Dimensions[i]
		if up.Kind != Dynamic {
			continue
		}
		if r.every || r.parts[i].Op == All {
			reads = append(reads, KeyRead{Set: up.Set})
			continue
		}
		if down := &r.Downstream.Dimensions[r.parts[i].reader]; r.parts[i].Op == Identity && sameKind(down, up) {
			continue
		}
		if values == nil {
			var err error
			if values, err = r.Downstream.Parse(key); err != nil {
				return nil, err
			}
		}
		list, err := r.values(i, values)
		if err != nil {
			return nil, err
		}
		reads = append(reads, KeyRead{up.Set, append([]string{}, list...)})
	}
	return reads, nil
}

// MaxImage is the maximum number of partitions that one partition may read through a mapping other than
// [All].
const MaxImage = 100_000

// Same reports whether every partition reads at most the upstream partition with its own key. A partition reads nothing
// if the upstream asset does not declare its key.
func (r *Reader) Same() bool { return r.same && !r.every }

// Image returns the upstream partitions that the reader's partition with the given key reads.
func (r *Reader) Image(key string) (Image, error) {
	if r.every {
		return Image{All: true}, nil
	}
	if r.same {
		if !r.members.Has(key) {
			return Image{Undeclared: 1, OnlyUndeclared: true}, nil
		}
		return Image{Keys: []string{key}}, nil
	}
	values, err := r.Downstream.Parse(key)
	if err != nil {
		return Image{}, err
	}
	image := Image{Latest: r.ReadsLatest()}
	lists := make([][]string, len(r.parts))
	for i := range r.parts {
		list, err := r.values(i, values)
		if err != nil {
			return Image{}, err
		}
		lists[i] = slices.DeleteFunc(slices.Clone(list), func(v string) bool { return !r.members.HasValue(i, v) })
		image.Undeclared += len(list) - len(lists[i])
		image.OnlyUndeclared = image.OnlyUndeclared || len(list) > 0 && len(lists[i]) == 0
	}
	if image.Keys, err = r.Upstream.Product(lists, MaxImage); err != nil {
		return Image{}, fmt.Errorf("partition %s reads %w", key, err)
	}
	return image, nil
}

// values returns the values of the i-th upstream dimension that a partition reads. The values may be undeclared.
func (r *Reader) values(i int, values []string) ([]string, error) {
	p, up := &r.parts[i], &r.up[i]
	switch p.Op {
	case All:
		return r.keys[i], nil
	case Latest:
		if r.keys[i] == nil {
			var err error
			if r.keys[i], err = r.calendar.readable().declaredValues(up.Dimension); err != nil {
				return nil, err
			}
		}
		return r.keys[i], nil
	case Identity:
		return []string{values[p.reader]}, nil
	case Values:
		return p.Values[values[p.reader]], nil
	case Window:
		n, err := up.index(values[p.reader])
		if err != nil {
			return nil, err
		}
		return up.values(n+p.From, n+p.To)
	case Refine:
		at, err := r.down[p.reader].civilStart(values[p.reader])
		if err != nil {
			return nil, err
		}
		return r.refined(up, at, values[p.reader])
	default: // Coarsen
		return r.coarsened(up, &r.down[p.reader], values[p.reader])
	}
}

// refined returns the key of the longer upstream period that contains a period of the reader.
func (r *Reader) refined(up *axis, at time.Time, key string) ([]string, error) {
	if !up.clocked() {
		return []string{up.key(up.ordinal(at))}, nil
	}
	t, err := time.Parse(layoutHour, key)
	if err != nil {
		return nil, err
	}
	return []string{up.key(floorDiv(t.Unix()-up.phase, up.period()))}, nil
}

// coarsened returns the keys of the shorter upstream periods that lie within a period of the reader.
func (r *Reader) coarsened(up, down *axis, key string) ([]string, error) {
	n, err := down.index(key)
	if err != nil {
		return nil, err
	}
	if down.clocked() {
		from, to := down.interval(n)
		return up.values(floorDiv(from.Unix()-up.phase, up.period()), floorDiv(to.Unix()-1-up.phase, up.period()))
	}
	if !up.clocked() {
		first, last := up.within(civil{from: down.startOf(n), to: down.startOf(n + 1)})
		return up.values(first, last)
	}
	// If clocks are set back across midnight, the last hours of a day come after the first hours of the next day. So
	// list the periods of a longer interval, and select those whose keys have the right date.
	const hours = 3 * 3600
	from, to := firstInstant(down.startOf(n), up.zone).Unix()-hours, firstInstant(down.startOf(n+1), up.zone).Unix()+hours
	all, err := up.values(floorDiv(from-up.phase, up.period()), floorDiv(to-up.phase, up.period()))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(k string) bool {
		at, err := up.civilStart(k)
		return err != nil || down.ordinal(at) != n
	}), nil
}

// Reads reports whether the reader's partition with the key down reads the upstream partition with the key up. Image
// and Preimage must agree with it. For [Latest], Reads reports whether down would read up if up were the newest
// partition.
func (r *Reader) Reads(down, up string) (bool, error) {
	ups, err := r.Upstream.Parse(up)
	if err != nil || !r.members.HasValues(ups) {
		return false, err
	}
	if r.every {
		return true, nil
	}
	downs, err := r.Downstream.Parse(down)
	if err != nil {
		return false, err
	}
	for i := range r.parts {
		back, limited, err := r.readerValues(i, ups[i])
		if err != nil {
			return false, err
		}
		if limited && !slices.Contains(back, downs[r.parts[i].reader]) {
			return false, nil
		}
	}
	return true, nil
}

// Newest finds the newest period for which one of the upstream partitions in keys exists. It returns all partitions
// in keys that belong to this period, whether they exist or not.
func (r *Reader) Newest(keys []string, exists func(key string) bool) []string {
	best := int64(math.MinInt64)
	for _, key := range keys {
		if !exists(key) {
			continue
		}
		if n, ok := r.period(key); ok {
			best = max(best, n)
		}
	}
	var newest []string
	for _, key := range keys {
		if n, ok := r.period(key); ok && n == best {
			newest = append(newest, key)
		}
	}
	return newest
}

// period returns the number of the period of an upstream partition. It returns false if the partition has no period.
func (r *Reader) period(key string) (n int64, ok bool) {
	values, err := r.Upstream.Parse(key)
	if err != nil {
		return 0, false
	}
	for i := range r.up {
		if r.up[i].IsTime() {
			n, err = r.up[i].index(values[i])
			return n, err == nil
		}
	}
	return 0, false
}

// Expects reports whether an upstream partition should be materialized by now.
func (r *Reader) Expects(key string) bool { return r.members.Expects(key) }

// Begun reports whether the period of an upstream partition has begun. It also returns true if the
// partition has no period, or if the calendar allows future periods.
func (r *Reader) Begun(key string) bool { return r.calendar.hasBegun(r.Upstream, r.up, key) }

// ReaderBegun is like [Reader.Begun] for a partition of the reader.
func (r *Reader) ReaderBegun(key string) bool { return r.calendar.hasBegun(r.Downstream, r.down, key) }

// hasBegun reports whether the period of a partition has begun. axes are the axes of the space s.
func (c Calendar) hasBegun(s *Space, axes []axis, key string) bool {
	values, err := s.Parse(key)
	if err != nil {
		return false
	}
	for i := range axes {
		if !axes[i].IsTime() || c.Zone == nil || c.Future {
			continue
		}
		if n, err := axes[i].index(values[i]); err != nil || n > axes[i].current(c.Now) {
			return false
		}
	}
	return true
}

// ReadsWindow reports whether partitions read upstream periods through a [Window].
func (r *Reader) ReadsWindow() bool {
	return slices.ContainsFunc(r.parts, func(p mapPart) bool { return p.Op == Window })
}

// Clipped reports whether the window of a partition begins before the declared start of the upstream asset, or ends
// after its declared end.
func (r *Reader) Clipped(key string) (start, end bool, err error) {
	values, err := r.Downstream.Parse(key)
	if err != nil {
		return false, false, err
	}
	for i := range r.parts {
		p, up := &r.parts[i], &r.up[i]
		if p.Op != Window {
			continue
		}
		n, err := up.index(values[p.reader])
		if err != nil {
			return false, false, err
		}
		start, end = start || n+p.From < up.first, end || n+p.To > up.last
	}
	return start, end, nil
}

// OmitsFuture reports whether the mapping omits upstream periods that have not begun. A mapping does so if it reads
// all periods or the newest one.
func (r *Reader) OmitsFuture() bool {
	for i := range r.parts {
		if op := r.parts[i].Op; !r.every && r.up[i].IsTime() && (op == All || op == Latest) {
			return true
		}
	}
	return false
}

// BeginsAfter reports whether the period of an upstream partition begins after the given time. It returns false if the
// partition has no period.
func (r *Reader) BeginsAfter(key string, at time.Time) bool {
	values, err := r.Upstream.Parse(key)
	if err != nil || r.calendar.Zone == nil {
		return false
	}
	for i := range r.up {
		if !r.up[i].IsTime() {
			continue
		}
		if n, err := r.up[i].index(values[i]); err == nil && n > r.up[i].current(at) {
			return true
		}
	}
	return false
}

// Has reports whether the upstream asset declares a partition.
func (r *Reader) Has(key string) bool { return r.members.Has(key) }

// Preimage returns the partitions of the reader that read an upstream partition. It returns only declared
// partitions that have begun. If every partition of the reader reads the upstream partition, Preimage returns no
// keys, and all is true.
func (r *Reader) Preimage(key string) (keys []string, all bool, err error) {
	ups, err := r.Upstream.Parse(key)
	if err != nil {
		return nil, false, err
	}
	if r.every || r.Downstream == nil {
		return nil, true, nil
	}
	members, err := r.calendar.Members(r.Downstream)
	if err != nil {
		return nil, false, err
	}
	lists := make([][]string, len(r.down))
	done := make([]bool, len(r.down))
	for i := range r.parts {
		list, limited, err := r.readerValues(i, ups[i])
		if err != nil {
			return nil, false, err
		}
		if limited {
			j := r.parts[i].reader
			lists[j] = slices.DeleteFunc(slices.Clone(list), func(v string) bool { return !members.HasValue(j, v) })
			done[j] = true
		}
	}
	for j := range lists {
		if done[j] {
			continue
		}
		if lists[j], err = r.calendar.declaredValues(r.down[j].Dimension); err != nil {
			return nil, false, err
		}
	}
	keys, err = r.Downstream.Product(lists, MaxImage)
	return keys, false, err
}

// readerValues inverts the operation on the i-th upstream dimension. It returns the values of the reader's dimension
// that read the given upstream value. If all partitions of the reader read this value, limited is false.
func (r *Reader) readerValues(i int, value string) (values []string, limited bool, err error) {
	p := &r.parts[i]
	switch p.Op {
	case All, Latest:
		return nil, false, nil
	case Identity:
		return []string{value}, true, nil
	case Values:
		for down, ups := range p.Values {
			if slices.Contains(ups, value) {
				values = append(values, down)
			}
		}
		slices.Sort(values)
		return values, true, nil
	default:
		values, err = r.backInTime(p, &r.up[i], &r.down[p.reader], value)
		return values, true, err
	}
}

// backInTime returns the periods of the reader that read an upstream period.
func (r *Reader) backInTime(p *mapPart, up, down *axis, value string) ([]string, error) {
	switch p.Op {
	case Window:
		n, err := up.index(value)
		if err != nil {
			return nil, err
		}
		return down.values(n-p.To, n-p.From)
	case Coarsen:
		at, err := up.civilStart(value)
		if err != nil {
			return nil, err
		}
		return r.refined(down, at, value)
	default: // Refine
		return r.coarsened(down, up, value)
	}
}
