package fold_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// checkRun folds a run with one task that only checks the output of task a.
func checkRun(t *testing.T, w *foldtest.World) string {
	t.Helper()
	def := guarded("a", event.Quarantine{ExpiresSec: hour})
	def.Kind, def.Output, def.ErrorChecks = event.KindCheck, event.OutputNone, []string{"e"}
	group := w.Triggered(&event.RunTriggered{})
	plan := group[1].(*event.PlanCreated)
	g := w.Group(group...)
	g.Plans = map[string]fold.Plan{plan.PlanRef: {Tasks: []event.TaskDef{def}}}
	w.Apply(g)
	run := group[0].(*event.RunTriggered).RunID
	require.Equal(t, []string{"a=READY"}, w.States(run))
	return run
}

// TestCheckOnlyTaskChangesNoOutput checks that neither a success nor a failure changes the row of the partition, and
// that a failure creates no candidate, whatever the worker reports.
func TestCheckOnlyTaskChangesNoOutput(t *testing.T) {
	for _, outcome := range []event.Outcome{event.Succeeded, event.Failed} {
		w := foldtest.New(t)
		first := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
		w.MustFold(published(w, first))
		before := *visible(w)
		run := checkRun(t, w)
		p := published(w, run)
		want := state.RunSucceeded
		if outcome == event.Failed {
			p, want = blockedBy(w, run, "a"), state.RunFailed
		}
		p.CheckResults = append(p.CheckResults, event.CheckResult{Name: "e", Message: "bad"})
		w.MustFold(p)
		require.Equal(t, want, w.RunState(run))
		require.Equal(t, before, *visible(w))
		require.Zero(t, w.State.Candidates.Len())
		task := w.Task(run, "a")
		require.Empty(t, task.MaterializationID+task.OutputURI+task.Quality)
		require.EqualValues(t, 2, w.State.AssetChecks.Get(state.Key2{A: "test/a", B: "c"}).Passed+w.State.AssetChecks.Get(state.Key2{A: "test/a", B: "c"}).Failed)
		require.EqualValues(t, 1, w.State.AssetChecks.Get(state.Key2{A: "test/a", B: "e"}).Failed)
		require.NoError(t, foldtest.Check(w.State))
	}
}

// TestCheckOnlyTaskNeedsAllResults reports a success without the results of the task's checks. As for a task that
// materializes, the fold treats such a success as a failure.
func TestCheckOnlyTaskNeedsAllResults(t *testing.T) {
	w := foldtest.New(t)
	run := checkRun(t, w)
	w.MustFold(published(w, run))
	require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
	require.Equal(t, fold.CodeChecksMissing, w.Task(run, "a").ErrorCode)
}

// A failed check of severity ERROR does not fail its task.
func TestAlertReportsFailedErrorCheckOfCheckRun(t *testing.T) {
	w := newAlerted(t, rule("checks", event.CauseCheckFailed), rule("over", event.CauseRecovered))
	first := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(published(w.World, first))
	check := func(passed bool) *event.TaskFinished {
		p := published(w.World, checkRun(t, w.World))
		p.CheckResults = append(p.CheckResults, event.CheckResult{Name: "e", Passed: passed, Message: "99 of 100 rows"})
		return p
	}
	w.MustFold(check(false))
	sent := w.send(event.NotificationSent)
	require.Len(t, sent, 1)
	require.Equal(t, event.CauseCheckFailed, sent[0].Cause)
	require.Equal(t, "check e: 99 of 100 rows", sent[0].Message)
	w.MustFold(check(true))
	sent = w.send(event.NotificationSent)
	require.Len(t, sent, 1)
	require.Equal(t, event.CauseRecovered, sent[0].Cause)
	require.NoError(t, w.State.Verify())
}
