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

// The machine slept for an hour. The worker survived, and its next heartbeat arrives just after the liveness call.
func TestLateLivenessCallWaitsForHeartbeats(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	timer := w.Timer(event.TimerLiveness)
	w.Now = timer.FireAt.Time().Add(time.Hour)
	w.MustFold(w.Fire(timer))
	require.Equal(t, state.TaskRunning, w.Task(run, "a").State)
	again := w.Timer(event.TimerLiveness)
	require.Equal(t, event.At(w.Now.Add(fold.LateRetry)), again.FireAt)
	require.Greater(t, again.Generation, timer.Generation)

	t.Run("a heartbeat keeps the attempt", func(t *testing.T) {
		alive := foldtest.New(t)
		alive.State, alive.Now = w.State.Copy(), w.Now.Add(time.Second)
		alive.MustFold(alive.Beat(run, "a", 1))
		alive.Now = again.FireAt.Time()
		alive.MustFold(alive.Fire(again))
		require.Equal(t, state.TaskRunning, alive.Task(run, "a").State)
	})
	t.Run("without one the attempt is closed", func(t *testing.T) {
		w.Now = again.FireAt.Time()
		w.MustFold(w.Fire(again))
		require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
		require.Equal(t, fold.CodeHeartbeatTimeout, w.Task(run, "a").ErrorCode)
	})
}

// The queue delivers each call of the liveness timer with a different delay. In the simulation, such calls once
// postponed the timeout of a run for an hour.
func TestRepeatedLateLivenessCallsCloseAttempt(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	for call := range fold.MaxLateCalls + 1 {
		require.Equal(t, state.TaskRunning, w.Task(run, "a").State, "call %d", call)
		timer := w.Timer(event.TimerLiveness)
		w.Now = timer.FireAt.Time().Add(time.Duration(call+1) * time.Minute)
		w.MustFold(w.Fire(timer))
		w.Now = w.Now.Add(-10 * time.Second) // an event with an earlier time makes the fold schedule the timer again
		setLimit(w, event.ScopePool, "other", 1)
	}
	require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
}

// The dispatcher's clock is two minutes ahead of the queue's clock, so that every call seems late. In the simulation,
// this difference once left a task RUNNING after its worker had died.
func TestEquallyLateLivenessCallClosesAttempt(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	for range 2 {
		require.Equal(t, state.TaskRunning, w.Task(run, "a").State)
		timer := w.Timer(event.TimerLiveness)
		w.Now = timer.FireAt.Time().Add(2 * time.Minute)
		w.MustFold(w.Fire(timer))
	}
	require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
}

// A laptop wakes up briefly between sleeps. None of the calls may close the attempt, because its worker could not
// deliver heartbeats.
func TestLivenessCallAfterEachSleepWaitsAgain(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	for _, slept := range []time.Duration{8 * time.Hour, 2 * time.Hour, 3 * time.Hour} {
		timer := w.Timer(event.TimerLiveness)
		w.Now = timer.FireAt.Time().Add(slept)
		w.MustFold(w.Fire(timer))
		require.Equal(t, state.TaskRunning, w.Task(run, "a").State, "%s", slept)
	}
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	require.Zero(t, w.State.Liveness().FiredAt, "the timer never fired")
}

// I-18. This test failed when the function overdue did not check whether the run had ended.
func TestI18FinishedIsFinal(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Task("a")
	def.TimeoutSec, def.HeartbeatTimeoutSec = 300, 1000
	run := w.RunWith(event.RunTriggered{TimeoutSec: 310}, def)
	w.MustFold(w.Started(run, "a", 1))
	timer := w.Timer(event.TimerLiveness) // 15 s after this timer is due, both deadlines have passed
	w.Now = timer.FireAt.Time().Add(15 * time.Second)
	w.MustFold(w.Fire(timer))
	row := w.State.Runs.Get(run)
	require.Equal(t, state.RunFailed, row.State, "the task's earlier deadline ended the run")
	require.Empty(t, row.ErrorCode)
}

func TestRunKeyExpiryCountsFromFoldTime(t *testing.T) {
	w := foldtest.New(t)
	w.Pass(365 * 24 * time.Hour)
	w.Run(foldtest.Task("ahead")) // the clock of this run's writer is a year ahead
	w.Now = foldtest.Epoch.Add(time.Hour)
	w.RunWith(event.RunTriggered{RunKey: "nightly", Fingerprint: "f"}, foldtest.Task("a"))
	again := &event.RunTriggered{RunKey: "nightly", Fingerprint: "f"}
	require.Equal(t, state.NoChange, w.Fold(w.Triggered(again, foldtest.Task("a"))...).Row.Outcome)
	require.Nil(t, w.State.Runs.Get(again.RunID))
}
