package compactor

import (
	"context"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxAtHand is how many rows of a delta are kept at hand, to be merged with those of
// others: reading a delta costs six files, whatever is in them.
const maxAtHand = 4000

// atHand are the rows of deltas that a manifest names, by the deltas' ids: of small ones
// of L0 that this process has made. There are not many before they become one of L1.
type atHand map[string]*state.Rows

func (h atHand) add(id string, rows *state.Rows) {
	if rows != nil && rows.Len() <= maxAtHand {
		h[id] = rows
	}
}

// supersede leaves out of the deltas that next holds itself the rows that its last one,
// of what changed, takes the place of, and gives what is at hand of next then. Who
// reads these deltas reads that one as well: nobody misses them. A run's row changes with
// each of its tasks, and each task's several times, so that most of what a manifest
// would hold of a run is of yesterday; without it, what is there becomes files a third
// as often.
func (c *Compactor) supersede(next *manifest.Manifest, delta manifest.Delta, changed *state.Rows) (atHand, error) {
	held := atHand{}
	for i := range next.L0 {
		d := &next.L0[i]
		rows := c.rowsOf(d.ID)
		if rows != nil && d.IsInline() && delta.IsInline() { // one in files is too large to be looked through
			var err error
			if rows, err = c.without(d, rows, changed); err != nil {
				return nil, fmt.Errorf("encode what is left of delta %s: %w", d.ID, err)
			}
		}
		held.add(d.ID, rows)
	}
	if delta.Rows > 0 {
		held.add(delta.ID, changed)
	}
	return held, nil
}

// rowsOf are the rows of a delta that was there before, or that a merge has made, nil if
// they are not at hand.
func (c *Compactor) rowsOf(id string) *state.Rows {
	if rows := c.atHand[id]; rows != nil {
		return rows
	}
	for _, r := range c.merges {
		if result := r.result.Load(); result != nil && r.id == id {
			return result.rows
		}
	}
	return nil
}

// without makes a delta one without the rows that others take the place of, and gives
// what it is left with. It is never left empty: it says that there was a revision.
func (c *Compactor) without(d *manifest.Delta, rows, others *state.Rows) (*state.Rows, error) {
	kept := rows.Without(others)
	if n := kept.Len(); n == rows.Len() || n == 0 {
		return rows, nil
	}
	inline, size, err := c.Codec.Inline(kept)
	*d = manifest.Delta{ID: d.ID, Revision: d.Revision, Inline: inline, Rows: int64(kept.Len()), Bytes: size}
	return kept, err
}

// load gives the rows that the parts of a merge hold together, and reads those that were
// not at hand when it began.
func (c *Compactor) load(ctx context.Context, r *merge) (*state.Rows, error) {
	var stored []manifest.Delta
	var rows []*state.Rows
	for _, part := range r.parts {
		if known := r.atHand[part.ID]; known != nil {
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
