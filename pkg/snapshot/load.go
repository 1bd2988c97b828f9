package snapshot

import (
	"context"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Load reads the state that a manifest stands for. Every file is verified
// against the size and checksum that the manifest has for it.
func Load(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest) (*state.State, error) {
	st := state.New(m.Domain())
	rows, err := c.rows(ctx, store, m.Files())
	if err != nil {
		return nil, err
	}
	st.Load(rows)
	st.FoldSeq, st.FoldTime = m.FoldSeq, m.FoldTime
	return st, nil
}

// rows reads files and merges what they hold.
func (c *Codec) rows(ctx context.Context, store *manifest.Store, files []manifest.File) (*state.Rows, error) {
	sources := make([]Source, len(files))
	for i, f := range files {
		sources[i] = Source{
			Table: f.Table, Name: f.Key,
			Read: func(ctx context.Context) ([]byte, error) { return store.LoadFile(ctx, f) },
		}
	}
	return c.Merge(ctx, sources)
}

// Advance gives the state of m from that of an earlier revision, which may be nil,
// and the deltas since, where m still names all of those and the one before, which
// proves that m came of that revision; else it reads everything anew. It changes
// own unless it fails, and then may give own.
func Advance(
	ctx context.Context, c *Codec, store *manifest.Store, from *manifest.Manifest, own *state.State, m *manifest.Manifest,
) (*state.State, error) {
	if from == nil || m.Lineage != from.Lineage {
		return Load(ctx, c, store, m)
	}
	if len(from.L0) == 0 || !slices.ContainsFunc(m.L0, func(d manifest.Delta) bool { return d.ID == from.L0[len(from.L0)-1].ID }) {
		return Load(ctx, c, store, m)
	}
	next := from.Revision + 1
	var fresh []manifest.Delta
	for _, d := range m.L0 {
		if d.Revision == next {
			fresh = append(fresh, d)
			next++
		}
	}
	if next != m.Revision+1 {
		return Load(ctx, c, store, m)
	}
	deltas := make([]*state.Rows, len(fresh))
	for i, d := range fresh {
		var err error
		if deltas[i], err = c.rows(ctx, store, d.Files); err != nil {
			return nil, err
		}
	}
	for _, rows := range deltas { // nothing can fail from here on
		own.Load(rows)
	}
	own.FoldSeq, own.FoldTime = m.FoldSeq, m.FoldTime
	return own, nil
}
