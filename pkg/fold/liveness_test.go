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

// fireLiveness advances the time to the liveness timer and fires it.
func fireLiveness(t *testing.T, w *foldtest.World) {
	t.Helper()
	timer := w.Timer(event.TimerLiveness)
	require.NotNil(t, timer, "no liveness timer is scheduled")
	if at := timer.FireAt.Time(); at.After(w.Now) {
		w.Now = at
	}
	w.MustFold(w.Fire(timer))
}

func TestMissingHeartbeatClosesAttempt(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Task("a")
	def.HeartbeatTimeoutSec = 60
	run := w.Run(def)
	require.Nil(t, w.Timer(event.TimerLiveness), "nothing runs")
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(50 * time.Second)
	w.MustFold(w.Beat(run, "a", 1))

	fireLiveness(t, w) // the timer was set for the start, but the heartbeat has moved the deadline
	require.Equal(t, []string{"a=RUNNING"}, w.States(run))
	fireLiveness(t, w)
	require.Equal(t, []string{"a=RETRY_WAIT"}, w.States(run))
	late := w.Now.Sub(foldtest.Epoch.Add(110 * time.Second))
	require.True(t, late >= 0 && late <= 6*time.Second, "late by %s, more than a tenth", late)
	task := w.Task(run, "a")
	require.Equal(t, fold.CodeHeartbeatTimeout, task.ErrorCode)
	require.Equal(t, string(event.TimedOut), task.Outcome)
	require.Equal(t, event.At(foldtest.Epoch.Add(50*time.Second)), task.LastHeartbeatAt)
	require.Equal(t, state.RunRunning, w.RunState(run))
	require.Nil(t, w.Timer(event.TimerLiveness), "nothing is live")
}

func TestTaskTimeoutIgnoresHeartbeats(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Task("a")
	def.TimeoutSec = 120
	run := w.Run(def)
	w.MustFold(w.Started(run, "a", 1))
	for range 2 {
		w.Pass(time.Minute)
		w.MustFold(w.Beat(run, "a", 1))
		require.Equal(t, []string{"a=RUNNING"}, w.States(run))
	}
	fireLiveness(t, w)
	require.Equal(t, fold.CodeTaskTimeout, w.Task(run, "a").ErrorCode)
	late := w.Now.Sub(foldtest.Epoch.Add(120*time.Second + state.TimeoutGrace))
	require.True(t, late >= 0 && late <= 12*time.Second, "late by %s, more than a tenth", late)
}

func TestTwoDeadlinesCloseAttemptOnce(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Retrying("a", 3)
	def.TimeoutSec, def.HeartbeatTimeoutSec = 60, 65
	run := w.Run(def)
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(80 * time.Second)
	fireLiveness(t, w)
	require.Equal(t, []string{"a=RETRY_WAIT"}, w.States(run))
	require.Equal(t, fold.CodeHeartbeatTimeout, w.Task(run, "a").ErrorCode, "the earlier of the two deadlines")
}

func TestWorkerClockDoesNotMoveTimeout(t *testing.T) {
	for name, skew := range map[string]time.Duration{"slow": -time.Hour, "fast": time.Hour} {
		w := foldtest.New(t)
		def := foldtest.Task("a")
		def.TimeoutSec, def.HeartbeatTimeoutSec = 600, 3600
		run := w.Run(def)
		started := w.Started(run, "a", 1)
		started.StartedAt = started.StartedAt.Add(skew)
		w.MustFold(started)
		fireLiveness(t, w)
		require.Equal(t, fold.CodeTaskTimeout, w.Task(run, "a").ErrorCode, name)
		took := w.Now.Sub(foldtest.Epoch)
		require.True(t, took >= 600*time.Second && took <= 670*time.Second, "%s clock: timed out after %s", name, took)
	}
}

func TestRunTimeoutAllowsGracePeriod(t *testing.T) {
	w := foldtest.New(t)
	run := w.RunWith(event.RunTriggered{TimeoutSec: 60}, foldtest.Task("a"), foldtest.Task("b", "a"), foldtest.Task("c"))
	w.MustFold(w.Started(run, "a", 1))
	fireLiveness(t, w)
	require.Equal(t, []string{"a=RUNNING", "b=CANCELLED", "c=CANCELLED"}, w.States(run))
	require.Equal(t, state.RunCancelling, w.RunState(run))
	require.Equal(t, fold.CodeRunTimeout, w.State.Runs.Get(run).ErrorCode)
	fireLiveness(t, w)
	require.Equal(t, []string{"a=CANCELLED", "b=CANCELLED", "c=CANCELLED"}, w.States(run))
	require.Equal(t, state.RunTimedOut, w.RunState(run))
	require.Nil(t, w.Timer(event.TimerLiveness))
}

func TestRunWithoutPlanTimesOut(t *testing.T) {
	w := foldtest.New(t)
	run := w.ID()
	w.MustFold(&event.RunTriggered{RunID: run, TimeoutSec: 60, Trigger: event.Trigger{Type: "manual"}})
	fireLiveness(t, w)
	require.Equal(t, state.RunTimedOut, w.RunState(run))
	require.Equal(t, state.Stale, w.Fold(&event.PlanCreated{RunID: run, Tasks: []event.TaskDef{foldtest.Task("a")}}).Row.Outcome)
}

func TestOneLivenessTimerAtEarliestDeadline(t *testing.T) {
	w := foldtest.New(t)
	slow, fast := foldtest.Task("slow"), foldtest.Task("fast")
	slow.HeartbeatTimeoutSec, fast.HeartbeatTimeoutSec = 3600, 10
	run := w.Run(slow, fast)
	w.MustFold(w.Started(run, "slow", 1))
	first := w.Timer(event.TimerLiveness)
	require.Equal(t, foldtest.Epoch.Add(time.Hour).Truncate(30*time.Second).Add(30*time.Second), first.FireAt.Time())
	w.MustFold(w.Started(run, "fast", 1))
	second := w.Timer(event.TimerLiveness)
	require.Equal(t, foldtest.Epoch.Add(10*time.Second), second.FireAt.Time())
	require.Equal(t, first.Generation+1, second.Generation)
	w.MustFold(w.Finished(run, "fast", 1, event.Succeeded))
	require.Equal(t, second, w.Timer(event.TimerLiveness), "an earlier timer is kept")
	fireLiveness(t, w)
	require.Equal(t, first.FireAt, w.Timer(event.TimerLiveness).FireAt)
	require.Equal(t, state.Stale, w.Fold(w.Fire(second)).Row.Outcome)
	w.MustFold(w.Finished(run, "slow", 1, event.Succeeded))
	require.Nil(t, w.Timer(event.TimerLiveness))
}

func TestLivenessTimerUsesEachQueueNameOnce(t *testing.T) {
	w := foldtest.New(t)
	names := map[string]bool{}
	for range 5 { // five runs within one second
		run := w.Run(foldtest.Task("a"))
		w.MustFold(w.Started(run, "a", 1))
		name := w.Timer(event.TimerLiveness).QueueTaskName
		require.False(t, names[name], "the queue rejects used names")
		names[name] = true
		w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
		require.Nil(t, w.Timer(event.TimerLiveness))
	}
}

func TestFiredLivenessTimerIsNotCancelled(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(4 * time.Minute)
	w.MustFold(w.Beat(run, "a", 1))
	w.State.Drain()
	fireLiveness(t, w)
	for _, row := range state.List[state.Timer](w.State.Changed()) {
		require.NotEqual(t, state.TimerCancelled, row.State, "the queue task was delivered: do not delete it")
	}
}

func TestLivenessTimerWaitsWhileProjectionsLag(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b"))
	w.MustFold(w.Started(run, "a", 1))
	w.Now = w.Timer(event.TimerLiveness).FireAt.Time()
	fired := w.Fire(w.Timer(event.TimerLiveness))
	fired.Observed.CaughtUpAt = fired.FiredAt.Add(-45 * time.Second)
	w.MustFold(fired)
	again := w.Timer(event.TimerLiveness)
	require.Equal(t, event.At(w.Now.Add(fold.LagRetry)), again.FireAt)
	require.Equal(t, state.TaskRunning, w.Task(run, "a").State)

	w.Pass(time.Second)
	w.MustFold(w.Started(run, "b", 1))
	require.Equal(t, again, w.Timer(event.TimerLiveness), "other events do not move the timer")
	fireLiveness(t, w)
	require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
}

func TestMissingLivenessTimerIsRestored(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	lost := *w.Timer(event.TimerLiveness)
	lost.Deleted = true
	w.State.Timers.Put(&lost)
	r := w.Fold(&event.TimerRequested{
		TimerID: lost.TimerID, TimerType: event.TimerLiveness, Generation: lost.Generation + 1, FireAt: lost.FireAt,
	})
	require.Equal(t, state.Folded, r.Row.Outcome, "the group changes rows")
	require.Equal(t, lost.FireAt, w.Timer(event.TimerLiveness).FireAt)
}

// A queue may drop the queue task of a long task. If the worker then dies, only the heartbeat timeout detects this.
// So tasks that declare no heartbeat timeout have a default one.
func TestDefaultHeartbeatTimeoutLeadsToRetry(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 2))
	w.MustFold(w.Started(run, "a", 1))
	fireLiveness(t, w)
	require.Equal(t, []string{"a=RETRY_WAIT"}, w.States(run))
	require.Equal(t, fold.CodeHeartbeatTimeout, w.Task(run, "a").ErrorCode)
	late := w.Now.Sub(foldtest.Epoch.Add(fold.DefaultHeartbeatTimeoutSec * time.Second))
	require.True(t, late >= 0 && late <= 30*time.Second, "late by %s", late)
	retry := w.Timer(event.TimerRetry)
	w.Now = retry.FireAt.Time()
	w.MustFold(w.Fire(retry))
	require.Equal(t, []string{"a=READY"}, w.States(run))
}
