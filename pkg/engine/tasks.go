package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// FindTask returns the task of a run that a name denotes. The name can be, in this order of precedence: the key of
// the task; the key of one of the partitions of its batch; the key of its asset, if the asset has only one task; a
// part of the task's key, if no other key contains it.
func FindTask(s *state.State, runID, name string) (*state.Task, error) {
	found, keys := matching(s, runID, name)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("task %q of run %s: %w: it matches %d tasks, for example %s; use the whole key",
			name, runID, ErrNotFound, len(found), ids.ReadableKey(found[0].TaskKey))
	}
	if near := plan.Suggest(ids.StoredKey(name), keys); near != "" {
		return nil, fmt.Errorf("task %q of run %s: %w: did you mean %s?", name, runID, ErrNoTask, ids.ReadableKey(near))
	}
	return nil, fmt.Errorf("task %q of run %s: %w: list its tasks with `servo tasks %s` (it has %s)", name, runID, ErrNoTask, runID, view.Count(len(keys), "task"))
}

// maxOlderRuns is the maximum number of older runs that are searched for a task.
const maxOlderRuns = 100

// FindTaskAnywhere returns a task of a run and a state with the rows of that run. If runID is "", it takes the newest
// run that has such a task.
func FindTaskAnywhere(ctx context.Context, snap *snapshot.Snapshot, runID, name string) (*state.State, *state.Task, error) {
	s, run, err := FindRun(ctx, snap, runID)
	if err != nil {
		return nil, nil, err
	}
	task, err := FindTask(s, run.RunID, name)
	if err == nil || runID != "" {
		return s, task, err
	}
	if found, _ := matching(s, run.RunID, name); len(found) > 1 {
		return nil, nil, err
	}
	older, listErr := snap.Runs(ctx, maxOlderRuns, func(r *state.Run) bool { return r.RunID != run.RunID })
	if listErr != nil {
		return nil, nil, listErr
	}
	for _, r := range older {
		of, err := snap.WithRun(ctx, r.RunID)
		if err != nil {
			return nil, nil, err
		}
		if of == nil {
			continue
		}
		if found, _ := matching(of, r.RunID, name); len(found) > 0 {
			task, err := FindTask(of, r.RunID, name)
			return of, task, err
		}
	}
	if len(older) > 0 {
		err = fmt.Errorf("%w; the task is not in the %s before this run either", err, view.Count(len(older), "run"))
	}
	return nil, nil, err
}

// matching returns the tasks of a run that match a name: the key of a task, also in its readable form; the key of one
// partition of a batch; the key of an asset; or a part of a task's key. It also returns the keys of all tasks of the
// run, unless the name is the key of a task or of a partition of a batch.
func matching(s *state.State, runID, name string) (found []*state.Task, keys []string) {
	name = ids.StoredKey(name)
	if t := s.Tasks.Get(state.Key2{A: runID, B: name}); t != nil {
		return []*state.Task{t}, nil
	}
	if t := batchWith(s, runID, name); t != nil {
		return []*state.Task{t}, nil
	}
	var ofAsset, containing []*state.Task
	s.TasksOf(runID, func(t *state.Task) bool {
		keys = append(keys, t.TaskKey)
		if t.Kind != event.KindGroup && name != "" {
			if t.AssetKey == name {
				ofAsset = append(ofAsset, t)
			}
			if strings.Contains(t.TaskKey, name) {
				containing = append(containing, t)
			}
		}
		return true
	})
	if len(ofAsset) > 0 {
		return ofAsset, keys
	}
	return containing, keys
}

// batchWith returns the task of a run that materializes the named partition together with others, or nil.
func batchWith(s *state.State, runID, name string) (task *state.Task) {
	if s.Batches.Len() == 0 {
		return nil
	}
	asset, partition, err := ids.ParseTaskKey(name)
	if err != nil || len(partition) == 0 {
		return nil
	}
	key, prefix := partition.Key(), asset.String()+"["
	s.Batches.Ascend(state.Key2{A: runID, B: prefix}, func(b *state.Batch) bool {
		if b.RunID != runID || !strings.HasPrefix(b.TaskKey, prefix) {
			return false
		}
		if slices.Contains(b.List(), key) {
			task = s.Tasks.Get(b.Key())
		}
		return task == nil
	})
	return task
}
