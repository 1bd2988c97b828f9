package tiers

import (
	"context"
	"slices"

	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

const partitions = "partition_status"

// page stores rows of partition_status, which are sorted by key, as a sorted run after the known ones. It merges the
// rows with the last sorted runs that are not much larger, unless one of these has a damaged file. It returns the files
// of all sorted runs, and the files that it has created.
//
// The result of a merge is at least 1.5 times as large as each merged sorted run, so a row is rewritten a logarithmic
// number of times. Unless a file is damaged, each sorted run is more than twice as large as all sorted runs after it
// together. So superseded versions take less space than the largest run.
func (cfg *Config) page(ctx context.Context, m *manifest.Manifest, rows []*state.Partition) (files, made []manifest.File, err error) {
	var known []manifest.File
	if index, ok := m.History[partitions]; ok {
		if known, err = cfg.Manifests.Segments(ctx, index); err != nil {
			return nil, nil, err
		}
	}
	runs := snapshot.SortedRuns(known)
	from := snapshot.AbsorbedRuns(runs, int64(len(rows)))
	made, err = cfg.writeRun(ctx, runs[from:], rows)
	if manifest.Damaged(err) && from < len(runs) {
		from = len(runs)
		made, err = cfg.writeRun(ctx, nil, rows)
	}
	return slices.Concat(slices.Concat(runs[:from]...), made), made, err
}

// writeRun merges sorted runs with newer rows, and writes a new sorted run. It needs memory for one file of each
// sorted run.
func (cfg *Config) writeRun(ctx context.Context, runs [][]manifest.File, newer []*state.Partition) (made []manifest.File, err error) {
	size := min(cfg.MaxSegment, state.PageRows)
	var page []*state.Partition
	run := ""
	flush := func() error {
		if len(page) == 0 {
			return nil
		}
		files, err := cfg.Codec.Encode(state.Set(&state.Rows{}, page))
		if err != nil {
			return err
		}
		id := cfg.IDs.New()
		if run == "" {
			run = id
		}
		file := files[0].Named(cfg.Domain, manifest.TierHistory, id)
		file.Run = run
		made, page = append(made, file), page[:0]
		return cfg.create(ctx, file.Key, files[0].Data)
	}
	for row, err := range cfg.Codec.MergeRuns(ctx, cfg.Manifests, runs, newer) {
		if err != nil {
			return nil, err
		}
		if page = append(page, row); len(page) == size {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	return made, flush()
}
