package tiers

import (
	"context"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// moveToHistory adds closed rows to history. It drops the rows of runs whose ids are below minRun. For each table with
// new rows it stores segments and a new index, which replaces the index that m names. It returns the new indexes and
// all files that it has created. If a table has no rows left in history, its index is zero.
func (cfg *Config) moveToHistory(
	ctx context.Context, m *manifest.Manifest, closed *state.Rows, minRun string,
) (indexes map[string]manifest.File, made []manifest.File, err error) {
	segments, err := cfg.dropExpired(ctx, m, minRun)
	if err != nil {
		return nil, nil, err
	}
	paged, closed := closed.Paged()
	if rows := state.List[state.Partition](paged); len(rows) > 0 {
		if segments[partitions], made, err = cfg.page(ctx, m, rows); err != nil {
			return nil, nil, err
		}
	}
	for chunk := range closed.KeptFrom(minRun).Chunks(cfg.MaxSegment) { // one chunk at a time, to limit memory
		files, err := cfg.Codec.Encode(chunk)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range files {
			known, rewritten := segments[f.Table]
			if index, ok := m.History[f.Table]; ok && !rewritten {
				if known, err = cfg.Manifests.Segments(ctx, index); err != nil {
					return nil, nil, err
				}
			}
			kept, segment, err := cfg.extend(ctx, f, known, minRun)
			if err != nil {
				return nil, nil, err
			}
			segments[f.Table] = append(slices.Clone(kept), segment)
			made = append(made, segment)
		}
	}
	indexes = map[string]manifest.File{}
	for _, table := range slices.Sorted(maps.Keys(segments)) { // in a fixed order, because each index takes the next id
		if len(segments[table]) == 0 {
			indexes[table] = manifest.File{}
			continue
		}
		data, index, err := manifest.EncodeIndex(manifest.IndexKey(cfg.Domain, table, cfg.IDs.New()), table, segments[table])
		if err != nil {
			return nil, nil, err
		}
		if err := cfg.create(ctx, index.Key, data); err != nil {
			return nil, nil, err
		}
		indexes[table] = index
		made = append(made, index)
	}
	return indexes, made, nil
}

// dropExpired returns, for each table with expired segments, the segments that have not expired.
func (cfg *Config) dropExpired(ctx context.Context, m *manifest.Manifest, minRun string) (map[string][]manifest.File, error) {
	left := map[string][]manifest.File{}
	for _, table := range slices.Sorted(maps.Keys(m.History)) {
		if index := m.History[table]; index.MinRun == "" || index.MinRun >= minRun {
			continue
		}
		known, err := cfg.Manifests.Segments(ctx, m.History[table])
		if err != nil {
			return nil, err
		}
		kept := slices.DeleteFunc(slices.Clone(known), func(f manifest.File) bool { return snapshot.Expired(f, minRun) })
		if len(kept) < len(known) {
			left[table] = kept
		}
	}
	return left, nil
}

// extend stores a file as a new segment after the known segments of its table. It merges small segments at the end
// into the new segment, unless one of them is damaged. It returns the known segments that it has not merged, and the
// new one.
func (cfg *Config) extend(
	ctx context.Context, f snapshot.File, known []manifest.File, minRun string,
) (kept []manifest.File, segment manifest.File, err error) {
	kept = known
	if small := snapshot.Absorbed(known, f.Rows); len(small) > 0 {
		whole, err := cfg.Codec.Combine(ctx, cfg.Manifests, small, f, minRun)
		switch {
		case err == nil:
			f, kept = whole, known[:len(known)-len(small)]
		case !manifest.Damaged(err):
			return nil, segment, err
		}
	}
	// Each segment needs an id of its own: collectors delete all files with the same id at once, but segments are
	// replaced at different times.
	segment = f.Named(cfg.Domain, manifest.TierHistory, cfg.IDs.New())
	return kept, segment, cfg.create(ctx, segment.Key, f.Data)
}
