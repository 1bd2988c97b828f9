package staleness

import (
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Explanation describes why a partition has its status.
type Explanation struct {
	Partition
	Row *state.Partition // nil if the partition is not materialized
	// Current is the current code of the asset, or "" if it is unknown. Changed means that the partition was made with
	// other code.
	Current string
	Changed bool
	// Accepted means that the partition was made with other code, which a deployment has accepted as current.
	Accepted bool
	// Windowed means that the asset reads through windows. Then Changed may also mean that an upstream asset has
	// declared another start or end since.
	Windowed bool
	// Early means that the run of the partition was requested before the partition was expected: see
	// [space.Members.Early].
	Early bool
	// Mark is the mark that a person has set for the output, or nil. If the mark hides the output, Row is nil.
	Mark *state.Mark
	// Declared describes the partitions that the asset declares. It is empty if the asset declares this partition.
	Declared string
	// Sets lists the key sets that make the partition stale: after the partition was planned, a key was removed or
	// added again, so that the partition would now read other partitions.
	Sets []string
	// Newer lists the upstream assets with outputs that are newer than the versions that the partition
	// has read.
	Newer []Source
	// Via lists the upstream assets with partitions that are themselves stale or missing. An asset with both stale and
	// missing partitions has two items. This partition becomes stale when those partitions are materialized.
	Via []Source
	// Indirect means that this partition and the partitions that it reads are fresh, but partitions further upstream are
	// stale or missing. Via lists the assets of those partitions. This partition becomes stale when they, and then the
	// partitions in between, are materialized.
	Indirect bool
	// Unsearched means that Via is incomplete, because too many partitions lie upstream.
	Unsearched bool
}

// Source is an upstream asset whose partitions affect the status of a reader.
type Source struct {
	Asset ids.AssetKey
	// Key is one of these partitions. Status is its status, and Row is its row, or nil if the partition is missing. In
	// [Explanation.Newer], it is the partition with the newest version; in [Explanation.Via], it is the first partition
	// with its status.
	Key    string
	Status Status
	Row    *state.Partition
	// Mark is the mark that hides the partition, or nil if the partition is not hidden.
	Mark *state.Mark
	// Count is the number of such partitions of the asset. In [Explanation.Via], all of them have the same status.
	Count int
}

// Explain explains a partition of an asset.
func (e *Evaluation) Explain(key ids.AssetKey, partition string) (Explanation, error) {
	a, err := e.asset(key)
	if err != nil {
		return Explanation{}, err
	}
	x := Explanation{Partition: Partition{Key: partition, Status: Unexpected}}
	p, err := e.cell(a, partition)
	if err != nil {
		return x, err
	}
	x.Current = a.asset.Code
	if p != nil {
		x.Early = a.early(partition, p)
		if x.Changed, err = a.changed(partition, p); err != nil {
			return x, err
		}
		clip, err := a.windows.Clip(partition)
		if err != nil {
			return x, err
		}
		x.Current, x.Windowed = a.windows.Code(a.asset.Code, clip), len(a.windows) > 0
		if x.Status, err = e.status(a, partition, p); err != nil {
			return x, err
		}
		if x.Row, err = e.data.Row(key, partition); err != nil {
			return x, err
		}
		if x.Row != nil {
			x.Mark = a.markOf(x.Row)
			x.Accepted = !x.Changed && x.Row.Code != "" && x.Current != "" && !slices.Contains(a.windows.Codes(a.asset.Code)[clip], x.Row.Code)
		}
	} else {
		x.Mark = a.hidden[partition]
		switch {
		case a.expects(partition):
			x.Status = Missing
		case a.asset.Partitions != nil && !a.members.Has(partition):
			x.Declared = a.asset.Partitions.Range()
			return x, nil
		}
	}
	for _, dep := range a.asset.Deps {
		if err := e.explainUpstream(&x, p, a.asset, dep); err != nil {
			return x, err
		}
	}
	if x.Status == Fresh && len(x.Via) == 0 {
		var complete bool
		x.Via, complete, err = e.indirect(key, partition)
		x.Indirect, x.Unsearched = len(x.Via) > 0, !complete
	}
	return x, err
}

// explainUpstream adds an upstream asset to an explanation if partitions of that asset affect the status of the
// explained partition. p is the cell of the explained partition, or nil if it is not materialized.
func (e *Evaluation) explainUpstream(x *Explanation, p *cell, reader *plan.Asset, dep ids.AssetKey) error {
	up, err := e.asset(dep)
	if err != nil {
		return err
	}
	keys, all, err := e.image(reader, x.Key, up, nil)
	if err != nil {
		return err
	}
	if p != nil {
		set, err := e.changedSet(reader, x.Key, p.inputs, up)
		if err != nil {
			return err
		}
		if set != "" && !slices.Contains(x.Sets, set) {
			x.Sets = append(x.Sets, set)
		}
	}
	images, err := e.readers.Of(reader.Key, dep)
	if err != nil {
		return err
	}
	omits := images.OmitsFuture()
	if all {
		if up, err = e.load(dep); err != nil {
			return err
		}
		keys, err = e.allKeys(up)
	} else {
		var hidden []string
		hidden, err = e.hiddenLatest(images, x.Key, up, keys)
		keys = slices.Concat(keys, hidden)
	}
	if err != nil {
		return err
	}
	keys = slices.Sorted(slices.Values(keys))
	newerOf, version := Source{Asset: dep}, int64(0)
	var via []Source // by status
	for _, key := range slices.Compact(keys) {
		status := Missing
		q, err := e.cell(up, key)
		if err != nil {
			return err
		}
		if q != nil {
			if status, err = e.status(up, key, q); err != nil {
				return err
			}
		}
		of, err := e.version(up, key)
		if err == nil && of != nil && p != nil && (newer(p, of) || omits && omitted(images, key, p, of)) {
			if newerOf.Count++; of.version > version {
				newerOf.Key, newerOf.Status, version = key, status, of.version
			}
		}
		if q == nil && !up.expects(key) {
			continue
		}
		if status != Fresh {
			via = count(via, node{dep, key}, status)
		}
	}
	if newerOf.Count > 0 {
		if err := e.addRow(up, &newerOf); err != nil {
			return err
		}
		x.Newer = append(x.Newer, newerOf)
	}
	for i := range via {
		if err := e.addRow(up, &via[i]); err != nil {
			return err
		}
	}
	x.Via = append(x.Via, via...)
	return nil
}

// allKeys returns the keys of a loaded asset's expected, materialized and hidden partitions. A key may occur more
// than once.
func (e *Evaluation) allKeys(of *evaluated) ([]string, error) {
	expected, err := e.expected(of)
	if err != nil {
		return nil, err
	}
	return slices.AppendSeq(slices.Concat(expected, of.keys), maps.Keys(of.hidden)), nil
}

// addRow adds the row of a source or, if a mark hides the partition, the mark.
func (e *Evaluation) addRow(up *evaluated, s *Source) (err error) {
	if s.Row, err = e.data.Row(s.Asset, s.Key); err == nil && s.Row == nil {
		s.Mark = up.hidden[s.Key]
	}
	return err
}
