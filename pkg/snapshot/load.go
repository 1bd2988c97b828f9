package snapshot

import (
	"context"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Load reads the state that a manifest stands for. Every file is verified
// against the size and checksum that the manifest has for it.
func Load(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest) (*state.State, error) {
	st := state.New(m.Domain())
	rows, err := c.Merge(ctx, slices.Concat(fileSources(store, m.BaseSnapshot.Files), deltaSources(store, m.L1), deltaSources(store, m.L0)))
	if err != nil {
		return nil, err
	}
	st.Load(rows)
	st.Evict(CutOf(m)) // merged deltas may hold rows of what the base leaves out
	st.FoldSeq, st.FoldTime = m.FoldSeq, m.FoldTime
	return st, nil
}

// CutOf says what a manifest's base leaves to history.
func CutOf(m *manifest.Manifest) state.Cut {
	b := &m.BaseSnapshot
	return state.Cut{Seq: b.FoldSeq, Time: b.FoldTime, Entries: b.EntriesFrom, Runs: b.RunsFrom}
}

// LoadDeltas gives the rows that deltas hold together, tombstones included.
func LoadDeltas(ctx context.Context, c *Codec, store *manifest.Store, deltas []manifest.Delta) (*state.Rows, error) {
	return c.Merge(ctx, deltaSources(store, deltas))
}

func fileSources(store *manifest.Store, files []manifest.File) []Source {
	sources := make([]Source, len(files))
	for i, f := range files {
		sources[i] = Source{
			Table: f.Table, Name: f.Key,
			Read: func(ctx context.Context) ([]byte, error) { return store.LoadFile(ctx, f) },
		}
	}
	return sources
}

func deltaSources(store *manifest.Store, deltas []manifest.Delta) []Source {
	var sources []Source
	for _, d := range deltas {
		sources = append(sources, fileSources(store, d.Files)...)
		for _, rows := range d.Inline {
			sources = append(sources, Source{
				Table: rows.Table, Name: fmt.Sprintf("the rows of %s in delta %s", rows.Table, d.ID), inline: true,
				Read: func(context.Context) ([]byte, error) { return rows.JSON, nil },
			})
		}
	}
	return sources
}

// Advance gives the state of m from that of an earlier revision of its lineage,
// which may be nil, and the deltas since; where the base is younger than that, it
// reads everything anew. It changes own unless it fails, and then may give own.
//
// A delta that was merged of several may hold changes that own has, too. They are
// not older than what own has: a merge takes in all changes from its first
// revision to its last, and so the last one of each row. What a new base leaves to
// history goes from own as well: it follows from the rows.
func Advance(
	ctx context.Context, c *Codec, store *manifest.Store, from *manifest.Manifest, own *state.State, m *manifest.Manifest,
) (*state.State, error) {
	if from == nil || m.Lineage != from.Lineage || m.Revision < from.Revision ||
		m.BaseSnapshot.ID != from.BaseSnapshot.ID && m.BaseSnapshot.After(from.Revision) {
		return Load(ctx, c, store, m)
	}
	var fresh []manifest.Delta
	for _, d := range slices.Concat(m.L1, m.L0) {
		if d.Revision > from.Revision {
			fresh = append(fresh, d)
		}
	}
	rows, err := LoadDeltas(ctx, c, store, fresh)
	if err != nil {
		return nil, err
	}
	own.Load(rows)
	// A delta that was merged of several may bring back what had been left out.
	if cut := CutOf(m); m.BaseSnapshot.ID != from.BaseSnapshot.ID || rows.MinSeq() <= cut.Seq {
		own.Evict(cut)
	}
	own.FoldSeq, own.FoldTime = m.FoldSeq, m.FoldTime
	return own, nil
}
