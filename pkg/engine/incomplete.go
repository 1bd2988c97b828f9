package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// IncompleteInputs lists the incomplete inputs of a run's succeeded tasks. An input is incomplete if one of its
// partitions was never materialized, or if the task of one of its partitions did not succeed in this run. If the
// parameter named only is not nil, the result covers just this task, which need not have succeeded; the result is empty
// if this task was skipped or cancelled. IncompleteInputs returns an error if the plan cannot be read.
func IncompleteInputs(ctx context.Context, store blob.Store, s *state.State, run *state.Run, only *state.Task) ([]string, error) {
	if run.PlanRef == "" || only != nil && (only.State == state.TaskSkipped || only.State == state.TaskCancelled) {
		return nil, nil // a task that did not run has read nothing
	}
	p, err := readPlan(ctx, store, run)
	if err != nil {
		return nil, err
	}
	var found []string
	made := map[string]bool{}
	for i := range p.Tasks {
		t := &p.Tasks[i]
		if t.Kind == event.KindGroup || only != nil && only.TaskKey != t.TaskKey {
			continue
		}
		row := s.Tasks.Get(state.Key2{A: run.RunID, B: t.TaskKey})
		if row == nil || row.State != state.TaskSucceeded && only == nil {
			continue
		}
		made[t.AssetKey] = true
		if t.TriggerRule == event.RuleAllDone || t.TriggerRule == event.RuleNoneFailed {
			found = append(found, notMade(p, t, s, run)...)
		}
	}
	var missing []string
	for _, in := range p.Incomplete {
		if made[in.Asset] {
			missing = append(missing, in.String())
		}
	}
	return append(missing, found...), nil
}

// notMade lists those inputs of a task that other tasks of the run should have materialized, but did not.
func notMade(p *plan.Plan, t *plan.Task, s *state.State, run *state.Run) []string {
	var found []string
	for _, upstream := range slices.Sorted(maps.Keys(t.Inputs)) {
		set := t.Inputs[upstream]
		items := set.Items
		if set.Group != "" {
			items = p.Groups[set.Group]
		}
		var without []string
		for _, in := range items {
			if in.TaskKey == "" {
				continue
			}
			if up := s.Tasks.Get(state.Key2{A: run.RunID, B: in.TaskKey}); up != nil && up.State.Terminal() && up.State != state.TaskSucceeded {
				without = append(without, fmt.Sprintf("%s (%s)", in.TaskKey, up.State))
			}
		}
		if len(without) > 0 {
			found = append(found, fmt.Sprintf("%s reads %d of %d partitions of %s; missing %s",
				t.TaskKey, len(items)-len(without), len(items), upstream, view.Some(without)))
		}
	}
	return found
}
