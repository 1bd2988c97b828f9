package staleness

import (
	"fmt"
	"iter"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Status is the status of a partition, such as fresh.
type Status string

// Statuses.
const (
	Missing Status = "missing" // expected, but never materialized
	Fresh   Status = "fresh"
	Stale   Status = "stale"
	// Unexpected is the status of a partition that is neither materialized nor expected, because its period has not
	// ended or the asset does not declare it.
	Unexpected Status = "unexpected"
)

// Data provides the rows and settings that an evaluation reads.
type Data struct {
	// Rows yields the rows of an asset's partitions in the order of their keys.
	Rows func(asset ids.AssetKey) iter.Seq2[*state.Partition, error]
	// Row returns the row of a partition, or nil if the partition has none.
	Row func(asset ids.AssetKey, partition string) (*state.Partition, error)
	// Version is like Row, but need not set columns that no evaluation compares. This saves reads. If Version is nil,
	// Row is called instead.
	Version func(asset ids.AssetKey, partition string) (*state.Partition, error)
	// Accepted returns other fingerprints that are accepted as an asset's current code. If it is nil, no others are
	// accepted.
	Accepted func(asset ids.AssetKey, code string) ([]string, error)
	// KeyChanges returns the fold sequence number at which each key of a key set was last removed or added again. Nil:
	// no key was ever removed.
	KeyChanges func(set string) map[string]int64
	// Marks yields the marks of an asset's outputs. If it is nil, no output is marked. Rows, Row and Version must not
	// return outputs that are marked as missing.
	Marks func(asset ids.AssetKey) iter.Seq[*state.Mark]
	// Calendar decides which partitions are expected.
	Calendar plan.Calendar
}

// Partition is the key of a partition, and its status.
type Partition struct {
	Key    string
	Status Status
}

// Counts are the numbers of an asset's partitions by status.
type Counts struct {
	Fresh   int `json:"fresh"`
	Stale   int `json:"stale"`
	Missing int `json:"missing"`
}

// Evaluation determines the statuses of partitions in one state. It reads the rows of an asset only once, and keeps
// about 80 bytes of each row. It is not safe for concurrent use.
type Evaluation struct {
	graph   *plan.Graph
	data    Data
	readers *plan.Readers
	assets  map[ids.AssetKey]*evaluated
	texts   texts
	sets    map[string]keyChanges
	// incomplete allows partitions to run although an expected input is missing.
	incomplete bool
	// within contains the partitions that Restrict allows. If it is nil, all partitions are allowed.
	within map[ids.AssetKey]*within
	// unlisted are the errors of assets with too many partitions.
	unlisted []error
	// impossible counts the partitions that choose omitted because they can never be materialized.
	impossible map[ids.AssetKey]int
}

// evaluated is an asset, together with the rows of the partitions that it declares.
type evaluated struct {
	asset   *plan.Asset
	members *space.Members
	// If loaded is true, columns and newest cover all partitions. Otherwise, lookedUp contains the cells that have been
	// looked up so far; a nil cell means that the partition is not materialized.
	columns
	newest   newest
	loaded   bool
	lookedUp map[string]*cell
	// marks are the marks by partition. hidden are the marks of outputs that are marked as missing. An output that
	// replaces a hidden output is not hidden.
	marks  map[string][]*state.Mark
	hidden map[string]*state.Mark
	// codes[c] lists the fingerprints that are accepted as the current code of partitions with the [plan.Clip] c. A
	// fingerprint is stored as its number in the field texts of the Evaluation. codes is nil if the current code is
	// unknown.
	codes [][]uint32
	// windows are the dependencies that the asset reads through windows.
	windows plan.Windows
	// expected are the keys of the partitions that the asset should have, sorted. listed means that expected is
	// computed.
	expected []string
	listed   bool
}

// New returns an evaluation of the assets of a graph.
func New(g *plan.Graph, d Data) *Evaluation {
	if d.Version == nil {
		d.Version = d.Row
	}
	return &Evaluation{graph: g, data: d, readers: g.Readers(d.Calendar), assets: map[ids.AssetKey]*evaluated{}, texts: texts{}, sets: map[string]keyChanges{}, impossible: map[ids.AssetKey]int{}}
}

// AllowIncomplete sets whether [Evaluation.ToRun] and [Evaluation.ToMake] also return partitions that lack
// an expected input.
func (e *Evaluation) AllowIncomplete(allow bool) { e.incomplete = allow }

func (e *Evaluation) asset(key ids.AssetKey) (*evaluated, error) {
	if known := e.assets[key]; known != nil {
		return known, nil
	}
	asset, ok := e.graph.Asset(key)
	if !ok {
		return nil, fmt.Errorf("evaluate asset %s: it is not declared", key)
	}
	members, err := e.data.Calendar.Members(asset.Partitions)
	if err != nil {
		return nil, fmt.Errorf("evaluate asset %s: %w", key, err)
	}
	a := &evaluated{asset: asset, members: members, lookedUp: map[string]*cell{}}
	if asset.Code != "" {
		if err := e.accept(a); err != nil {
			return nil, err
		}
	}
	if e.data.Marks != nil {
		a.note(e.data.Marks(key))
	}
	e.assets[key] = a
	return a, nil
}

// accept sets a.windows and a.codes, the fingerprints that are accepted as the current code.
func (e *Evaluation) accept(a *evaluated) (err error) {
	if a.windows, err = e.readers.Windows(a.asset); err != nil {
		return err
	}
	codes := []string{a.asset.Code}
	if e.data.Accepted != nil {
		more, err := e.data.Accepted(a.asset.Key, a.asset.Code)
		if err != nil {
			return err
		}
		codes = append(codes, more...)
	}
	for _, code := range codes {
		for clip, made := range a.windows.Codes(code) {
			if clip == len(a.codes) {
				a.codes = append(a.codes, nil)
			}
			for _, code := range made {
				a.codes[clip] = append(a.codes[clip], e.texts.number(code))
			}
		}
	}
	return nil
}

// note records the marks of an asset.
func (a *evaluated) note(marks iter.Seq[*state.Mark]) {
	for m := range marks {
		if a.marks == nil {
			a.marks, a.hidden = map[string][]*state.Mark{}, map[string]*state.Mark{}
		}
		a.marks[m.PartitionKey] = append(a.marks[m.PartitionKey], m)
		if old := a.hidden[m.PartitionKey]; m.Mark == event.MarkMissing && a.members.Has(m.PartitionKey) && (old == nil || old.MarkedSeq < m.MarkedSeq) {
			a.hidden[m.PartitionKey] = m
		}
	}
}

// markOf returns the mark of an output, or nil if the output has none.
func (a *evaluated) markOf(row *state.Partition) *state.Mark {
	for _, m := range a.marks[row.PartitionKey] {
		if m.MaterializationID == row.MaterializationID {
			return m
		}
	}
	return nil
}

// load reads all rows of an asset.
func (e *Evaluation) load(key ids.AssetKey) (*evaluated, error) {
	a, err := e.asset(key)
	if err != nil || a.loaded {
		return a, err
	}
	expected, _ := e.expected(a) // the asset declares these keys, so there is no need to parse millions of them
	for row, err := range e.data.Rows(key) {
		if err != nil {
			return nil, fmt.Errorf("evaluate asset %s: %w", key, err)
		}
		for len(expected) > 0 && expected[0] < row.PartitionKey {
			expected = expected[1:]
		}
		if (len(expected) == 0 || expected[0] != row.PartitionKey) && !a.members.Has(row.PartitionKey) {
			continue
		}
		c := e.texts.cellOf(row, a.markOf(row))
		delete(a.hidden, row.PartitionKey)
		a.keys, a.cells = append(a.keys, row.PartitionKey), append(a.cells, c)
		a.newest.add(&c)
	}
	for _, m := range a.hidden {
		a.newest.add(&cell{version: m.MarkedSeq})
	}
	a.loaded = true
	return a, nil
}

// cell returns the cell of a partition, or nil if the partition is not materialized. Unless all rows of the asset are
// loaded, it reads one row.
func (e *Evaluation) cell(a *evaluated, partition string) (*cell, error) {
	if a.loaded {
		return a.cell(partition), nil
	}
	if known, ok := a.lookedUp[partition]; ok {
		return known, nil
	}
	row, err := e.data.Version(a.asset.Key, partition)
	if err != nil {
		return nil, fmt.Errorf("evaluate asset %s: %w", a.asset.Key, err)
	}
	a.lookedUp[partition] = nil
	if row != nil && a.members.Has(partition) {
		c := e.texts.cellOf(row, a.markOf(row))
		delete(a.hidden, partition)
		a.lookedUp[partition] = &c
	}
	return a.lookedUp[partition], nil
}

// version returns a cell with a version. Readers of the partition are stale if they have not read this version. It is
// the version of the visible output or, if a mark hides the output, the version of the mark. version returns nil if the
// partition has neither an output nor a mark.
func (e *Evaluation) version(a *evaluated, partition string) (*cell, error) {
	q, err := e.cell(a, partition)
	if m := a.hidden[partition]; q == nil && m != nil {
		return &cell{version: m.MarkedSeq}, err
	}
	return q, err
}

// expects reports whether the asset should have a partition. It does not list the asset's partitions,
// because there may be millions.
func (a *evaluated) expects(partition string) bool {
	if a.asset.Partitions == nil {
		return partition == ""
	}
	return a.members.Expects(partition)
}

// changed reports whether the code that made a partition differs from the current code. It returns false if either
// code is unknown.
func (a *evaluated) changed(partition string, c *cell) (bool, error) {
	if a.codes == nil || c.code == 0 {
		return false, nil
	}
	clip, err := a.windows.Clip(partition)
	return !slices.Contains(a.codes[clip], c.code), err
}

// early reports whether a partition is expected by now, but was not yet expected when its run was requested: see
// [space.Members.Early].
func (a *evaluated) early(partition string, p *cell) bool {
	return p.made != 0 && a.members.Early(partition, p.made.Time())
}

// status returns the status of a materialized partition.
func (e *Evaluation) status(a *evaluated, partition string, p *cell) (Status, error) {
	if changed, err := a.changed(partition, p); err != nil || changed || p.marked || a.early(partition, p) {
		return Stale, err
	}
	for _, dep := range a.asset.Deps {
		up, err := e.asset(dep)
		if err != nil {
			return "", err
		}
		stale, err := e.newerInput(a, partition, p, up)
		if err != nil {
			return "", err
		}
		set, err := e.changedSet(a.asset, partition, p.inputs, up)
		if err != nil {
			return "", err
		}
		if stale || set != "" {
			return Stale, nil
		}
	}
	return Fresh, nil
}

// newerInput reports whether a partition is stale because of a partition of an upstream asset that it reads.
func (e *Evaluation) newerInput(a *evaluated, partition string, p *cell, up *evaluated) (bool, error) {
	images, err := e.readers.Of(a.asset.Key, up.asset.Key)
	if err != nil {
		return false, err
	}
	if images.Same() { // the most common mapping: only the partition with the same key
		q, err := e.version(up, partition)
		return q != nil && newer(p, q), err
	}
	keys, all, err := e.image(a.asset, partition, up, nil)
	if err != nil {
		return false, err
	}
	if all {
		if up, err = e.load(up.asset.Key); err != nil {
			return false, err
		}
		return up.newest.newerThan(p), nil
	}
	hidden, err := e.hiddenLatest(images, partition, up, keys)
	if err != nil {
		return false, fmt.Errorf("partition %s of asset %s: %w", partition, a.asset.Key, err)
	}
	omits := images.OmitsFuture()
	for _, key := range slices.Concat(keys, hidden) {
		if q, err := e.version(up, key); err != nil || q != nil && (newer(p, q) || omits && omitted(images, key, p, q)) {
			return err == nil, err
		}
	}
	return false, nil
}

// omitted reports whether p did not read q because the period of q had not begun when the run that planned p was
// requested. q may have been visible even then, if it was made before its period began.
func omitted(images *space.Reader, key string, p, q *cell) bool {
	if q.ahead == aheadUnknown {
		if q.ahead = aheadNo; q.made != 0 && images.BeginsAfter(key, q.made.Time()) {
			q.ahead = aheadYes
		}
	}
	return q.ahead == aheadYes && images.BeginsAfter(key, p.planned.Time())
}

// image returns the partitions of an upstream asset that a partition would read if the partitions in the parameter
// chosen were already materialized. If all is true, it would read every partition that the upstream asset declares.
func (e *Evaluation) image(reader *plan.Asset, partition string, up *evaluated, chosen []string) (keys []string, all bool, err error) {
	images, err := e.readers.Of(reader.Key, up.asset.Key)
	if err != nil {
		return nil, false, err
	}
	image, err := images.Image(partition)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("partition %s of asset %s: %w", partition, reader.Key, err)
	case !image.Latest:
		return image.Keys, image.All, nil
	}
	if up, err = e.load(up.asset.Key); err != nil {
		return nil, false, err
	}
	return images.Newest(image.Keys, func(key string) bool { return up.has(key) || has(chosen, key) }), false, nil
}

// hiddenLatest returns the hidden partitions that a reader with the mapping `latest` would read if no mark hid them.
// The parameter newest contains the partitions that it actually reads.
func (e *Evaluation) hiddenLatest(images *space.Reader, partition string, up *evaluated, newest []string) (keys []string, err error) {
	if len(up.hidden) == 0 {
		return nil, nil
	}
	image, err := images.Image(partition)
	if err != nil || !image.Latest {
		return nil, err
	}
	for _, key := range image.Keys {
		if up.hidden[key] != nil && slices.Contains(images.Newest(append(slices.Clone(newest), key), func(string) bool { return true }), key) {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// has reports whether a sorted list contains a key.
func has(sorted []string, key string) bool {
	_, found := slices.BinarySearch(sorted, key)
	return found
}

// expected returns the keys of the partitions that an asset should have, sorted.
func (e *Evaluation) expected(a *evaluated) ([]string, error) {
	if a.listed {
		return a.expected, nil
	}
	keys, err := e.data.Calendar.Expected(a.asset.Partitions, space.MaxListed)
	if err != nil {
		return nil, fmt.Errorf("list partitions of asset %s: %w", a.asset.Key, err)
	}
	slices.Sort(keys)
	a.expected, a.listed = keys, true
	return keys, nil
}

// Load reads all rows of an asset and of its upstream assets, so that later calls need not read them one by one.
func (e *Evaluation) Load(key ids.AssetKey) error {
	a, err := e.load(key)
	if err != nil {
		return err
	}
	for _, dep := range a.asset.Deps {
		if _, err := e.load(dep); err != nil {
			return err
		}
	}
	return nil
}

// Partitions returns the expected and the materialized partitions of an asset, sorted by key.
func (e *Evaluation) Partitions(key ids.AssetKey) ([]Partition, error) {
	if err := e.Load(key); err != nil {
		return nil, err
	}
	a := e.assets[key]
	expected, err := e.expected(a)
	if err != nil {
		return nil, err
	}
	found := make([]Partition, 0, max(len(expected), len(a.keys)))
	for i, partition := range a.keys {
		for ; len(expected) > 0 && expected[0] <= partition; expected = expected[1:] {
			if expected[0] < partition {
				found = append(found, Partition{expected[0], Missing})
			}
		}
		status, err := e.status(a, partition, &a.cells[i])
		if err != nil {
			return nil, err
		}
		found = append(found, Partition{partition, status})
	}
	for _, partition := range expected {
		found = append(found, Partition{partition, Missing})
	}
	return found, nil
}

// Statuses returns the statuses of the given partitions of an asset. A partition that is not materialized is missing,
// even if it is not expected. Statuses reads only the rows of these partitions and of the partitions that they read.
func (e *Evaluation) Statuses(key ids.AssetKey, partitions []string) ([]Status, error) {
	a, err := e.asset(key)
	if err != nil {
		return nil, err
	}
	found := make([]Status, len(partitions))
	for i, partition := range partitions {
		p, err := e.cell(a, partition)
		if err != nil {
			return nil, err
		}
		if found[i] = Missing; p != nil {
			if found[i], err = e.status(a, partition, p); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// Count counts the partitions of an asset by status.
func (e *Evaluation) Count(key ids.AssetKey) (Counts, error) {
	partitions, err := e.Partitions(key)
	var c Counts
	for _, p := range partitions {
		switch p.Status {
		case Fresh:
			c.Fresh++
		case Stale:
			c.Stale++
		case Missing:
			c.Missing++
		case Unexpected:
		}
	}
	return c, err
}
