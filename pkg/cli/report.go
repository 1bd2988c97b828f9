package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// assetReportColumns are the columns of a run's report.
var assetReportColumns = []column[view.AssetReport]{
	{Name: "run_id", Machine: true, Value: func(r view.AssetReport) any { return r.RunID }},
	{Name: "asset", Value: func(r view.AssetReport) any { return r.Asset }},
	{Name: "tasks", Value: func(r view.AssetReport) any { return r.Tasks }},
	{Name: "rows", Value: func(r view.AssetReport) any { return r.Rows }, Text: func(r view.AssetReport) any { return number(view.Grouped(r.Rows)) }},
	{Name: "bytes", Value: func(r view.AssetReport) any { return r.Bytes }, Text: func(r view.AssetReport) any { return number(bytesText(r.Bytes)) }},
	{
		Name: "duration", Value: func(r view.AssetReport) any { return r.Took().Seconds() },
		Text: func(r view.AssetReport) any {
			if r.StartedAt == 0 {
				return nil
			}
			return number(view.Span(r.Took()))
		},
	},
	{Name: "state", Value: func(r view.AssetReport) any { return r.State() }},
}

// maxFailures is the maximum number of errors that a report describes.
const maxFailures = 20

// run executes the runs and reports how they ended.
func (r *runner) run(ctx context.Context) error {
	err := r.followToEnd(ctx)
	if err == nil || len(r.reports) > 0 {
		err = errors.Join(err, r.report())
	}
	if err != nil {
		return err
	}
	return r.failed
}

// ended reports how a run ended: to people immediately, to programs through [runner.report].
func (r *runner) ended(ctx context.Context, sess *session, s *state.State) error {
	a, run := r.a, s.Runs.Get(r.handle.RunID)
	reports := view.AssetReports(s, run.RunID)
	if a.table() {
		a.note("")
		if err := list(a, assetReportColumns, reports); err != nil {
			return err
		}
	}
	r.reports = append(r.reports, reports...)
	a.note("")
	a.failures(s, run.RunID)
	a.failedChecks(s, run.RunID)
	a.quarantined(s, run.RunID)
	a.skippedForQuality(s, run.RunID)
	r.incomplete(ctx, sess, s, run)
	if snap, err := sess.Current(ctx); err != nil {
		a.note("servo: cannot check the outputs of the run: %v", err)
	} else {
		r.schemas(ctx, sess, snap, run)
		r.unreadable(ctx, sess, snap, run)
	}
	a.noteEnd(run)
	r.mu.Lock()
	interrupted := r.interrupted
	r.mu.Unlock()
	switch {
	case run.State == state.RunSucceeded:
		return nil
	case interrupted:
		r.failed = errors.Join(errInterrupted, errReported)
		return nil
	case run.State == state.RunCancelled:
		a.note("cancelled: %s", cmp.Or(run.CancelReason, "no reason given"))
	}
	a.adviseRetry(view.RepeatOf(s, run.RunID), run.RunID)
	r.failed = errReported
	return nil
}

// skippedForQuality warns of tasks that were skipped because they do not allow degraded inputs. Such tasks do not make
// the run fail.
func (a *app) skippedForQuality(s *state.State, runID string) {
	n, first := 0, ""
	s.TasksOf(runID, func(t *state.Task) bool {
		if t.State == state.TaskSkipped && t.ErrorCode == plan.CodeUpstreamDegraded {
			n, first = n+1, cmp.Or(first, readable(t.TaskKey))
		}
		return true
	})
	if n > 0 {
		a.warn("skipped %s, which %s an output that is not degraded: servo explain %s %s", plural(n, "task"), map[bool]string{true: "requires", false: "require"}[n == 1], runID, quoted(first))
	}
}

// adviseRetry says how to repeat the failed tasks.
func (a *app) adviseRetry(f view.Repeat, runID string) {
	for _, line := range f.Advice(runID) {
		a.note("%s", line)
	}
}

// maxIncomplete is the maximum number of incomplete inputs that a report names.
const maxIncomplete = 20

// incomplete warns of tasks that succeeded although partitions of their inputs were missing.
func (r *runner) incomplete(ctx context.Context, sess *session, s *state.State, run *state.Run) {
	found, err := engine.IncompleteInputs(ctx, sess.Store(), s, run, nil)
	if err != nil {
		r.a.note("servo: cannot check the run for incomplete inputs: %v", err)
		return
	}
	if more := len(found) - maxIncomplete; more > 0 {
		found = append(found[:maxIncomplete:maxIncomplete], fmt.Sprintf("and %d more incomplete inputs", more))
	}
	r.a.warnings(found)
}

// schemas warns of partitions whose columns differ from the columns of existing partitions, and of queries that read
// partitions with different columns as one table.
func (r *runner) schemas(ctx context.Context, sess *session, snap *snapshot.Snapshot, run *state.Run) {
	found, err := engine.SchemaChanges(ctx, sess.Store(), snap, run, r.declared(snap))
	if err != nil {
		r.a.note("servo: cannot check the run for schema changes: %v", err)
	}
	r.a.warnings(found)
}

// unreadable warns of outputs that have no files. It also warns of outputs without Parquet files, if other assets of
// the project read their rows.
func (r *runner) unreadable(ctx context.Context, sess *session, snap *snapshot.Snapshot, run *state.Run) {
	found, err := engine.UnreadableOutputs(ctx, sess.Store(), snap, run, r.assets)
	if err != nil {
		r.a.note("servo: cannot check the run for outputs without Parquet files: %v", err)
	}
	r.a.warnings(found)
}

// declared returns a function that reports whether the project declares a stored partition. It
// returns nil if the assets of the project are unknown.
func (r *runner) declared(snap *snapshot.Snapshot) func(*state.Partition) bool {
	if r.assets == nil {
		return nil
	}
	calendar := view.Calendar(snap.State, r.a.Clock.Now())
	byKey := map[string]*space.Members{}
	for i := range r.assets {
		if members, err := calendar.Members(r.assets[i].Partitions); err == nil {
			byKey[r.assets[i].Key.String()] = members
		}
	}
	return func(row *state.Partition) bool {
		members := byKey[row.AssetKey]
		return members != nil && members.Has(row.PartitionKey)
	}
}

// report writes the results of all runs as one document, if the output is for programs. A second call writes nothing.
func (r *runner) report() error {
	if r.reported || r.a.table() {
		return nil
	}
	r.reported = true
	return list(r.a, assetReportColumns, r.reports)
}

// noteEnd prints how a run ended.
func (a *app) noteEnd(run *state.Run) {
	a.note("run %s %s in %s: %s", run.RunID, a.style.state(string(run.State)), view.Span(run.CompletedAt.Sub(run.CreatedAt)), counts(run))
	if run.ErrorMessage != "" {
		a.note("%s", view.OneLine(run.ErrorCode+": "+run.ErrorMessage))
	}
}

// doneText returns, for example, "2 of 3 tasks".
func doneText(r *state.Run) string {
	return view.Grouped(int64(view.Done(r))) + " of " + plural(int(r.TasksTotal), "task")
}

// stateWords contains the words that describe a task in each state.
var stateWords = map[state.TaskState]string{
	state.TaskSucceeded: "succeeded", state.TaskFailed: "failed", state.TaskSkipped: "skipped", state.TaskCancelled: "cancelled",
	state.TaskRunning: "running", state.TaskDispatched: "in the queue", state.TaskRetryWait: "waiting for a retry",
	state.TaskReady: "ready", state.TaskBlocked: "blocked",
}

// counts returns the number of a run's tasks in each state.
func counts(r *state.Run) string {
	var parts []string
	for _, c := range view.Counts(r) {
		if c.Tasks > 0 {
			parts = append(parts, view.Grouped(int64(c.Tasks))+" "+stateWords[c.State])
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "no tasks")
}

// failures prints each different error of a run once, with the first task that failed with it, the number of further
// tasks, and the command that lists all of them.
func (a *app) failures(s *state.State, runID string) {
	const margin = "       "
	found := view.Failures(s, runID)
	for i, f := range found {
		if i == maxFailures {
			a.note("… and %s: servo tasks %s --in FAILED", plural(len(found)-maxFailures, "more error"), runID)
			break
		}
		t := f.Tasks[0]
		a.note("%s %s, %s: %s", a.style.red("FAILED"), readable(t.TaskKey), view.Attempts(t),
			indented(view.FullError(f.Code, f.Message), margin))
		if others := len(f.Tasks) - 1; others > 0 {
			a.note(margin+"%s failed with the same error: servo tasks %s --in FAILED", plural(others, "more task"), runID)
		}
		if t.StartedAt != 0 {
			a.note(margin+"servo logs %s %s", runID, quoted(readable(t.TaskKey)))
		}
	}
	if len(found) > 0 {
		a.note("")
	}
}
