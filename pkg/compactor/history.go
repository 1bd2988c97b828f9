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
	// keepEntries is how long the live state has entries of the ledger: as long as it has
	// runs that have ended. Who announces one of before is answered by its name.
	keepEntries = state.ClosedAfter
	// keepLedger is how long the ledger itself has them, where they cost least to read.
	keepLedger = 8 * 24 * time.Hour
)

// KeepRuns is how long runs are kept where nothing else is said: a year and a month, so
// that one can be compared with that of a year before.
const KeepRuns = 400 * 24 * time.Hour

// MinKeepRuns is the least that makes sense: for so long a run key leads to its run.
const MinKeepRuns = fold.RunKeyTTL

// cutOf says what a base of a manifest's state leaves to history. Nothing comes
// back from there: the entries are those that no listing looks for any more, and a
// cut is never behind the one before.
func (c *Compactor) cutOf(m *manifest.Manifest) state.Cut {
	before := snapshot.CutOf(m)
	if m.FoldTime == 0 {
		return before
	}
	entries := min(ids.AtTime(m.FoldTime.Add(-c.KeepEntries).Time()), m.Watermarks.CompleteThrough)
	// What is not folded yet is not older than the listings, nor is a clock that is far
	// ahead: what goes was there for so long.
	runs := ids.AtTime(min(m.FoldTime, event.At(ids.Time(m.Watermarks.CompleteThrough))).Add(-c.KeepRuns).Time())
	return state.Cut{Seq: m.FoldSeq, Time: m.FoldTime, Entries: max(before.Entries, entries), Runs: max(before.Runs, runs)}
}

// bury writes what is closed, and kept, to history: of each table that has any,
// segments and, in place of the one that m refers to, an index. It gives the indexes,
// a zero one for a table of which nothing is left, and all files that it has made.
func (c *Compactor) bury(
	ctx context.Context, m *manifest.Manifest, closed *state.Rows, from string,
) (indexes map[string]manifest.File, made []manifest.File, err error) {
	segments, err := c.dropExpired(ctx, m, from)
	if err != nil {
		return nil, nil, err
	}
	for portion := range closed.KeptFrom(from).Chunks(c.MaxSegment) { // one at a time: each is in memory
		files, err := c.Codec.Encode(portion)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range files {
			known, begun := segments[f.Table]
			if index, ok := m.History[f.Table]; ok && !begun {
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
	for _, table := range slices.Sorted(maps.Keys(segments)) { // in one order: each takes an id
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

// dropExpired gives, of each table that has segments of which nothing is kept any more,
// the others.
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

// extend stores a file as a segment after others of its table, of which it gives
// those that stay: where the last ones are small they become one with it. One that
// is damaged is left alone.
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
	// An id of its own each: a file is collected when nothing that is named by its id
	// is referred to, and these do not live equally long.
	segment = fileOf(f, manifest.StateKey(c.Domain, f.Table, manifest.TierHistory, c.IDs.New()))
	segment.MinEntry, segment.MaxEntry = f.MinEntry, f.MaxEntry
	return kept, segment, c.create(ctx, segment.Key, f.Data)
}

func (c *Compactor) create(ctx context.Context, key string, data []byte) error {
	object, err := c.Store.Create(ctx, key, data)
	if err == nil {
		c.told(object.Updated)
	}
	return err
}
