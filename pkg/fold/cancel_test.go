package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// inEveryState creates a run with a task in each state that is not terminal.
func inEveryState(w *foldtest.World) string {
	pooled := foldtest.Task("waiting")
	pooled.Pool = "none"
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopePool, Name: "none"})
	run := w.Run(
		pooled, foldtest.Task("pending"), foldtest.Task("created"), foldtest.Task("running"),
		foldtest.Retrying("retrying", 2), foldtest.Task("blocked", "running"),
		event.TaskDef{TaskKey: "after", DependsOn: []string{"pending"}, TriggerRule: event.RuleAllDone},
		event.TaskDef{TaskKey: "group", Kind: event.KindGroup, DependsOn: []string{"running"}},
	)
	w.MustFold(enqueued(run, "created", 0))
	w.MustFold(w.Started(run, "running", 1))
	w.MustFold(w.Finished(run, "retrying", 1, event.Failed))
	return run
}

func TestCancelKeepsRunningTasksForGracePeriod(t *testing.T) {
	w := foldtest.New(t)
	run := inEveryState(w)
	require.Equal(t, []string{
		"after=BLOCKED", "blocked=BLOCKED", "created=DISPATCHED", "group=BLOCKED", "pending=READY",
		"retrying=RETRY_WAIT", "running=RUNNING", "waiting=READY",
	}, w.States(run))
	w.State.Drain()
	cancel := &event.RunCancelRequested{RunID: run, Reason: "wrong date"}
	w.MustFold(cancel)
	require.Equal(t, []string{
		"after=CANCELLED", "blocked=CANCELLED", "created=CANCELLED", "group=CANCELLED", "pending=CANCELLED",
		"retrying=CANCELLED", "running=RUNNING", "waiting=CANCELLED",
	}, w.States(run))
	row := w.State.Runs.Get(run)
	require.Equal(t, state.RunCancelling, row.State)
	require.Equal(t, "wrong date", row.CancelReason)
	require.Equal(t, event.At(w.Now), row.CancelRequestedAt)
	require.Zero(t, w.State.Outbox.Len())
	require.Nil(t, w.Timer(event.TimerRetry))
	for _, row := range state.List[state.Dispatch](w.State.Changed()) {
		require.True(t, row.Deleted)
		require.Equal(t, state.DispatchCancelled, row.Status, "its queue task must be deleted")
	}
	require.Equal(t, state.NoChange, w.Fold(cancel).Row.Outcome)
	require.Equal(t, state.NoChange, w.Fold(w.Started(run, "created", 1)).Row.Outcome, "the start came after the cancel")
	require.Equal(t, int32(1), w.State.SlotsInUse())

	w.Pass(time.Second)
	w.MustFold(w.Beat(run, "running", 1))
	w.Pass(time.Minute)
	fireLiveness(t, w)
	require.Equal(t, state.RunCancelled, w.RunState(run))
	require.Equal(t, fold.CodeCancelled, w.Task(run, "running").ErrorCode)
	require.Zero(t, w.State.SlotsInUse())
	require.Equal(t, state.Stale, w.Fold(cancel).Row.Outcome)
}

func TestCancelUsesGracePeriodOfRun(t *testing.T) {
	w := foldtest.New(t)
	run := w.RunWith(event.RunTriggered{CancelGraceSec: 100}, foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	w.MustFold(&event.RunCancelRequested{RunID: run})
	fireLiveness(t, w)
	took := w.Now.Sub(foldtest.Epoch)
	require.True(t, took >= 100*time.Second && took <= 110*time.Second, "forced after %s", took)
	require.Equal(t, state.RunCancelled, w.RunState(run))
}

func TestForcedCancelEndsRunAtOnce(t *testing.T) {
	for name, before := range map[string]func(w *foldtest.World, run string){
		"no earlier cancel":     func(*foldtest.World, string) {},
		"after graceful cancel": func(w *foldtest.World, run string) { w.MustFold(&event.RunCancelRequested{RunID: run}) },
	} {
		w := foldtest.New(t)
		run := inEveryState(w)
		before(w, run)
		w.MustFold(&event.RunCancelRequested{RunID: run, Force: true})
		require.Equal(t, state.RunCancelled, w.RunState(run), name)
		require.Zero(t, w.State.SlotsInUse(), name)
		require.Nil(t, w.Timer(event.TimerLiveness), name)
		require.Equal(t, state.NoChange, w.Fold(w.Finished(run, "running", 1, event.Succeeded)).Row.Outcome, name)
	}
}

func TestReportAfterCancelCountsAsCancelled(t *testing.T) {
	for _, outcome := range []event.Outcome{event.Succeeded, event.Failed, event.Skipped, event.Cancelled, event.TimedOut} {
		w := foldtest.New(t)
		run := w.Run(foldtest.Retrying("a", 5), foldtest.Task("b", "a"))
		w.MustFold(w.Started(run, "a", 1))
		w.MustFold(&event.RunCancelRequested{RunID: run})
		w.MustFold(w.Finished(run, "a", 1, outcome))
		task := w.Task(run, "a")
		require.Equal(t, []string{"a=CANCELLED", "b=CANCELLED"}, w.States(run), outcome)
		require.Empty(t, task.OutputURI+task.MaterializationID, "the output stays invisible")
		require.Zero(t, task.RowCount+task.ByteSize)
		require.Equal(t, string(event.Cancelled), task.Outcome)
		require.Zero(t, w.State.Partitions.Len())
		require.Equal(t, state.RunCancelled, w.RunState(run), outcome)
		attempt := w.State.Attempts.Get(state.AttemptKey{RunID: run, TaskKey: "a", Attempt: 1})
		require.Equal(t, string(outcome), attempt.Outcome, "the attempt's row has its own outcome")
	}
}

func TestCancelEndsRunWithoutPlan(t *testing.T) {
	w := foldtest.New(t)
	run := w.ID()
	w.MustFold(&event.RunTriggered{RunID: run, Trigger: event.Trigger{Type: "manual"}})
	w.MustFold(&event.RunCancelRequested{RunID: run})
	require.Equal(t, state.RunCancelled, w.RunState(run))
	require.Equal(t, "cancelled on request", w.State.Runs.Get(run).CancelReason)
}

func TestCancelAfterLastTaskInSameGroupChangesNothing(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded), &event.RunCancelRequested{RunID: run})
	require.Equal(t, state.RunSucceeded, w.RunState(run))
	require.Empty(t, w.State.Runs.Get(run).CancelEventID)
}

func TestCancelFreesSlotsForOtherRuns(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 1})
	first, second := w.Run(foldtest.Task("a")), w.Run(foldtest.Task("a"))
	require.Zero(t, w.Task(second, "a").AdmittedAt)
	w.MustFold(&event.RunCancelRequested{RunID: first})
	require.NotZero(t, w.Task(second, "a").AdmittedAt)
}

// enqueued returns the event that acknowledges the queue task of a task's first attempt.
func enqueued(run, key string, generation int32) *event.DispatchEnqueued {
	id := ids.DispatchID(run, key, 1)
	return &event.DispatchEnqueued{
		DispatchID: id, RunID: run, TaskKey: key, Attempt: 1, Generation: generation,
		QueueTaskName: ids.QueueTaskID(ids.KindDispatch, foldtest.Domain, id, generation),
	}
}
