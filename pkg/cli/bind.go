package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// bind binds the queries of a project against the columns of their inputs and returns the problems. It also returns
// warnings about extensions that this machine does not have, and a description of the queries that it could not bind.
func (a *app) bind(ctx context.Context, p *project.Project) (problems project.Problems, warnings []string, skipped string, err error) {
	options := a.options(p)
	b := worker.Binding{Root: p.Root, Data: p.Data, State: options.Dir, Assets: p.Assets}
	if b.Scratch, err = os.MkdirTemp("", "servo-validate-"); err != nil {
		return nil, nil, "", fmt.Errorf("bind queries: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.Scratch)) }()
	made, closeState, err := a.outputs(ctx, p)
	if err != nil {
		a.warn("cannot read the outputs of earlier runs: %v", err)
	}
	defer func() { err = errors.Join(err, closeState()) }()
	b.Outputs = made.files
	bound, err := worker.Bind(ctx, b)
	if err != nil {
		return nil, nil, "", err
	}
	for _, problem := range bound.Problems {
		problems = append(problems, project.Problem(problem))
	}
	if n := len(bound.Skipped); n > 0 {
		queries := "1 query is"
		if n > 1 {
			queries = view.Grouped(int64(n)) + " queries are"
		}
		skipped = fmt.Sprintf("; %s not checked, because not all files or columns that they read are known", queries)
		if len(bound.Unknown) > 0 {
			skipped = fmt.Sprintf("; %s not checked before the first run of %s", queries, someKeys(bound.Unknown))
		}
	}
	return problems, missingExtensions(bound.Missing), skipped, nil
}

// someKeys lists the keys of the first assets and, if there are more, the number of the others.
func someKeys(keys []ids.AssetKey) string {
	const most = 3
	var names []string
	for _, key := range keys[:min(len(keys), most)] {
		names = append(names, key.String())
	}
	text := strings.Join(names, ", ")
	if more := len(keys) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// outputs provides the outputs of earlier runs. The zero value has no outputs.
type outputs struct {
	store *fileblob.Store
	snap  *snapshot.Snapshot
}

// outputs returns the outputs in the state folder. It does not wait for another process, and writes nothing. For a
// store in a cloud it returns no outputs.
func (a *app) outputs(ctx context.Context, p *project.Project) (found *outputs, closeState func() error, err error) {
	found, closeState = &outputs{}, func() error { return nil }
	dir := a.options(p).Dir
	if _, err := os.Stat(dir); inCloud(dir) || errors.Is(err, os.ErrNotExist) {
		return found, closeState, nil
	}
	parts, err := a.parts(ctx, p)
	if err != nil {
		return found, closeState, err
	}
	closeState = parts.Close
	snap, err := parts.Reader().Current(ctx)
	if err != nil {
		return found, closeState, err
	}
	found.store, found.snap = parts.Folder, snap
	return found, closeState, nil
}

// newest returns the partitions of an asset that have outputs, the newest first. If the parameter all is false, newest
// returns only the first of them.
func (o *outputs) newest(ctx context.Context, asset ids.AssetKey, all bool) (rows []*state.Partition, err error) {
	if o.snap == nil {
		return nil, nil
	}
	for row, err := range o.snap.Partitions(ctx, asset.String(), "") {
		switch {
		case err != nil:
			return nil, err
		case row.OutputURI == "":
		case all || len(rows) == 0:
			rows = append(rows, row)
		case row.MaterializedAt > rows[0].MaterializedAt:
			rows[0] = row
		}
	}
	slices.SortStableFunc(rows, func(a, b *state.Partition) int { return cmp.Compare(b.MaterializedAt, a.MaterializedAt) })
	return rows, nil
}

// files returns the Parquet files of the newest output of an asset, or of all its outputs.
func (o *outputs) files(ctx context.Context, asset ids.AssetKey, all bool) (files []string, err error) {
	rows, err := o.newest(ctx, asset, all)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		marker, _, err := engine.ReadMarker(ctx, o.store, row.OutputURI)
		if err != nil {
			return nil, err
		}
		for _, file := range marker.Files {
			if strings.HasSuffix(file.Name, ".parquet") {
				files = append(files, o.store.Path(marker.URI+file.Name))
			}
		}
	}
	return files, nil
}
