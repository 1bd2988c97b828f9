package compactor

import (
	"context"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxCachedRows is the maximum number of rows of a cached delta. Reading a delta costs six files,
// whatever they contain.
const maxCachedRows = 4000

// cachedRows is the row cache: the rows of deltas that a manifest names, by the ids of the deltas.
// It contains small L0 deltas that this process has made. They are few, because they soon merge
// into an L1 delta.
type cachedRows map[string]*state.Rows

func (h cachedRows) add(id string, rows *state.Rows) {
	if rows != nil && rows.Len() <= maxCachedRows {
		h[id] = rows
	}
}

// dropOverwritten drops from the inline deltas of next every row that its newest delta overwrites,
// and returns the row cache of next. Every reader of these deltas reads the newest one, too, so it
// does not miss the rows. The row of a run changes with each of its tasks, and each task's row
// changes several times. So most inline rows of a run are outdated; without them, inline deltas are
// written to files a third as often.
func (c *Compactor) dropOverwritten(next *manifest.Manifest, delta manifest.Delta, changed *state.Rows) (cachedRows, error) {
	cached := cachedRows{}
	for i := range next.L0 {
		d := &next.L0[i]
		rows := c.rowsOf(d.ID)
		if rows != nil && d.IsInline() && delta.IsInline() { // a delta in files is too large to compare
			var err error
			if rows, err = c.without(d, rows, changed); err != nil {
				return nil, fmt.Errorf("encode the remaining rows of delta %s: %w", d.ID, err)
			}
		}
		cached.add(d.ID, rows)
	}
	if delta.Rows > 0 {
		cached.add(delta.ID, changed)
	}
	return cached, nil
}

// rowsOf returns the rows of a delta of the current manifest or of a finished merge, or nil if they
// are not cached.
func (c *Compactor) rowsOf(id string) *state.Rows {
	if rows := c.cached[id]; rows != nil {
		return rows
	}
	for _, r := range c.merges {
		if result := r.result.Load(); result != nil && r.id == id {
			return result.rows
		}
	}
	return nil
}

// without removes from a delta the rows that others overwrite, and returns the remaining ones. It
// never empties a delta, because the delta records that its revision existed.
func (c *Compactor) without(d *manifest.Delta, rows, others *state.Rows) (*state.Rows, error) {
	kept := rows.Without(others)
	if n := kept.Len(); n == rows.Len() || n == 0 {
		return rows, nil
	}
	inline, size, err := c.Codec.Inline(kept)
	*d = manifest.Delta{ID: d.ID, Revision: d.Revision, Inline: inline, Rows: int64(kept.Len()), Bytes: size}
	return kept, err
}

// load returns the merged rows of the parts of a merge. It reads those that were not cached when
// the merge began.
func (c *Compactor) load(ctx context.Context, r *merge) (*state.Rows, error) {
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
		loaded, err := snapshot.LoadDeltas(ctx, c.Codec, c.Manifests, stored)
		if err != nil {
			return nil, err
		}
		rows = append(rows, loaded)
	}
	return state.Merge(rows)
}
