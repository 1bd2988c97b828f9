package staleness

import (
	"slices"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Explanation says why a partition has its status.
type Explanation struct {
	Partition
	// Current is the current code of the asset; "": unknown. Changed means that the partition was made
	// by other code.
	Current string
	Changed bool
	// Newer lists the upstream assets with versions that the partition did not read.
	Newer []Source
	// Via lists the upstream assets with partitions that are stale or missing themselves. When they
	// are materialized, the partition becomes stale.
	Via []Source
}

// Source is an upstream asset with partitions that concern a reader.
type Source struct {
	Asset ids.AssetKey
	// Key is the partition that concerns the reader most: the newest version, or the first one that is
	// stale or missing. Status is its status, and Row its row, nil if it is missing.
	Key    string
	Status Status
	Row    *state.Partition
	// Count is the number of such partitions.
	Count int
}

// Explain explains a partition of an asset.
func (e *Evaluation) Explain(key ids.AssetKey, partition string) (Explanation, error) {
	a, err := e.asset(key)
	if err != nil {
		return Explanation{}, err
	}
	x := Explanation{Partition: Partition{Key: partition, Status: Unexpected, Row: a.rows[partition]}, Current: a.asset.Code}
	if x.Row != nil {
		x.Changed = a.changed(x.Row)
		if x.Status, err = e.status(a, x.Row); err != nil {
			return x, err
		}
	} else {
		expected, err := e.expected(a.asset)
		if err != nil {
			return x, err
		}
		if slices.Contains(expected, partition) {
			x.Status = Missing
		}
	}
	for _, dep := range a.asset.Deps {
		if err := e.explainUpstream(&x, a.asset, dep); err != nil {
			return x, err
		}
	}
	return x, nil
}

// explainUpstream adds what an upstream asset contributes to an explanation.
func (e *Evaluation) explainUpstream(x *Explanation, reader *plan.Asset, dep ids.AssetKey) error {
	up, err := e.asset(dep)
	if err != nil {
		return err
	}
	partitions, err := e.Partitions(dep)
	if err != nil {
		return err
	}
	keys, all, err := e.image(reader, x.Key, up, nil)
	if err != nil {
		return err
	}
	newerOf, via := Source{Asset: dep}, Source{Asset: dep}
	for _, q := range partitions {
		if !all && !slices.Contains(keys, q.Key) {
			continue
		}
		if q.Row != nil && x.Row != nil && newer(x.Row, q.Row) {
			if newerOf.Count++; newerOf.Row == nil || q.Row.VersionSeq > newerOf.Row.VersionSeq {
				newerOf.Key, newerOf.Status, newerOf.Row = q.Key, q.Status, q.Row
			}
		}
		if q.Status != Fresh {
			if via.Count++; via.Count == 1 {
				via.Key, via.Status, via.Row = q.Key, q.Status, q.Row
			}
		}
	}
	if newerOf.Count > 0 {
		x.Newer = append(x.Newer, newerOf)
	}
	if via.Count > 0 {
		x.Via = append(x.Via, via)
	}
	return nil
}
