package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// INV-1. This test failed when resolveEdge incremented DepsSatisfied only for the last edge.
func TestINV1OrderIndependence(t *testing.T) {
	finish := func(order ...string) []string {
		w := foldtest.New(t)
		run := w.Run(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c"), foldtest.Task("d", "a", "b", "c"))
		for _, key := range order {
			w.MustFold(w.Finished(run, key, 1, event.Succeeded))
		}
		require.Equal(t, int32(3), w.Task(run, "d").DepsSatisfied)
		return w.States(run)
	}
	want := []string{"a=SUCCEEDED", "b=SUCCEEDED", "c=SUCCEEDED", "d=READY"}
	require.Equal(t, want, finish("a", "b", "c"))
	require.Equal(t, want, finish("c", "b", "a"))
	require.Equal(t, want, finish("b", "c", "a"))
}

// INV-2. This test failed when the function resolve did not skip resolved edges, and when the function accept did not
// check for a terminal state.
func TestINV2DuplicateSafety(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c", "a", "b"))
	finished := w.Finished(run, "a", 1, event.Succeeded)
	w.MustFold(finished)
	before := w.State.Copy()

	again := w.Fold(finished)
	require.Equal(t, state.NoChange, again.Row.Outcome)
	require.Equal(t, int32(1), w.Task(run, "c").DepsSatisfied, "the edge counted twice")
	require.Equal(t, before.Tasks.Rows(), w.State.Tasks.Rows())
	require.Equal(t, before.Runs.Rows(), w.State.Runs.Rows())

	group := w.Group(w.Finished(run, "b", 1, event.Succeeded))
	require.False(t, fold.Apply(w.State, group).Known)
	require.True(t, fold.Apply(w.State, group).Known, "a recorded entry is not folded again")
}

// INV-6. This test failed when the function decide returned READY for every resolved edge.
func TestINV6DependencyCorrectness(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"), foldtest.Task("c", "b"))
	require.Equal(t, []string{"a=READY", "b=BLOCKED", "c=BLOCKED"}, w.States(run))
	require.Equal(t, 1, w.State.Outbox.Len(), "only a is dispatched")
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	require.Equal(t, []string{"a=SUCCEEDED", "b=READY", "c=BLOCKED"}, w.States(run))
}

// INV-8. This test failed when the function accept treated an earlier attempt as the current one.
func TestINV8StaleAttemptIsRejected(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("extract", 3))
	w.MustFold(w.Started(run, "extract", 1))
	w.MustFold(w.Started(run, "extract", 2)) // the fold adopts attempt 2, although attempt 1 has not ended in the state
	require.Equal(t, state.TaskRunning, w.Task(run, "extract").State)

	w.Fold(w.Finished(run, "extract", 1, event.Failed))
	task := w.Task(run, "extract")
	require.Equal(t, state.TaskRunning, task.State, "attempt 2 still runs")
	require.Equal(t, int32(2), task.Attempt)
	require.Zero(t, w.State.Outbox.Len(), "nothing new is dispatched")
	require.Nil(t, w.Timer(event.TimerRetry))
	first := w.State.Attempts.Get(state.AttemptKey{RunID: run, TaskKey: "extract", Attempt: 1})
	require.Equal(t, "BOOM", first.ErrorCode, "the attempt's row has its own end")

	forged := w.Started(run, "extract", 2)
	forged.AttemptID = w.ID()
	require.Equal(t, state.Stale, w.Fold(forged).Row.Outcome, "the attempt id is not derived from the key")
}

// INV-9. This test failed when timerFired ignored Observed.
func TestINV9TimerRespectsWatermarkFreshness(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("extract", 3))
	w.MustFold(w.Finished(run, "extract", 1, event.Failed))
	timer := w.Timer(event.TimerRetry)
	w.Now = timer.FireAt.Time()

	lagging := w.Fire(timer)
	lagging.Observed.CaughtUpAt = lagging.FiredAt.Add(-45 * time.Second)
	w.MustFold(lagging)
	require.Equal(t, state.TaskRetryWait, w.Task(run, "extract").State, "no decision on old projections")
	later := w.Timer(event.TimerRetry)
	require.Equal(t, timer.Generation+1, later.Generation)
	require.NotEqual(t, timer.QueueTaskName, later.QueueTaskName, "the queue rejects used names")

	w.Now = later.FireAt.Time()
	require.Equal(t, state.Stale, w.Fold(w.Fire(timer)).Row.Outcome, "the old call is delivered again")
	w.MustFold(w.Fire(later))
	require.Equal(t, int32(2), w.Task(run, "extract").Attempt)
	require.Equal(t, state.TaskReady, w.Task(run, "extract").State)
}

// INV-10. This test failed when the function resolve ended tasks without also resolving the edges to their downstreams.
func TestINV10FailurePropagation(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"), foldtest.Task("c", "b"), foldtest.Task("x"), foldtest.Task("y", "x"))
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	require.Equal(t, []string{"a=FAILED", "b=SKIPPED", "c=SKIPPED", "x=READY", "y=BLOCKED"}, w.States(run))
	edge := func(up, down string) state.Resolution {
		return w.State.Deps.Get(state.Key3{A: run, B: up, C: down}).Resolution
	}
	require.Equal(t, state.ResolvedFailed, edge("a", "b"))
	require.Equal(t, state.ResolvedSkipped, edge("b", "c"))

	w.MustFold(w.Finished(run, "x", 1, event.Succeeded))
	w.MustFold(w.Finished(run, "y", 1, event.Succeeded))
	require.Equal(t, state.RunFailed, w.RunState(run), "independent branches continued")
}
