package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// outputs compares the outputs of succeeded tasks with their commit markers.
type outputs struct {
	Config

	live   *state.State
	snap   *snapshot.Snapshot
	report *Report
	// bad describes the damaged outputs that are visible or that a live run reads, one line each.
	bad []string
	// reads contains, by materialization, the live run that reads or has created it. Nil: not loaded yet.
	reads map[string]string
	// unread is a live run whose plan is unreadable. Such a run may read any output.
	unread string
}

// check compares the outputs of the given tasks with their commit markers. A superseded output may lack its commit
// marker, because collection deletes the marker before the files.
func (o *outputs) check(ctx context.Context, tasks []*state.Task) error {
	for _, t := range tasks {
		if t.State != state.TaskSucceeded || t.OutputURI == "" {
			continue
		}
		o.report.Outputs++
		problem, err := o.output(ctx, t)
		missing := errors.Is(err, errNoMarker)
		if missing {
			problem, err = "its commit marker "+contract.CommitMarkerKeyOf(t.OutputURI)+" is missing", nil
		}
		if err == nil && problem == "" {
			continue
		}
		old := false
		if err == nil {
			old, err = o.superseded(ctx, t)
		}
		if err == nil && (!missing || !old) {
			err = o.add(ctx, t, problem, old)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add reports a damaged output.
func (o *outputs) add(ctx context.Context, t *state.Task, problem string, old bool) error {
	line := fmt.Sprintf("output of task %s of run %s: %s", t.TaskKey, t.RunID, problem)
	if old {
		run, err := o.reader(ctx, t)
		switch {
		case err != nil:
			return err
		case run != "":
			line += "; it is superseded, but unfinished run " + run + " reads it or may read it"
		default:
			o.report.SupersededOutputs++
			o.report.BadOutputs++
			if len(o.report.Superseded) < maxProblems {
				o.report.Superseded = append(o.report.Superseded, line)
			}
			return nil
		}
	}
	if o.report.BadOutputs++; len(o.bad) <= maxProblems {
		o.bad = append(o.bad, line)
	}
	return nil
}

// reader returns the id of a live run that reads or may read the output of a task. It returns "" if no such run
// exists.
func (o *outputs) reader(ctx context.Context, t *state.Task) (string, error) {
	if o.reads == nil {
		o.reads = map[string]string{}
		for run := range o.live.Runs.All {
			if run.State.Terminal() {
				continue
			}
			o.live.TasksOf(run.RunID, func(t *state.Task) bool {
				o.reads[ids.MaterializationID(o.Domain, t.RunID, t.TaskKey)] = run.RunID
				return true
			})
			if err := o.inputs(ctx, run); err != nil {
				return "", err
			}
		}
	}
	return cmp.Or(o.reads[t.MaterializationID], o.unread), nil
}

// inputs records in o.reads which materializations the plan of a live run reads. If the plan is missing or damaged,
// inputs sets o.unread, because the run may read any output. It does not report this problem: the replay reports it.
func (o *outputs) inputs(ctx context.Context, run *state.Run) error {
	if run.PlanRef == "" {
		return nil
	}
	data, _, err := blob.Get(ctx, o.Store, run.PlanRef, plan.MaxBytes)
	if ctx.Err() != nil {
		return err
	}
	var built *plan.Plan
	if err == nil {
		built, err = plan.Open(run.PlanRef, data)
	}
	if err != nil {
		o.unread = run.RunID
		return nil //nolint:nilerr // the plan is unreadable, so the run may read any output
	}
	note := func(items []plan.Input) {
		for _, item := range items {
			if item.MaterializationID != "" {
				o.reads[item.MaterializationID] = run.RunID
			}
		}
	}
	for _, items := range built.Groups {
		note(items)
	}
	for i := range built.Tasks {
		for _, set := range built.Tasks[i].Inputs {
			note(set.Items)
		}
	}
	return nil
}

var errNoMarker = errors.New("no commit marker")

// superseded reports whether every partition of a task has a later output, or a person has hidden the task's output.
func (o *outputs) superseded(ctx context.Context, t *state.Task) (bool, error) {
	partitions := []string{t.PartitionKey}
	if contract.IsBatchURI(t.OutputURI) {
		s, err := o.snap.WithRun(ctx, t.RunID)
		if err != nil {
			return false, err
		}
		if s != nil {
			partitions = s.PartitionsOf(t)
		}
	}
	for _, partition := range partitions {
		row, err := o.snap.Stored(ctx, t.AssetKey, partition)
		if err != nil || row == nil || row.MaterializationID == t.MaterializationID && !o.snap.State.Hidden(row) {
			return false, err
		}
	}
	return true, nil
}

func (cfg Config) output(ctx context.Context, t *state.Task) (problem string, err error) {
	key := contract.CommitMarkerKeyOf(t.OutputURI)
	data, _, err := blob.Get(ctx, cfg.Store, key, contract.MaxCommitMarkerBytes)
	if errors.Is(err, blob.ErrNotFound) {
		return "", errNoMarker
	}
	if large, ok := errors.AsType[*blob.TooLargeError](err); ok {
		return fmt.Sprintf("its commit marker %s cannot be read: %v", key, large), nil
	}
	if err != nil {
		return "", err
	}
	marker, err := contract.DecodeCommitMarker(data)
	if err != nil {
		return fmt.Sprintf("its commit marker %s cannot be read: %v", key, err), nil
	}
	if marker.URI != t.OutputURI {
		return fmt.Sprintf("the state names %s, but its commit marker names %s", t.OutputURI, marker.URI), nil
	}
	for _, f := range marker.Files {
		if problem, err := cfg.file(ctx, marker.URI+f.Name, f); problem != "" || err != nil {
			return problem, err
		}
	}
	return "", nil
}

// file compares an object with its record in the commit marker. It reads the object's content only if the store keeps
// no checksums.
func (cfg Config) file(ctx context.Context, key string, want contract.CommitMarkerFile) (problem string, err error) {
	object, err := cfg.Store.Head(ctx, key)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return "file " + key + " is missing", nil
	case err != nil:
		return "", err
	case object.Size != want.Size:
		return fmt.Sprintf("file %s has %d bytes; it was committed with %d", key, object.Size, want.Size), nil
	}
	sum := object.CRC32C
	if sum == 0 {
		if sum, err = cfg.sum(ctx, key); err != nil {
			return fmt.Sprintf("file %s cannot be read: %v", key, err), ctx.Err()
		}
	}
	if sum != want.CRC32C {
		return fmt.Sprintf("file %s has CRC-32C %08x; it was committed with %08x", key, sum, want.CRC32C), nil
	}
	return "", nil
}

func (cfg Config) sum(ctx context.Context, key string) (sum uint32, err error) {
	from, _, err := cfg.Store.Open(ctx, key)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	sum, _, err = filecheck.Sum(ctx, from)
	return sum, err
}
