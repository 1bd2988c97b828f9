package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// assetReport summarizes a run's tasks of one asset.
type assetReport struct {
	run         string
	asset       string
	tasks       int
	succeeded   int
	rows, bytes int64
	first, last event.Time
	states      map[state.TaskState]int
}

// assetReports returns the reports of a run's assets, in the order in which they started.
func assetReports(s *state.State, runID string) []assetReport {
	index := map[string]int{}
	var reports []assetReport
	s.TasksOf(runID, func(t *state.Task) bool {
		if t.Kind == event.KindGroup {
			return true
		}
		name := cmp.Or(t.AssetKey, t.TaskKey)
		at, ok := index[name]
		if !ok {
			at = len(reports)
			index[name] = at
			reports = append(reports, assetReport{run: runID, asset: name, states: map[state.TaskState]int{}})
		}
		reports[at].add(t)
		return true
	})
	slices.SortStableFunc(reports, func(a, b assetReport) int {
		switch {
		case a.first == 0 && b.first != 0:
			return 1
		case a.first != 0 && b.first == 0:
			return -1
		}
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last), cmp.Compare(a.asset, b.asset))
	})
	return reports
}

func (r *assetReport) add(t *state.Task) {
	r.tasks++
	r.states[t.State]++
	if t.State == state.TaskSucceeded {
		r.succeeded++
		r.rows += t.RowCount
		r.bytes += t.ByteSize
	}
	if t.StartedAt != 0 {
		if r.first == 0 || t.StartedAt < r.first {
			r.first = t.StartedAt
		}
		r.last = max(r.last, t.CompletedAt)
	}
}

// stateText returns the state that all tasks share, or the number of tasks in each state.
func (r *assetReport) stateText() string {
	var parts []string
	for _, s := range []state.TaskState{
		state.TaskSucceeded, state.TaskFailed, state.TaskSkipped, state.TaskCancelled, state.TaskRunning,
		state.TaskRetryWait, state.TaskDispatched, state.TaskReady, state.TaskBlocked,
	} {
		switch n := r.states[s]; {
		case n == r.tasks:
			return string(s)
		case n > 0:
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// assetReportColumns are the columns of a run's report.
var assetReportColumns = []column[assetReport]{
	{Name: "run_id", Machine: true, Value: func(r assetReport) any { return r.run }},
	{Name: "asset", Value: func(r assetReport) any { return r.asset }},
	{Name: "tasks", Value: func(r assetReport) any { return r.tasks }},
	{Name: "rows", Value: func(r assetReport) any { return r.rows }, Text: func(r assetReport) any { return number(grouped(r.rows)) }},
	{Name: "bytes", Value: func(r assetReport) any { return r.bytes }, Text: func(r assetReport) any { return number(bytesText(r.bytes)) }},
	{
		Name: "duration", Value: func(r assetReport) any { return max(r.last.Sub(r.first), 0).Seconds() },
		Text: func(r assetReport) any {
			if r.first == 0 {
				return nil
			}
			return number(view.Span(max(r.last.Sub(r.first), 0)))
		},
	},
	{Name: "state", Value: func(r assetReport) any { return r.stateText() }},
}

// maxFailures is the most errors that a report describes.
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
	a, run := r.a, s.Runs.Get(r.ticket.RunID)
	reports := assetReports(s, run.RunID)
	if a.table() {
		a.note("")
		if err := list(a, assetReportColumns, reports); err != nil {
			return err
		}
	}
	r.reports = append(r.reports, reports...)
	a.note("")
	a.failures(s, run.RunID)
	r.incomplete(ctx, sess, s, run)
	r.schemas(ctx, sess, s, run)
	r.unreadable(ctx, sess, s, run)
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
	a.note("retry the failed tasks, with the code of that run: servo retry %s --failed", run.RunID)
	r.failed = errReported
	return nil
}

// maxIncomplete is the most incomplete inputs that a report names.
const maxIncomplete = 20

// incomplete warns of tasks that succeeded although partitions of their inputs were missing.
func (r *runner) incomplete(ctx context.Context, sess *session, s *state.State, run *state.Run) {
	found, err := engine.IncompleteInputs(ctx, sess.Store, s, run, nil)
	if err != nil {
		r.a.note("servo: cannot check the run for incomplete inputs: %v", err)
		return
	}
	if more := len(found) - maxIncomplete; more > 0 {
		found = append(found[:maxIncomplete:maxIncomplete], fmt.Sprintf("and %d more incomplete inputs", more))
	}
	r.a.warnings(found)
}

// schemas warns of partitions whose columns differ from those of existing partitions, and of
// queries that read both as one table.
func (r *runner) schemas(ctx context.Context, sess *session, s *state.State, run *state.Run) {
	found, err := engine.SchemaChanges(ctx, sess.Store, s, run, r.declared())
	if err != nil {
		r.a.note("servo: cannot check the run for schema changes: %v", err)
	}
	r.a.warnings(found)
}

// unreadable warns of outputs without Parquet files whose rows other assets of the project read.
func (r *runner) unreadable(ctx context.Context, sess *session, s *state.State, run *state.Run) {
	found, err := engine.UnreadableOutputs(ctx, sess.Store, s, run, r.assets)
	if err != nil {
		r.a.note("servo: cannot check the run for outputs without Parquet files: %v", err)
	}
	r.a.warnings(found)
}

// declared returns a function that reports whether the project declares a stored partition. It
// returns nil if the assets of the project are unknown.
func (r *runner) declared() func(*state.Partition) bool {
	if r.assets == nil {
		return nil
	}
	byKey := map[string]*plan.Asset{}
	for i := range r.assets {
		byKey[r.assets[i].Key.String()] = &r.assets[i]
	}
	return func(row *state.Partition) bool {
		asset := byKey[row.AssetKey]
		return asset != nil && asset.Declares(row.PartitionKey)
	}
}

// report writes the results of all runs once, as one document for programs.
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
		a.note("%s", oneLine(run.ErrorCode+": "+run.ErrorMessage))
	}
}

// counts returns the number of tasks in each state.
func counts(r *state.Run) string {
	var parts []string
	for _, c := range []struct {
		n    int32
		word string
	}{
		{r.TasksSucceeded, "succeeded"},
		{r.TasksFailed, "failed"},
		{r.TasksSkipped, "skipped"},
		{r.TasksCancelled, "cancelled"},
		{r.TasksRunning, "running"},
		{r.TasksDispatch, "in the queue"},
		{r.TasksRetryWait, "waiting for a retry"},
		{r.TasksReady, "ready"},
		{r.TasksBlocked, "blocked"},
	} {
		if c.n > 0 {
			parts = append(parts, grouped(int64(c.n))+" "+c.word)
		}
	}
	if len(parts) == 0 {
		return "no tasks"
	}
	return strings.Join(parts, ", ")
}

// failure is an error with the tasks that failed with it.
type failure struct {
	code, message string
	tasks         []*state.Task
}

// failuresOf groups the failed tasks of a run by error, in the order of the tasks.
func failuresOf(s *state.State, runID string) []*failure {
	type key struct{ code, message string }
	index := map[key]*failure{}
	var found []*failure
	s.TasksOf(runID, func(t *state.Task) bool {
		if t.State != state.TaskFailed {
			return true
		}
		k := key{t.ErrorCode, t.ErrorMessage}
		if index[k] == nil {
			index[k] = &failure{code: t.ErrorCode, message: t.ErrorMessage}
			found = append(found, index[k])
		}
		index[k].tasks = append(index[k].tasks, t)
		return true
	})
	return found
}

// failures prints each error of a run once, with the tasks that failed with it and the command
// that shows more.
func (a *app) failures(s *state.State, runID string) {
	const margin = "       "
	found := failuresOf(s, runID)
	for i, f := range found {
		if i == maxFailures {
			a.note("… and %s: servo tasks %s --in FAILED", plural(len(found)-maxFailures, "more error"), runID)
			break
		}
		t := f.tasks[0]
		a.note("%s %s, %s: %s", a.style.red("FAILED"), t.TaskKey, view.Attempts(t),
			indented(fullError(f.code, f.message), margin))
		if others := len(f.tasks) - 1; others > 0 {
			a.note(margin+"%s failed with the same error: servo tasks %s --in FAILED", plural(others, "more task"), runID)
		}
		if t.StartedAt != 0 {
			a.note(margin+"servo logs %s %s", runID, quoted(t.TaskKey))
		}
	}
	if len(found) > 0 {
		a.note("")
	}
}
