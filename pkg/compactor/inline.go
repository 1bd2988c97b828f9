package compactor

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// inlined are the rows of deltas that a manifest holds, by the deltas' ids: of those
// that this process has made.
type inlined map[string]*state.Rows

// supersede leaves out of the deltas that next holds the rows that its last one, of
// what changed, takes the place of, and gives the rows that they are left with. Who
// reads these deltas reads that one as well: nobody sees them. A run's row changes with
// each of its tasks, and each task's several times, so that most of what a manifest
// would hold of a run is of yesterday; without it, what is there becomes files a third
// as often.
func (c *Compactor) supersede(next *manifest.Manifest, delta manifest.Delta, changed *state.Rows) (inlined, error) {
	held := inlined{}
	if delta.IsInline() {
		held[delta.ID] = changed
	}
	for i := range next.L0 {
		d := &next.L0[i]
		rows := c.inlined[d.ID]
		if rows == nil {
			continue
		}
		held[d.ID] = rows
		if !delta.IsInline() {
			continue
		}
		kept := c.Codec.Without(rows, changed)
		if n := kept.Len(); n == rows.Len() || n == 0 { // a delta is never empty: it says that there was a revision
			continue
		}
		inline, size, err := c.Codec.Inline(kept)
		if err != nil {
			return nil, fmt.Errorf("encode what is left of delta %s: %w", d.ID, err)
		}
		*d = manifest.Delta{ID: d.ID, Revision: d.Revision, Inline: inline, Rows: int64(kept.Len()), Bytes: size}
		held[d.ID] = kept
	}
	return held, nil
}
