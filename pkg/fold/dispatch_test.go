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

// redispatch returns the request to dispatch a task's first attempt again.
func redispatch(run, key string, generation int32) *event.DispatchRequested {
	return &event.DispatchRequested{
		RunID: run, TaskKey: key, Attempt: 1, AttemptID: ids.AttemptID(foldtest.Domain, run, key, 1),
		DispatchID: ids.DispatchID(run, key, 1), Generation: generation,
	}
}

func outbox(w *foldtest.World, run string) *state.Dispatch {
	return w.State.Outbox.Get(ids.DispatchID(run, "a", 1))
}

func TestOutboxRowHasFieldsOfEnvelope(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Task("a")
	def.PartitionKey, def.WorkerQueue, def.MaxAttempts = `{"date":"2026-01-02"}`, "gpu", 4
	def.TimeoutSec, def.HeartbeatTimeoutSec = 7, 8
	run := w.Run(def)
	row, task := outbox(w, run), w.Task(run, "a")
	require.Equal(t, &state.Dispatch{
		DispatchID: ids.DispatchID(run, "a", 1), QueueTaskName: ids.QueueTaskID("d", foldtest.Domain, ids.DispatchID(run, "a", 1), 0),
		RunID: run, TaskKey: "a", Attempt: 1, AttemptID: task.AttemptID, MaxAttempts: 4, Status: state.DispatchPending,
		WorkerQueue: "gpu", PlanRef: w.State.Runs.Get(run).PlanRef, AssetKey: "test/a", PartitionKey: def.PartitionKey,
		TimeoutSec: 7, HeartbeatTimeoutSec: 8, CreatedAt: event.At(w.Now), Meta: row.Meta,
	}, row)
	require.Equal(t, state.RunRunning, w.RunState(run))
}

func TestDispatchEnqueuedIsRecordedOnce(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(enqueued(run, "a", 0))
	row := outbox(w, run)
	require.Equal(t, state.DispatchCreated, row.Status)
	require.Equal(t, event.At(w.Now.Add(fold.DispatchDeadline)), row.Deadline)
	require.Equal(t, state.TaskDispatched, w.Task(run, "a").State)
	w.Pass(time.Second)
	require.Equal(t, state.NoChange, w.Fold(enqueued(run, "a", 0)).Row.Outcome)
	require.Equal(t, state.Stale, w.Fold(enqueued(run, "a", 1)).Row.Outcome)
	require.Equal(t, row, outbox(w, run))
	w.MustFold(w.Started(run, "a", 1))
	require.Nil(t, outbox(w, run))
	require.Equal(t, state.Stale, w.Fold(enqueued(run, "a", 0)).Row.Outcome)
}

func TestDispatchEnqueuedAfterStartIsStale(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	require.Equal(t, state.Stale, w.Fold(enqueued(run, "a", 0)).Row.Outcome)
	require.Equal(t, state.TaskRunning, w.Task(run, "a").State)
}

func TestDispatchIsRepeatedAtMostFiveTimes(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"))
	names := map[string]bool{outbox(w, run).QueueTaskName: true}
	for n := int32(1); n <= fold.MaxGenerations; n++ {
		w.MustFold(enqueued(run, "a", n-1))
		w.MustFold(redispatch(run, "a", n))
		row := outbox(w, run)
		require.Equal(t, state.DispatchPending, row.Status)
		require.Zero(t, row.Deadline+row.EnqueuedAt)
		require.False(t, names[row.QueueTaskName], "generation %d reuses a name", n)
		names[row.QueueTaskName] = true
		require.Equal(t, state.NoChange, w.Fold(redispatch(run, "a", n)).Row.Outcome)
		require.Equal(t, state.Stale, w.Fold(enqueued(run, "a", n-1)).Row.Outcome, "an old generation")
	}
	require.Equal(t, int32(1), w.Task(run, "a").Attempt, "the attempt is the same")
	w.State.Drain()
	w.MustFold(redispatch(run, "a", fold.MaxGenerations+1))
	require.Equal(t, []string{"a=RETRY_WAIT", "b=BLOCKED"}, w.States(run))
	require.Equal(t, fold.CodeUndispatchable, w.Task(run, "a").ErrorCode)
	require.Equal(t, "dispatched 6 times without starting", w.Task(run, "a").ErrorMessage)
	require.Equal(t, state.DispatchFailed, state.List[state.Dispatch](w.State.Changed())[0].Status)
}

func TestDispatchRejectedByQueueFailsAttempt(t *testing.T) {
	rejected := func(run string, retryable bool) *event.DispatchFailed {
		return &event.DispatchFailed{
			DispatchID: ids.DispatchID(run, "a", 1), RunID: run, TaskKey: "a", Attempt: 1,
			Error: event.Error{Code: "X", Message: "too large", Retryable: retryable},
		}
	}
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 2))
	w.MustFold(rejected(run, true))
	require.Equal(t, []string{"a=RETRY_WAIT"}, w.States(run))
	require.Equal(t, state.Stale, w.Fold(rejected(run, true)).Row.Outcome)

	run = w.Run(foldtest.Retrying("a", 2))
	w.MustFold(rejected(run, false))
	require.Equal(t, []string{"a=FAILED"}, w.States(run))
	require.Equal(t, "too large", w.Task(run, "a").ErrorMessage)

	run = w.Run(foldtest.Task("a"))
	w.MustFold(enqueued(run, "a", 0))
	require.Equal(t, state.Stale, w.Fold(rejected(run, false)).Row.Outcome, "another dispatcher created the queue task")
}

func TestDispatchRequestNeedsWaitingAttempt(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 2})
	run := w.Run(foldtest.Retrying("a", 2), foldtest.Task("b"), foldtest.Task("c"), foldtest.Task("d", "a"))
	w.MustFold(w.Started(run, "b", 1))
	require.Equal(t, state.Stale, w.Fold(redispatch(run, "b", 1)).Row.Outcome, "the task runs")
	require.Equal(t, state.Stale, w.Fold(redispatch(run, "c", 1)).Row.Outcome, "the task has no slot")
	require.Equal(t, state.Stale, w.Fold(redispatch(run, "d", 1)).Row.Outcome, "the task is blocked")
	forged := redispatch(run, "a", 1)
	forged.AttemptID = w.ID()
	require.Equal(t, state.Stale, w.Fold(forged).Row.Outcome)
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	require.Equal(t, state.Stale, w.Fold(redispatch(run, "a", 1)).Row.Outcome, "the task waits for a retry")
}

// Each attempt leaves a tombstone of its outbox row. The tombstone must not repeat the other columns of the row, but
// needs the columns by which readers choose files.
func TestOutboxTombstoneHasOnlyItsKeyRunTaskAndStatus(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.State.Drain()
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	changed := state.List[state.Dispatch](w.State.Changed())
	require.Len(t, changed, 1)
	require.Equal(t, &state.Dispatch{
		DispatchID: ids.DispatchID(run, "a", 1), RunID: run, TaskKey: "a", Status: state.DispatchPending, Meta: changed[0].Meta,
	}, changed[0])
	require.True(t, changed[0].Deleted)
}
