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

func attempt(w *foldtest.World, run string, n int32) *state.Attempt {
	return w.State.Attempts.Get(state.AttemptKey{RunID: run, TaskKey: "a", Attempt: n})
}

func TestStartAndSuccessFreeOutboxAndSlot(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	task := w.Task(run, "a")
	require.Equal(t, []any{state.TaskRunning, event.At(w.Now), "worker-1"}, []any{task.State, task.StartedAt, task.WorkerID})
	require.Equal(t, state.AttemptRunning, attempt(w, run, 1).State)
	require.Equal(t, state.NoChange, w.Fold(w.Started(run, "a", 1)).Row.Outcome)
	require.Equal(t, int32(1), w.State.SlotsInUseByRun(run))

	w.Pass(time.Second)
	finished := w.Finished(run, "a", 1, event.Succeeded)
	finished.Metrics = map[string]int64{"rows_read": 3}
	finished.Log = "3 rows\n"
	finished.Output.SchemaHash = "h"
	w.MustFold(finished)
	task = w.Task(run, "a")
	require.Equal(t, event.At(w.Now), task.CompletedAt)
	require.Equal(t, []any{finished.Output.URI, int64(1), int64(2), "h"}, []any{task.OutputURI, task.RowCount, task.ByteSize, task.SchemaHash})
	require.Equal(t, ids.MaterializationID(foldtest.Domain, run, "a"), task.MaterializationID)
	require.JSONEq(t, `{"rows_read":3}`, attempt(w, run, 1).Metrics)
	require.Equal(t, "3 rows\n", attempt(w, run, 1).Log)
	require.Equal(t, []any{int32(0), int32(0)}, []any{w.State.SlotsInUse(), w.State.SlotsInUseByRun(run)})
	row := w.State.Runs.Get(run)
	require.Equal(t, []any{state.RunSucceeded, event.At(w.Now)}, []any{row.State, row.CompletedAt})
	partition := w.State.Partitions.Get(state.Key2{A: "test/a"})
	require.Equal(t, []any{run, task.MaterializationID, finished.Output.URI, "h"},
		[]any{partition.RunID, partition.MaterializationID, partition.OutputURI, partition.SchemaHash})
}

func TestHeartbeatBeforeStartMarksTaskRunning(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.Pass(time.Minute)
	beat := w.Beat(run, "a", 1)
	beat.Progress, beat.Message = 40, "half way"
	w.MustFold(beat)
	require.Equal(t, state.TaskRunning, w.Task(run, "a").State)
	require.Nil(t, outbox(w, run), "the attempt is not dispatched again")
	row := w.State.Heartbeats.Get(state.Key2{A: run, B: "a"})
	require.Equal(t, []any{int32(40), "half way"}, []any{row.Progress, row.Message})

	started := w.Started(run, "a", 1) // this report arrives late, but contains the true start time
	started.StartedAt = event.At(foldtest.Epoch.Add(time.Second))
	w.MustFold(started)
	require.Equal(t, started.StartedAt, w.Task(run, "a").StartedAt)
	require.Equal(t, started.StartedAt, attempt(w, run, 1).StartedAt)
	require.Equal(t, int32(40), w.State.Heartbeats.Get(state.Key2{A: run, B: "a"}).Progress)
	require.Equal(t, state.NoChange, w.Fold(started).Row.Outcome)
}

func TestEarlierHeartbeatChangesNothing(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(time.Minute)
	last := w.Group(w.Beat(run, "a", 1))
	w.Pass(-30 * time.Second)
	earlier := w.Beat(run, "a", 1)
	require.Equal(t, state.Folded, w.Apply(last).Row.Outcome)
	require.Equal(t, state.NoChange, w.Fold(earlier).Row.Outcome)
	require.Equal(t, last.Events[0].Time, w.State.Heartbeats.Get(state.Key2{A: run, B: "a"}).LastHeartbeatAt)
}

func TestLaterAttemptIsAdoptedAndOldEndIsRecorded(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 5))
	w.MustFold(w.Started(run, "a", 3))
	require.Equal(t, int32(3), w.Task(run, "a").Attempt)
	require.Equal(t, fold.CodeSuperseded, attempt(w, run, 1).ErrorCode)
	require.Nil(t, attempt(w, run, 2), "attempt 2 has not reported")

	past := w.Finished(run, "a", 2, event.Failed)
	past.StartedAt = event.At(foldtest.Epoch.Add(-time.Hour))
	w.MustFold(past)
	second := attempt(w, run, 2)
	require.Equal(t, []any{state.AttemptClosed, "BOOM", past.StartedAt, "worker-1"}, []any{second.State, second.ErrorCode, second.StartedAt, second.WorkerID})
	past = w.Finished(run, "a", 1, event.TimedOut)
	w.MustFold(past)
	require.Equal(t, past.StartedAt, attempt(w, run, 1).StartedAt)
	require.Equal(t, "worker-1", attempt(w, run, 1).WorkerID)
	require.Equal(t, state.Stale, w.Fold(past).Row.Outcome, "the same report again")
	require.Equal(t, []string{"a=RUNNING"}, w.States(run))
}

func TestReportBeforeAdmissionStartsRun(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace})
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"))
	require.Equal(t, state.RunPending, w.RunState(run))
	w.MustFold(w.Started(run, "a", 1))
	require.Equal(t, state.RunRunning, w.RunState(run))
	require.Equal(t, event.At(w.Now), w.State.Runs.Get(run).StartedAt)
	w.MustFold(w.Finished(run, "b", 2, event.Succeeded)) // when task b was dispatched, the state contained the end of task a
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	require.Equal(t, []string{"a=SUCCEEDED", "b=SUCCEEDED"}, w.States(run))
	require.Equal(t, state.RunSucceeded, w.RunState(run))
}

func TestOutputOfFailedAttemptIsIgnored(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 2))
	failed := w.Finished(run, "a", 1, event.Failed)
	failed.Output = &event.Output{URI: "rejected/", RowCount: 9}
	w.MustFold(failed)
	require.Empty(t, w.Task(run, "a").OutputURI)
	succeeded := w.Finished(run, "a", 2, event.Succeeded)
	succeeded.Output = nil
	w.MustFold(succeeded)
	require.Empty(t, w.Task(run, "a").OutputURI)
	require.Zero(t, w.Task(run, "a").RowCount)
}

func TestTerminalTaskNeverChanges(t *testing.T) {
	for _, end := range []event.Outcome{event.Succeeded, event.Failed, event.Skipped} {
		w := foldtest.New(t)
		run := w.Run(foldtest.Task("a"), foldtest.Task("b"))
		w.MustFold(w.Finished(run, "a", 1, end))
		before := foldtest.Dump(w.State)
		for _, p := range []event.Payload{
			w.Started(run, "a", 1), w.Beat(run, "a", 1), w.Finished(run, "a", 1, event.Succeeded),
			w.Finished(run, "a", 1, event.Failed), w.Started(run, "a", 2), w.Beat(run, "a", 2),
			w.Finished(run, "a", 2, event.Succeeded), enqueued(run, "a", 0), redispatch(run, "a", 1),
		} {
			require.Contains(t, []state.EntryOutcome{state.NoChange, state.Stale}, w.Fold(p).Row.Outcome, p.Type())
			require.Equal(t, before, foldtest.Dump(w.State), "%s after %s", p.Type(), end)
		}
	}
}

func TestPartitionHasOutputOfLaterRun(t *testing.T) {
	finish := func(order ...int) *state.Partition {
		w := foldtest.New(t)
		runs := []string{w.Run(foldtest.Task("a")), w.Run(foldtest.Task("a"))}
		for _, i := range order {
			w.MustFold(w.Finished(runs[i], "a", 1, event.Succeeded))
		}
		row := *w.State.Partitions.Get(state.Key2{A: "test/a"})
		row.Meta, row.VersionSeq = state.Meta{}, 0
		require.Equal(t, runs[1], row.RunID)
		return &row
	}
	require.Equal(t, finish(0, 1), finish(1, 0))
}

func TestTasksOfOnePartitionCommute(t *testing.T) {
	for _, order := range [][]string{{"x", "y"}, {"y", "x"}} {
		w := foldtest.New(t)
		run := w.Run(event.TaskDef{TaskKey: "x", AssetKey: "test/a"}, event.TaskDef{TaskKey: "y", AssetKey: "test/a"})
		for _, key := range order {
			w.MustFold(w.Finished(run, key, 1, event.Succeeded))
		}
		require.Equal(t, "y", w.State.Partitions.Get(state.Key2{A: "test/a"}).TaskKey)
	}
}
