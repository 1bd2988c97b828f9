package tiers

import (
	"context"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxCachedRows is the maximum number of rows of a cached delta. Caching saves most for small deltas, because reading
// a delta takes six requests, one for each file, however small the files are.
const maxCachedRows = 4000

// rowCache contains the rows of deltas of a manifest, by the id of the delta. It contains only small L0 deltas that
// this process has made. They are few, because they are soon merged into an L1 delta.
type rowCache map[string]*state.Rows

func (h rowCache) add(id string, rows *state.Rows) {
	if rows != nil && rows.Len() <= maxCachedRows {
		h[id] = rows
	}
}

// dropOverwritten drops from the inline deltas of the manifest next every row that the newest delta of this manifest
// overwrites, and returns the row cache of the manifest. Every reader of these deltas also reads the newest one, so
// no reader misses the dropped rows. The row of a run changes with each of its tasks, and each task's row changes
// several times, so most inline rows of a run would be outdated. Because they are dropped, inline deltas need to be
// written to files only a third as often.
func (t *Tiers) dropOverwritten(next *manifest.Manifest, c *Change) (rowCache, error) {
	cached := rowCache{}
	for i := range next.L0 {
		d := &next.L0[i]
		rows := t.rowsOf(d.ID)
		if rows != nil && d.IsInline() && c.Delta.IsInline() { // a delta in files is too large to compare
			var err error
			if rows, err = t.cfg.without(d, rows, c.rows); err != nil {
				return nil, fmt.Errorf("encode the remaining rows of delta %s: %w", d.ID, err)
			}
		}
		cached.add(d.ID, rows)
	}
	if c.Delta.Rows > 0 {
		cached.add(c.Delta.ID, c.rows)
	}
	return cached, nil
}

// rowsOf returns the cached rows of a delta, which belongs to the current manifest or is the result of a merge. It
// returns nil if the rows are not cached.
func (t *Tiers) rowsOf(id string) *state.Rows {
	if rows := t.cached[id]; rows != nil {
		return rows
	}
	for _, r := range t.merges {
		if result := r.result.Load(); result != nil && r.id == id {
			return result.rows
		}
	}
	return nil
}

// without removes from a delta the rows whose keys also occur in newer, and returns the remaining rows. If all rows are
// overwritten, it keeps them all, because the delta records that its revision existed.
func (cfg *Config) without(d *manifest.Delta, rows, newer *state.Rows) (*state.Rows, error) {
	kept := rows.Without(newer)
	if n := kept.Len(); n == rows.Len() || n == 0 {
		return rows, nil
	}
	inline, size, err := cfg.Codec.Inline(kept)
	*d = manifest.Delta{ID: d.ID, Revision: d.Revision, Inline: inline, Rows: int64(kept.Len()), Bytes: size}
	return kept, err
}

// load returns the merged rows of the parts of a merge. It reads from the store only parts that were not cached when
// the merge began.
func (cfg *Config) load(ctx context.Context, r *merge) (*state.Rows, error) {
	var stored []manifest.Delta
	var rows []*state.Rows
	for _, part := range r.parts {
		if known := r.cached[part.ID]; known != nil {
			rows = append(rows, known)
		} else {
			stored = append(stored, part)
		}
	}
	if len(stored) > 0 {
		loaded, err := snapshot.LoadDeltas(ctx, cfg.Codec, cfg.Manifests, stored)
		if err != nil {
			return nil, err
		}
		rows = append(rows, loaded)
	}
	return state.Merge(rows)
}
