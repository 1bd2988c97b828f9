package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// rowsCommand returns the command that shows the failing rows of a check of a task.
func rowsCommand(taskKey, check, runID string) string {
	return fmt.Sprintf("servo checks %s --rows %s --run %s", quoted(readable(taskKey)), check, runID)
}

// failingRows prints the failing rows that a check has stored: in the given run or, if runID is empty, when it last
// failed. The parameter name is the key of an asset or of a task.
func (a *app) failingRows(ctx context.Context, name, check, runID string) error {
	return a.withParts(ctx, func(_ *project.Project, parts *embedded.Workspace) error {
		snap, err := parts.Reader().Current(ctx)
		if err != nil {
			return err
		}
		var sample string
		if runID == "" {
			sample, err = lastSample(ctx, snap, name, check)
		} else {
			sample, err = sampleOf(ctx, snap, name, check, runID)
		}
		if err != nil {
			return err
		}
		return a.printSample(ctx, parts.Store, sample)
	})
}

// lastSample returns the key of the failing rows that a check stored when it last failed.
func lastSample(ctx context.Context, snap *snapshot.Snapshot, name, check string) (string, error) {
	s := snap.State
	asset, partition, _ := strings.Cut(name, "[")
	row := s.AssetChecks.Get(state.Key2{A: asset, B: check})
	if row == nil {
		return "", unknownCheck(s, asset, check)
	}
	switch failed := (state.Task{AssetKey: asset, PartitionKey: row.FailedPartition}); {
	case row.Failed == 0:
		return "", fmt.Errorf("check %s of %s has never failed: it has no failing rows", check, asset)
	case partition != "" && ids.StoredKey(name) != taskName(&failed):
		if sample, err := sampleOf(ctx, snap, name, check, ""); err == nil { // failing rows of the partition's newest task
			return sample, nil
		}
		return "", fmt.Errorf("check %s last failed in %s: name this partition, or select a run with --run", check, readable(taskName(&failed)))
	case row.FailedSample == "":
		return "", noSample(check, row.FailedMessage)
	}
	return row.FailedSample, nil
}

// taskName returns the key of a task: its asset, and its partition in brackets.
func taskName(t *state.Task) string {
	asset, err := ids.ParseAssetKey(t.AssetKey)
	partition, bad := ids.ParsePartition(t.PartitionKey)
	if err != nil || bad != nil {
		return t.AssetKey
	}
	return ids.TaskKey(asset, partition)
}

// unknownCheck returns the error for a check without a result.
func unknownCheck(s *state.State, asset, check string) error {
	var known []string
	s.AssetChecks.Ascend(state.Key2{A: asset}, func(r *state.AssetCheck) bool {
		if r.AssetKey == asset {
			known = append(known, r.Check)
		}
		return r.AssetKey == asset
	})
	return noResult("check "+check+" of "+asset, known, check)
}

func noResult(what string, known []string, check string) error {
	switch near := plan.Suggest(check, known); {
	case near != "":
		return fmt.Errorf("%s has no result: did you mean %s?", what, near)
	case len(known) > 0:
		return fmt.Errorf("%s has no result: choose one of the checks with results: %s", what, strings.Join(known, ", "))
	}
	return fmt.Errorf("%s has no result: list the checks with `servo checks`", what)
}

func noSample(check, message string) error {
	return fmt.Errorf("check %s stored no failing rows: measurements, commands, broken checks, and assets with `samples: 0` store none; message of the check: %s",
		check, message)
}

// sampleOf returns the key of the failing rows of a check in a run.
func sampleOf(ctx context.Context, snap *snapshot.Snapshot, name, check, runID string) (string, error) {
	s, task, err := engine.FindTaskAnywhere(ctx, snap, runID, name)
	if err != nil {
		return "", err
	}
	row := s.CheckResults.Get(state.Key3{A: task.RunID, B: task.TaskKey, C: check})
	switch {
	case row == nil:
		var known []string
		s.CheckResults.Ascend(state.Key3{A: task.RunID, B: task.TaskKey}, func(r *state.CheckResult) bool {
			ours := r.RunID == task.RunID && r.TaskKey == task.TaskKey
			if ours {
				known = append(known, r.Check)
			}
			return ours
		})
		slices.Sort(known)
		return "", noResult("check "+check+" of "+readable(task.TaskKey)+" in run "+task.RunID, known, check)
	case row.Sample == "" && row.Passed && row.Failing == 0:
		return "", fmt.Errorf("check %s of %s has passed: it has no failing rows", check, readable(task.TaskKey))
	case row.Sample == "":
		return "", noSample(check, row.Message)
	}
	return row.Sample, nil
}

// printSample prints a stored Parquet file with failing rows.
func (a *app) printSample(ctx context.Context, store blob.Store, key string) (err error) {
	data, _, err := blob.Get(ctx, store, key, worker.MaxSampleBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return fmt.Errorf("the failing rows %s were deleted: Servo keeps failing rows only as long as the output, or for a day if the output was not published: "+
			"check the asset again with `servo check`", key)
	}
	if err != nil {
		return fmt.Errorf("read the failing rows: %w", err)
	}
	dir, err := os.MkdirTemp("", "servo-rows-")
	if err != nil {
		return fmt.Errorf("read the failing rows: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("read the failing rows: %w", err)
	}
	file := filepath.Join(dir, "rows.parquet")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("read the failing rows: %w", err)
	}
	db, err := query.Open(ctx, query.Source{AllowedDirs: []string{dir}}, query.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return a.answer(ctx, db, "FROM read_parquet('"+strings.ReplaceAll(file, "'", "''")+"')")
}
