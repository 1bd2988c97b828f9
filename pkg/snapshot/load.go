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

// Advance returns the state of the manifest m. The parameter prev is the manifest of an earlier revision, and st is the
// state of that revision. Advance applies the deltas of later revisions to st. It loads the whole state in three cases:
// prev is nil or on another timeline, m is an earlier revision than prev, or m has a new base that contains revisions
// after prev. Advance takes ownership of st: it modifies st and may return it. If Advance returns an error, st is
// unchanged.
//
// A merged delta may contain changes that st already contains. These changes are never older than the rows of st,
// because a merge includes the last change of each row up to the revision of its result. Advance also evicts the rows
// that a new base has moved to history.
func Advance(
	ctx context.Context, c *Codec, store *manifest.Store, prev *manifest.Manifest, st *state.State, m *manifest.Manifest,
) (*state.State, error) {
	if prev == nil || m.Timeline != prev.Timeline || m.Revision < prev.Revision ||
		m.BaseSnapshot.ID != prev.BaseSnapshot.ID && m.BaseSnapshot.After(prev.Revision) {
		return Load(ctx, c, store, m)
	}
	var fresh []manifest.Delta
	for _, d := range slices.Concat(m.L1, m.L0) {
		if d.Revision > prev.Revision {
			fresh = append(fresh, d)
		}
	}
	rows, err := LoadDeltas(ctx, c, store, fresh)
	if err != nil {
		return nil, err
	}
	st.Load(rows)
	// A merged delta may have added rows that history already contains.
	if cutoff := CutoffOf(m); m.BaseSnapshot.ID != prev.BaseSnapshot.ID || rows.MinSeq() <= cutoff.Seq {
		st.Evict(cutoff)
	}
	st.FoldSeq, st.FoldTime = m.FoldSeq, m.FoldTime
	return st, nil
}
