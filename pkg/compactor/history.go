package compactor

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// keepEntries is how long the live state records entries: as long as it contains ended runs.
	// Older entries are recognized by their names.
	keepEntries = state.ClosedAfter
	// keepLedger is how long entries stay in the ledger, where reading them costs least.
	keepLedger = 8 * 24 * time.Hour
)

// KeepRuns is how long runs are kept by default: a year and a month, so that a run can be compared
// with the one a year earlier.
const KeepRuns = 400 * 24 * time.Hour

// MinKeepRuns is the minimum of [Options.KeepRuns]: a run key refers to its run for this long.
const MinKeepRuns = fold.RunKeyTTL

// cutoffOf returns the history cutoff of a base of a manifest's state. Rows never return from
// history, so only entries that no listing looks for are below the cutoff, and a cutoff is never
// below the previous one.
func (c *Compactor) cutoffOf(m *manifest.Manifest) state.Cutoff {
	before := snapshot.CutoffOf(m)
	if m.FoldTime == 0 {
		return before
	}
	entries := min(ids.AtTime(m.FoldTime.Add(-c.KeepEntries).Time()), m.Watermarks.CompleteThrough)
	// Events that are not folded yet are newer than CompleteThrough, and a clock that is far
	// ahead does not raise that. So every run below the cutoff is really that old.
	runs := ids.AtTime(min(m.FoldTime, event.At(ids.Time(m.Watermarks.CompleteThrough))).Add(-c.KeepRuns).Time())
	return state.Cutoff{Seq: m.FoldSeq, Time: m.FoldTime, Entries: max(before.Entries, entries), Runs: max(before.Runs, runs)}
}

// moveToHistory adds closed rows to history, except those of runs below from, which are not kept.
// For each table with new rows it stores segments and a new index, which replaces the index that m
// names. It returns the indexes, with a zero index for a table that has no rows left, and all files
// that it has created.
func (c *Compactor) moveToHistory(
	ctx context.Context, m *manifest.Manifest, closed *state.Rows, from string,
) (indexes map[string]manifest.File, made []manifest.File, err error) {
	segments, err := c.dropExpired(ctx, m, from)
	if err != nil {
		return nil, nil, err
	}
	for chunk := range closed.KeptFrom(from).Chunks(c.MaxSegment) { // one at a time, to limit memory
		files, err := c.Codec.Encode(chunk)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range files {
			known, rewritten := segments[f.Table]
			if index, ok := m.History[f.Table]; ok && !rewritten {
				if known, err = c.Manifests.Segments(ctx, index); err != nil {
					return nil, nil, err
				}
			}
			kept, segment, err := c.extend(ctx, f, known, from)
			if err != nil {
				return nil, nil, err
			}
			segments[f.Table] = append(slices.Clone(kept), segment)
			made = append(made, segment)
		}
	}
	indexes = map[string]manifest.File{}
	for _, table := range slices.Sorted(maps.Keys(segments)) { // a fixed order, since each takes an id
		if len(segments[table]) == 0 {
			indexes[table] = manifest.File{}
			continue
		}
		data, index, err := manifest.EncodeIndex(manifest.IndexKey(c.Domain, table, c.IDs.New()), table, segments[table])
		if err != nil {
			return nil, nil, err
		}
		if err := c.create(ctx, index.Key, data); err != nil {
			return nil, nil, err
		}
		indexes[table] = index
		made = append(made, index)
	}
	return indexes, made, nil
}

// dropExpired returns, for each table with expired segments, the segments that are kept.
func (c *Compactor) dropExpired(ctx context.Context, m *manifest.Manifest, from string) (map[string][]manifest.File, error) {
	left := map[string][]manifest.File{}
	for _, table := range slices.Sorted(maps.Keys(m.History)) {
		if index := m.History[table]; index.MinRun == "" || index.MinRun >= from {
			continue
		}
		known, err := c.Manifests.Segments(ctx, m.History[table])
		if err != nil {
			return nil, err
		}
		kept := slices.DeleteFunc(slices.Clone(known), func(f manifest.File) bool { return snapshot.Expired(f, from) })
		if len(kept) < len(known) {
			left[table] = kept
		}
	}
	return left, nil
}

// extend stores a file as a segment after the known ones of its table, and returns the known ones
// that stay. Small segments at the end are merged with the file, unless one of them is damaged.
func (c *Compactor) extend(
	ctx context.Context, f snapshot.File, known []manifest.File, from string,
) (kept []manifest.File, segment manifest.File, err error) {
	kept = known
	if small := snapshot.Absorbed(known, f.Rows); len(small) > 0 {
		whole, err := c.Codec.Combine(ctx, c.Manifests, small, f, from)
		switch {
		case err == nil:
			f, kept = whole, known[:len(known)-len(small)]
		case !manifest.Damaged(err):
			return nil, segment, err
		}
	}
	// Each segment has its own id: files that share an id are collected together, and segments
	// are replaced at different times.
	segment = fileOf(f, manifest.StateKey(c.Domain, f.Table, manifest.TierHistory, c.IDs.New()))
	segment.MinEntry, segment.MaxEntry = f.MinEntry, f.MaxEntry
	return kept, segment, c.create(ctx, segment.Key, f.Data)
}

func (c *Compactor) create(ctx context.Context, key string, data []byte) error {
	object, err := c.Store.Create(ctx, key, data)
	if err == nil {
		c.observeStoreTime(object.Updated)
	}
	return err
}
