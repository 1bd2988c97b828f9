package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/source"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Retry triggers a run of the tasks that did not succeed in an ended run.
func (e *Engine) Retry(ctx context.Context, runID string) (RunHandle, error) {
	snap, err := e.Current(ctx)
	if err != nil {
		return RunHandle{}, err
	}
	s, parent, err := FindRun(ctx, snap, runID)
	if err != nil {
		return RunHandle{}, err
	}
	if id, err := e.repeated(snap); err != nil || id != "" {
		if err != nil {
			return RunHandle{}, err
		}
		return attach(ctx, snap, snap.State.RunKeys.Get(e.conditions.Key), e.conditions.Fingerprint)
	}
	if !parent.State.Terminal() {
		return RunHandle{}, fmt.Errorf("retry run %s: it is %s; wait until it ends, or cancel it", parent.RunID, parent.State)
	}
	if live := snap.State.LiveRunOf(parent.Root()); live != "" {
		return RunHandle{}, errLiveRetry(parent.RunID, live)
	}
	old, err := e.plan(ctx, parent)
	if err != nil {
		return RunHandle{}, err
	}
	if err := e.checkFolder(parent.RunID, old); err != nil {
		return RunHandle{}, err
	}
	var repeat []string
	outputs := map[string]plan.Input{}
	s.TasksOf(parent.RunID, func(t *state.Task) bool {
		switch {
		case t.Kind == event.KindGroup:
		case t.State == state.TaskSucceeded:
			outputs[t.TaskKey] = plan.Input{
				PartitionKey: t.PartitionKey, MaterializationID: t.MaterializationID, URI: t.OutputURI,
				Degraded: t.Quality == state.Degraded,
			}
		default:
			repeat = append(repeat, t.TaskKey)
		}
		return true
	})
	built, err := plan.Retry(old, repeat, outputs)
	if err != nil {
		return RunHandle{}, fmt.Errorf("retry run %s: %w", parent.RunID, err)
	}
	p := &event.RunTriggered{
		RunKey: e.conditions.Key, Fingerprint: e.conditions.Fingerprint,
		Trigger:        event.Trigger{Type: "retry", ParentRunID: parent.RunID, ScheduleID: fold.ScheduleOf(parent)},
		MaxParallelism: parent.MaxParallelism, TimeoutSec: parent.TimeoutSec, CancelGraceSec: parent.CancelGraceSec,
		Release: parent.Release, RootRun: parent.Root(), AfterRun: max(parent.RunID, snap.State.LastRetry(parent.Root())), AllowIncomplete: parent.AllowIncomplete,
	}
	if parent.Vars != "" {
		if err := json.Unmarshal([]byte(parent.Vars), &p.Vars); err != nil {
			return RunHandle{}, fmt.Errorf("read variables of run %s: %w", parent.RunID, err)
		}
	}
	if p.RootAssets, err = retriedAssets(parent, built); err != nil {
		return RunHandle{}, err
	}
	on, err := e.checkInputs(ctx, snap, built, parent)
	if err != nil {
		return RunHandle{}, fmt.Errorf("retry run %s: %w", parent.RunID, err)
	}
	warnings, err := replacedOutputs(ctx, snap, parent.RunID, built)
	if err != nil {
		return RunHandle{}, err
	}
	t, err := e.trigger(ctx, snap, built, p, on)
	t.Warnings = warnings
	return t, err
}

func errLiveRetry(runID, live string) error {
	return fmt.Errorf("retry run %s: %w: run %s: wait until it ends, or cancel it", runID, ErrLiveRetry, live)
}

// checkFolder returns an error if a retry would read the files of another project folder than that of the caller: a
// plan names the folder in which its tasks execute, unless it names an archive of the project's files.
func (e *Engine) checkFolder(runID string, p *plan.Plan) error {
	if e.cfg.Root == "" || p.Root == "" || p.Source != "" || source.SameFolder(e.cfg.Root, p.Root) {
		return nil
	}
	return fmt.Errorf("retry run %s: %w, %s, but this project is in %s: run the failed partitions with the files of this project: `servo run --failed-only`",
		runID, ErrOtherFolder, p.Root, e.cfg.Root)
}

// replacedOutputs warns if a retry repeats partitions that a later run has already materialized. The retry executes the
// code of its parent, which is the retried run, on the inputs of the parent, and replaces the newer outputs.
func replacedOutputs(ctx context.Context, snap *snapshot.Snapshot, parent string, built *plan.Plan) ([]string, error) {
	first, count := "", 0
	for i := range built.Tasks {
		t := &built.Tasks[i]
		for _, partition := range t.EachPartition() {
			row, err := snap.Partition(ctx, t.AssetKey, partition)
			if err != nil {
				return nil, fmt.Errorf("read the output of %s: %w", t.TaskKey, err)
			}
			if row == nil || row.RunID <= parent {
				continue
			}
			if count++; first == "" {
				first = fmt.Sprintf("%s of run %s", t.TaskKey, row.RunID)
			}
		}
	}
	switch count {
	case 0:
		return nil, nil
	case 1:
		return []string{fmt.Sprintf("the retry replaces a newer output, %s, with the result of the code and inputs of run %s", first, parent)}, nil
	}
	return []string{fmt.Sprintf("the retry replaces %d newer outputs, such as %s, with the results of the code and inputs of run %s", count, first, parent)}, nil
}

// retriedAssets returns the assets that the parent's request selected. If the parent's row does not list all of them,
// it returns the assets that the retry executes.
func retriedAssets(parent *state.Run, built *plan.Plan) (keys []string, err error) {
	if parent.RootAssets != "" {
		if err := json.Unmarshal([]byte(parent.RootAssets), &keys); err != nil {
			return nil, fmt.Errorf("read root assets of run %s: %w", parent.RunID, err)
		}
	}
	if len(keys) >= int(parent.RootAssetsTotal) {
		return keys, nil
	}
	keys = nil
	for i := range built.Tasks {
		if key := built.Tasks[i].AssetKey; key != "" {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return atMost(slices.Compact(keys)), nil
}

// retryInput is an output of an earlier run that a task of a retry reads.
type retryInput struct {
	task, asset string
	plan.Input
}

// label returns the name of the output as users write it.
func (in *retryInput) label() string {
	asset, err := ids.ParseAssetKey(in.asset)
	partition, badKey := ids.ParsePartition(in.PartitionKey)
	if err != nil || badKey != nil {
		return in.asset + " " + in.PartitionKey // the plan is damaged
	}
	return ids.TaskKey(asset, partition)
}

// retryInputs returns the outputs of earlier runs that a plan reads, each output once.
func retryInputs(built *plan.Plan) []retryInput {
	type key struct{ asset, partition, id string }
	var found []retryInput
	seen := map[key]bool{}
	for i := range built.Tasks {
		t := &built.Tasks[i]
		for _, asset := range slices.Sorted(maps.Keys(t.Inputs)) {
			set := t.Inputs[asset]
			for _, in := range slices.Concat(set.Items, built.Groups[set.Group]) {
				if k := (key{asset, in.PartitionKey, in.MaterializationID}); k.id != "" && !seen[k] {
					seen[k] = true
					found = append(found, retryInput{t.TaskKey, asset, in})
				}
			}
		}
	}
	return found
}

// markerReads is the number of markers that are read at once.
const markerReads = 16

// checkInputs returns an error if a retry reads an output that a person has hidden or that was deleted. A visible
// output is never deleted, so checkInputs reads the commit markers of the other outputs only. If an output is deleted
// after this check, the task that reads it fails with the same error code.
//
// checkInputs also returns an error if another retry of the same chain has replaced an output that this retry reads.
// Otherwise, the state would say that this retry has read the later output: tasks count as having read the newest
// outputs of their own chain, even before these become visible to other runs.
//
// checkInputs returns the sequence number and the time of the state on which, according to its plan, the retry was
// planned. Usually, this is the state on which the parent was planned. It is an earlier state if the parent's state
// showed a later output than the one that the retry reads. This happens if the parent was requested before the run that
// made the later output, but planned after it. A rebuild from the bare ledger uses the time of the state instead of the
// fold sequence, so checkInputs lowers both the sequence and the time.
func (e *Engine) checkInputs(ctx context.Context, snap *snapshot.Snapshot, built *plan.Plan, parent *state.Run) (observed, error) {
	on := observed{seq: parent.InputsSeq, at: parent.InputsAt}
	inputs := retryInputs(built)
	problems := make([]string, len(inputs))
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(markerReads)
	for i := range inputs {
		in := &inputs[i]
		row, err := snap.Stored(ctx, in.asset, in.PartitionKey)
		if err != nil {
			return on, errors.Join(fmt.Errorf("read the output of %s: %w", in.label(), err), group.Wait())
		}
		if row != nil && row.MaterializationID == in.MaterializationID {
			if snap.State.Hidden(row) {
				problems[i] = view.MarkOf(snap.State.MarkOf(row)).String()
			}
			continue
		}
		if row != nil && row.ReadIn() == parent.Root() {
			problems[i] = "run " + row.RunID + " of the same chain of retries has replaced it"
			continue
		}
		if row != nil && row.VersionSeq <= on.seq {
			on = observed{seq: max(row.VersionSeq-1, 0), at: min(on.at, row.MaterializedAt-1)}
		}
		if in.URI == "" { // the output has no files
			continue
		}
		group.Go(func() error {
			_, _, err := ReadMarker(reading, e.cfg.Store, in.URI)
			if errors.Is(err, blob.ErrNotFound) {
				problems[i] = "a later output replaced it, and `keep` has expired"
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return on, fmt.Errorf("read the markers of its inputs: %w", err)
	}
	return on, unreadableInputs(inputs, problems)
}

// unreadableInputs returns an error that describes the inputs with a problem. It returns nil if there are none.
func unreadableInputs(inputs []retryInput, problems []string) error {
	first, count := -1, 0
	for i, problem := range problems {
		if problem == "" {
			continue
		}
		if count++; first < 0 {
			first = i
		}
	}
	if count == 0 {
		return nil
	}
	more := ""
	if count > 1 {
		more = fmt.Sprintf(" (and %s like it)", view.Count(count-1, "input"))
	}
	in := &inputs[first]
	return fmt.Errorf("%w: task %s reads %s%s: %s: make the outputs again with `servo run`", ErrMissingInput, in.task, in.label(), more, problems[first])
}
