package compactor

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// keepEntries is how long the live state has entries of the ledger: Pub/Sub
// repeats a notification for seven days.
const keepEntries = 8 * 24 * time.Hour

// cutOf says what a base of a manifest's state leaves to history. Nothing comes
// back from there: the entries are those that no listing looks for any more, and a
// cut is never behind the one before.
func (c *Compactor) cutOf(m *manifest.Manifest) state.Cut {
	before := snapshot.CutOf(m)
	if m.FoldTime == 0 {
		return before
	}
	entries := min(ids.AtTime(m.FoldTime.Add(-c.KeepEntries).Time()), m.Watermarks.CompleteThrough)
	return state.Cut{Seq: m.FoldSeq, Time: m.FoldTime, Entries: max(before.Entries, entries)}
}

// archive writes what is closed to history: of each table that has any, a segment
// and, in place of the one that m refers to, an index. It gives the indexes, and
// all files that it has made.
func (c *Compactor) archive(
	ctx context.Context, m *manifest.Manifest, closed *state.Rows,
) (map[string]manifest.File, []manifest.File, error) {
	files, err := c.Codec.Encode(closed)
	if err != nil {
		return nil, nil, err
	}
	segments := make(map[string][]manifest.File, len(files))
	for _, f := range files {
		if index, ok := m.History[f.Table]; ok {
			if segments[f.Table], err = c.Manifests.Segments(ctx, index); err != nil {
				return nil, nil, err
			}
		}
	}
	indexes := make([]manifest.File, len(files))
	made := make([][]manifest.File, len(files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(archivers)
	for i, f := range files {
		g.Go(func() (err error) {
			indexes[i], made[i], err = c.extend(gctx, f, segments[f.Table])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	history := map[string]manifest.File{}
	for i, f := range files {
		history[f.Table] = indexes[i]
	}
	return history, slices.Concat(made...), nil
}

// archivers is how many tables are written to history at once: each may have a
// whole segment in memory.
const archivers = 2

// extend adds a file to a table's history. Where the last segments are small they
// become one with it.
func (c *Compactor) extend(ctx context.Context, f snapshot.File, segments []manifest.File) (index manifest.File, made []manifest.File, err error) {
	if small := snapshot.Absorbed(segments, f.Rows); len(small) > 0 {
		if f, err = c.Codec.Combine(ctx, c.Manifests, small, f); err != nil {
			return index, nil, err
		}
		segments = segments[:len(segments)-len(small)]
	}
	// An id of its own each: a file is collected when nothing that is named by its id
	// is referred to, and these do not live equally long.
	segment := fileOf(f, manifest.StateKey(c.Domain, f.Table, manifest.TierHistory, c.IDs.New()))
	if err := c.create(ctx, segment.Key, f.Data); err != nil {
		return index, nil, err
	}
	data, index, err := manifest.EncodeIndex(manifest.IndexKey(c.Domain, f.Table, c.IDs.New()), f.Table, append(slices.Clone(segments), segment))
	if err != nil {
		return index, nil, err
	}
	return index, []manifest.File{segment, index}, c.create(ctx, index.Key, data)
}

func (c *Compactor) create(ctx context.Context, key string, data []byte) error {
	object, err := c.Store.Create(ctx, key, data)
	if err == nil {
		c.told(object.Updated)
	}
	return err
}
