package space

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Op is the operation of a mapping on one dimension.
type Op string

// The operations. An operation determines which values of an upstream dimension a partition reads.
const (
	Identity Op = "identity" // the same value
	All      Op = "all"      // every value
	Latest   Op = "latest"   // the newest materialized value
	Window   Op = "window"   // the periods from the offset From to the offset To, relative to the reader's period
	Coarsen  Op = "coarsen"  // the shorter periods that the reader's period contains
	Refine   Op = "refine"   // the longer period that contains the reader's period
	Values   Op = "values"   // the values that the mapping lists
)

// Map is a declared mapping: one operation for the whole asset, or separate operations for some dimensions.
// [Infer] infers the operations that a Map does not declare. The zero Map declares none.
type Map struct {
	// Op is [Identity], [All] or [Latest] for the whole asset, or "".
	Op Op `json:"op,omitempty"`
	// Dimensions are the operations on single dimensions, sorted by the name of the dimension.
	Dimensions []DimensionMap `json:"dimensions,omitempty"`
}

// DimensionMap is the declared operation on one dimension.
type DimensionMap struct {
	// Dimension is a dimension of the reader or, for [All] and [Latest], of the upstream asset.
	Dimension string `json:"dimension"`
	Op        Op     `json:"op"`
	// Of is the dimension of the upstream asset, if its name differs from Dimension.
	Of string `json:"of,omitempty"`
	// From and To are the offsets of a [Window].
	From int64 `json:"from,omitempty"`
	To   int64 `json:"to,omitempty"`
	// Values maps each value of the reader's dimension to the upstream values that a partition with this value reads.
	Values map[string][]string `json:"values,omitempty"`
}

// Mapping is a checked mapping between two spaces.
type Mapping struct {
	// Upstream is the space of the asset that is read. Downstream is the space of its reader. A space is nil if its
	// asset is not partitioned.
	Upstream, Downstream *Space
	// same means that each partition reads the upstream partition with its own key.
	same bool
	// every means that each partition reads all upstream partitions.
	every bool
	parts []mapPart // one part for each of Upstream.Dimensions, in the same order
	// Warning describes an effect of the mapping that may surprise its author. It is "" if the mapping has no such
	// effect.
	Warning string
}

// mapPart is the operation that determines the values of one upstream dimension.
type mapPart struct {
	DimensionMap
	reader int // the index of the reader's dimension that determines the values, or -1
}

// Infer checks a declared mapping, and infers the operations that it does not declare.
func Infer(upstream, reader *Space, m Map) (*Mapping, error) {
	out := &Mapping{Upstream: upstream, Downstream: reader}
	switch {
	case upstream == nil:
		if m.Op == Latest || len(m.Dimensions) > 0 {
			return nil, fmt.Errorf("the upstream asset has no partitions to map: remove map")
		}
		out.every = true
		return out, nil
	case m.Op == All:
		out.every = true
		return out, nil
	case m.Op == Identity && !sameSpace(upstream, reader):
		return nil, out.misfit("", "identity needs the same dimensions")
	}
	if reader == nil && m.Op == "" && len(m.Dimensions) == 0 {
		out.every = true
		return out, nil
	}
	if err := out.declared(m); err != nil {
		return nil, err
	}
	if err := out.infer(m); err != nil {
		return nil, err
	}
	out.same, out.every = sameSpace(upstream, reader), true
	for _, p := range out.parts {
		out.same = out.same && p.Op == Identity
		out.every = out.every && p.Op == All
	}
	return out, nil
}

// sameSpace reports whether two spaces have the same dimensions, whose ranges of declared values may differ.
func sameSpace(a, b *Space) bool {
	return a != nil && b != nil && slices.EqualFunc(a.Dimensions, b.Dimensions, func(a, b Dimension) bool {
		return a.Name == b.Name && sameKind(&a, &b)
	})
}

// sameKind reports whether equal keys of two dimensions have the same meaning.
func sameKind(a, b *Dimension) bool {
	return a.Kind == b.Kind && a.Minutes == b.Minutes && a.weekStart() == b.weekStart() &&
		(!a.clocked() || a.Zone() == b.Zone()) && (a.Kind != Dynamic || a.Set == b.Set)
}

// declared sets the parts whose operations are declared.
func (m *Mapping) declared(d Map) error {
	m.parts = make([]mapPart, len(m.Upstream.Dimensions))
	if d.Op == Latest {
		time := m.Upstream.Time()
		if time == nil {
			return m.misfit("", "latest needs an upstream dimension of time")
		}
		d.Dimensions = []DimensionMap{{Dimension: time.Name, Op: Latest}}
	}
	for _, dm := range d.Dimensions {
		reader := slices.IndexFunc(m.dimensions(), func(r Dimension) bool { return r.Name == dm.Dimension })
		up := m.upstreamOf(dm, reader)
		switch {
		case dm.Op == All || dm.Op == Latest:
			if up < 0 {
				return m.misfit("name "+oneOf(m.Upstream), "%s of %s: the upstream asset has no dimension %s", dm.Op, dm.Dimension, dm.Dimension)
			}
			reader = -1
			if dm.Op == Latest && !m.Upstream.Dimensions[up].IsTime() {
				return m.misfit("use all", "latest of %s: it is not a dimension of time", m.Upstream.Dimensions[up].Name)
			}
		case reader < 0:
			return m.misfit("name "+oneOf(m.Downstream), "the asset that reads it has no dimension %s", dm.Dimension)
		case up < 0:
			return m.misfit("write of: "+oneOf(m.Upstream), "%s of %s: no dimension of the upstream asset corresponds to it", dm.Op, dm.Dimension)
		default:
			if err := m.checkFit(dm, &m.Downstream.Dimensions[reader], &m.Upstream.Dimensions[up]); err != nil {
				return err
			}
		}
		if m.parts[up].Op != "" {
			return m.misfit("remove one", "dimension %s of the upstream asset is mapped twice", m.Upstream.Dimensions[up].Name)
		}
		m.parts[up] = mapPart{dm, reader}
	}
	return nil
}

// dimensions returns the dimensions of the reader.
func (m *Mapping) dimensions() []Dimension {
	if m.Downstream == nil {
		return nil
	}
	return m.Downstream.Dimensions
}

// upstreamOf returns the index of the upstream dimension that a declared operation maps, or -1. An operation maps the
// upstream dimension that it names. Otherwise, it maps the upstream dimension that has the name of the reader's
// dimension. If no upstream dimension has this name, the kind of the reader's dimension decides. A time dimension is
// mapped to the upstream time dimension. A static or dynamic dimension is mapped to the upstream static or dynamic
// dimension whose name the reader does not use, if there is exactly one.
func (m *Mapping) upstreamOf(dm DimensionMap, reader int) int {
	index := func(name string) int {
		return slices.IndexFunc(m.Upstream.Dimensions, func(d Dimension) bool { return d.Name == name })
	}
	if dm.Of != "" {
		return index(dm.Of)
	}
	if i := index(dm.Dimension); i >= 0 || reader < 0 {
		return i
	}
	if m.Downstream.Dimensions[reader].IsTime() {
		if t := m.Upstream.Time(); t != nil {
			return index(t.Name)
		}
		return -1
	}
	only := -1
	for i := range m.Upstream.Dimensions {
		if m.Upstream.Dimensions[i].IsTime() || m.Downstream.Dimension(m.Upstream.Dimensions[i].Name) != nil {
			continue
		}
		if only >= 0 {
			return -1
		}
		only = i
	}
	return only
}

// checkFit returns an error if an operation cannot map down, a dimension of the reader, to up, an upstream dimension.
func (m *Mapping) checkFit(dm DimensionMap, down, up *Dimension) error {
	switch dm.Op {
	case Identity:
		if !sameKind(down, up) && (down.IsTime() || up.IsTime()) {
			return m.misfit("", "identity of %s: the keys of %s differ from the keys of %s", dm.Dimension, up, down)
		}
	case Window:
		if !down.IsTime() || !sameKind(down, up) {
			return m.misfit("", "window of %s: both assets need a time dimension of the same kind", dm.Dimension)
		}
		if dm.From > dm.To {
			return m.misfit(fmt.Sprintf("write [%d, %d]", dm.To, dm.From), "window [%d, %d] of %s: the first offset must not be after the second",
				dm.From, dm.To, dm.Dimension)
		}
		if dm.To-dm.From >= MaxPeriods {
			return m.misfit("write a shorter window", "window [%d, %d] of %s: a window has at most %d periods", dm.From, dm.To, dm.Dimension, MaxPeriods)
		}
	case Coarsen:
		if err := checkNesting(up, down); err != nil {
			return m.misfit("", "coarsen of %s: %w", dm.Dimension, err)
		}
	case Refine:
		if err := checkNesting(down, up); err != nil {
			return m.misfit("", "refine of %s: %w", dm.Dimension, err)
		}
	case Values:
		if down.IsTime() || up.IsTime() {
			return m.misfit("", "values of %s: only static and dynamic dimensions can be mapped with values", dm.Dimension)
		}
		for value := range dm.Values {
			if down.Kind == Static && !slices.Contains(down.Values, value) {
				return m.misfit("write one of "+joinSome(down.Values), "values of %[1]s: %[2]s is not a value of %[1]s", dm.Dimension, value)
			}
			for _, v := range dm.Values[value] {
				if up.Kind == Static && !slices.Contains(up.Values, v) {
					return m.misfit("write one of "+joinSome(up.Values), "values of %s: %s is not a value of %s", dm.Dimension, v, up.Name)
				}
			}
		}
	case All, Latest:
	default:
		return fmt.Errorf("unknown mapping %q", dm.Op)
	}
	return nil
}

// Unmatched returns a value of a static dimension of the reader that the upstream dimension lacks, and the name of
// the upstream dimension. A partition with this value would have nothing to read. If there is no such value, both
// results are "".
func (m *Mapping) Unmatched() (value, dimension string) {
	for i, p := range m.parts {
		up := &m.Upstream.Dimensions[i]
		if p.Op != Identity || p.reader < 0 || up.Kind != Static || m.Downstream.Dimensions[p.reader].Kind != Static {
			continue
		}
		for _, v := range m.Downstream.Dimensions[p.reader].Values {
			if !slices.Contains(up.Values, v) {
				return v, up.Name
			}
		}
	}
	return "", ""
}

// rank returns the rank of a time dimension: the longer its periods, the greater the rank.
func rank(d *Dimension) int { return slices.Index(Kinds(), d.Kind) }

// checkNesting returns an error unless each period of fine lies within one period of coarse.
func checkNesting(fine, coarse *Dimension) error {
	switch {
	case !fine.IsTime() || !coarse.IsTime():
		return fmt.Errorf("it needs dimensions of time")
	case rank(fine) > rank(coarse) || fine.Kind == coarse.Kind && (fine.Kind != Every || coarse.Minutes%fine.Minutes != 0 || coarse.Minutes == fine.Minutes):
		return fmt.Errorf("%s has no shorter periods than %s", fine, coarse)
	case fine.Kind == Weekly:
		return fmt.Errorf("a week may lie in two %s", coarse.Kind.Plural())
	case fine.clocked() && fine.Zone() != coarse.Zone():
		return fmt.Errorf("the days of %s and of %s begin at different times: declare both in one time zone", fine.Zone(), coarse.Zone())
	}
	return nil
}

// infer sets the parts whose operations are not declared.
func (m *Mapping) infer(d Map) error {
	shared, open := false, false
	for i := range m.Upstream.Dimensions {
		up := &m.Upstream.Dimensions[i]
		if m.parts[i].Op != "" {
			shared = true
			continue
		}
		p := mapPart{DimensionMap{Dimension: up.Name, Op: All}, -1}
		for j := range m.dimensions() {
			down := &m.Downstream.Dimensions[j]
			switch {
			case m.taken(j):
			case down.Name == up.Name && sameKind(down, up):
				p = mapPart{DimensionMap{Dimension: down.Name, Op: Identity}, j}
			case down.Name == up.Name && (!up.IsTime() || !down.IsTime()):
				return m.sameName(up, down)
			case !up.IsTime() || !down.IsTime():
			case sameKind(down, up):
				p = mapPart{DimensionMap{Dimension: down.Name, Op: Identity}, j}
			case checkNesting(up, down) == nil:
				p = mapPart{DimensionMap{Dimension: down.Name, Op: Coarsen}, j}
			case checkNesting(down, up) == nil:
				p = mapPart{DimensionMap{Dimension: down.Name, Op: Refine}, j}
			default:
				if rank(up) <= rank(down) {
					return m.misfit("", "%w", checkNesting(up, down))
				}
				return m.misfit("", "%w", checkNesting(down, up))
			}
			if p.reader == j && up.IsTime() && up.Zone() != down.Zone() {
				m.Warning = fmt.Sprintf("%s in %s read the %s of the same date in %s, which begin at other times: use one time zone",
					down.Kind.Plural(), down.Zone(), up.Kind.Plural(), up.Zone())
			}
		}
		m.parts[i] = p
		shared = shared || p.reader >= 0
		open = true
	}
	if !shared && open && m.Downstream != nil && d.Op == "" && len(d.Dimensions) == 0 {
		return m.misfit("", "they share no dimension")
	}
	return nil
}

// sameName returns the error for two dimensions whose names are equal, although their keys have different meanings. The
// author must say whether equal keys belong together.
func (m *Mapping) sameName(up, down *Dimension) error {
	advice := "write map: {" + up.Name + ": all}"
	if !up.IsTime() && !down.IsTime() {
		advice = "write map: {" + up.Name + ": identity} or map: {" + up.Name + ": all}"
	}
	return m.misfit(advice, "both assets have a dimension %s, but the keys of %s differ from the keys of %s", up.Name, up, down)
}

// taken reports whether an operation already uses a dimension of the reader.
func (m *Mapping) taken(reader int) bool {
	return slices.ContainsFunc(m.parts, func(p mapPart) bool { return p.Op != "" && p.reader == reader })
}

// misfit returns an error that says why a mapping does not fit. The error names the two spaces and contains the advice.
// If advice is "", the error suggests mappings that would fit.
func (m *Mapping) misfit(advice, format string, args ...any) error {
	return fmt.Errorf("cannot map the partitions of the upstream asset, %s, to %s: %w: %s", m.Upstream, m.Downstream, fmt.Errorf(format, args...),
		cmp.Or(advice, m.fitting()))
}

// oneOf lists the names of a space's dimensions, for advice in an error: "date or region".
func oneOf(s *Space) string {
	if s == nil {
		return "no dimension"
	}
	names := make([]string, len(s.Dimensions))
	for i := range names {
		names[i] = s.Dimensions[i].Name
	}
	return strings.Join(names, " or ")
}

// fitting returns the advice of an error: mappings that would fit.
func (m *Mapping) fitting() string {
	fits := []string{"map: all"}
	if m.Upstream.Time() != nil {
		fits = append(fits, "map: latest")
	} else if len(m.Upstream.Dimensions) == 1 && m.Downstream != nil && len(m.Downstream.Dimensions) == 1 && !m.Downstream.Dimensions[0].IsTime() {
		fits = append(fits, "map: {"+m.Downstream.Dimensions[0].Name+": {values: {…: […]}}}")
	}
	return "write " + strings.Join(fits, " or ")
}

// ReadsAll reports whether every partition of the reader reads all partitions of the upstream asset.
func (m *Mapping) ReadsAll() bool { return m.every }

// ReadsSame reports whether every partition of the reader reads the upstream partition with its
// own key.
func (m *Mapping) ReadsSame() bool { return m.same }

// ReadsLatest reports whether partitions read only the newest materialized period of the upstream asset.
func (m *Mapping) ReadsLatest() bool {
	return slices.ContainsFunc(m.parts, func(p mapPart) bool { return p.Op == Latest })
}

// Operations returns the operation on each upstream dimension, in the order of the dimensions. It returns nil if
// every partition of the reader reads all upstream partitions.
func (m *Mapping) Operations() []DimensionMap {
	if m.every {
		return nil
	}
	operations := make([]DimensionMap, len(m.parts))
	for i, p := range m.parts {
		operations[i] = p.DimensionMap
		operations[i].Of = m.Upstream.Dimensions[i].Name
	}
	return operations
}

// Of returns the operation on an upstream dimension. If every partition reads all upstream partitions, the mapping has
// no operation on the dimension. In this case, Of returns [All] and false.
func (m *Mapping) Of(upstream string) (DimensionMap, bool) {
	for i := range m.parts {
		if m.Upstream.Dimensions[i].Name == upstream {
			return m.parts[i].DimensionMap, true
		}
	}
	return DimensionMap{Op: All}, false
}

// String formats the mapping: "date: identity, hour: coarsen".
func (m *Mapping) String() string {
	switch {
	case m.every:
		return string(All)
	case m.same:
		return string(Identity)
	}
	texts := make([]string, len(m.parts))
	for i, p := range m.parts {
		text := string(p.Op)
		if p.Op == Window {
			text = fmt.Sprintf("window [%d, %d]", p.From, p.To)
		}
		texts[i] = m.Upstream.Dimensions[i].Name + ": " + text
	}
	return strings.Join(texts, ", ")
}
