package snapshot

import (
	"context"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Load reads the live state of a manifest. It verifies the size and checksum of every
// file.
func Load(ctx context.Context, c *Codec, store *manifest.Store, m *manifest.Manifest) (*state.State, error) {
	st := state.New(m.Domain())
	rows, err := c.Merge(ctx, slices.Concat(fileSources(store, m.BaseSnapshot.Files), deltaSources(store, m.L1), deltaSources(store, m.L0)))
	if err != nil {
		return nil, err
	}
	st.Load(rows)
	st.Evict(CutoffOf(m)) // merged deltas may contain rows that the base moved to history
	st.FoldSeq, st.FoldTime = m.FoldSeq, m.FoldTime
	return st, nil
}

// CutoffOf returns the history cutoff of a manifest's base.
func CutoffOf(m *manifest.Manifest) state.Cutoff {
	b := &m.BaseSnapshot
	return state.Cutoff{Seq: b.FoldSeq, Time: b.FoldTime, Entries: b.EntriesFrom, Runs: b.RunsFrom, Partitions: b.PartitionsFrom}
}

// LoadDeltas returns the merged rows of deltas, including tombstones.
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
				Table: rows.Table, Name: fmt.Sprintf("inline rows of %s in delta %s", rows.Table, d.ID), inline: true,
				Read: func(context.Context) ([]byte, error) { return rows.JSON, nil },
			})
		}
	}
	return sources
}

// Advance returns the state of the manifest m. The parameter from is the manifest of an earlier revision, and own is
// the state of that revision. Advance applies the deltas of later revisions to own. It loads the whole state if from
// is nil or on another timeline, if m is an earlier revision than from, or if m has a new base that contains revisions
// after from. Advance takes ownership of own: it modifies own and may return it. If Advance returns an error, own is
// unchanged.
//
// A merged delta may contain changes that own already contains. These changes are never older than the rows of own,
// because a merge includes the last change of each row up to the revision of its result. Advance also evicts the rows
// that a new base has moved to history.
func Advance(
	ctx context.Context, c *Codec, store *manifest.Store, from *manifest.Manifest, own *state.State, m *manifest.Manifest,
) (*state.State, error) {
	if from == nil || m.Timeline != from.Timeline || m.Revision < from.Revision ||
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
	// A merged delta may have added rows that history already contains.
	if cutoff := CutoffOf(m); m.BaseSnapshot.ID != from.BaseSnapshot.ID || rows.MinSeq() <= cutoff.Seq {
		own.Evict(cutoff)
	}
	own.FoldSeq, own.FoldTime = m.FoldSeq, m.FoldTime
	return own, nil
}
