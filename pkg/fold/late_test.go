package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A machine slept for an hour. The worker lived, and its next sign of life comes
// a moment after the liveness call.
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

	t.Run("it is heard, and lives", func(t *testing.T) {
		w := foldtest.World{State: w.State.Copy(), Now: w.Now}
		w.Pass(time.Second)
		heard := foldtest.New(t)
		heard.State, heard.Now = w.State, w.Now
		heard.MustFold(heard.Beat(run, "a", 1))
		heard.Now = again.FireAt.Time()
		heard.MustFold(heard.Fire(again))
		require.Equal(t, state.TaskRunning, heard.Task(run, "a").State)
	})
	t.Run("it is not, and is given up", func(t *testing.T) {
		w.Now = again.FireAt.Time()
		w.MustFold(w.Fire(again))
		require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
		require.Equal(t, fold.CodeHeartbeatTimeout, w.Task(run, "a").ErrorCode)
	})
}

// The queue delivers every call late by another amount. Found by the simulation, where the
// timeout of a run was put off for an hour.
func TestRepeatedLateLivenessCallsCloseAttempt(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 1))
	for call := range fold.MaxLateCalls + 1 {
		require.Equal(t, state.TaskRunning, w.Task(run, "a").State, "call %d", call)
		timer := w.Timer(event.TimerLiveness)
		w.Now = timer.FireAt.Time().Add(time.Duration(call+1) * time.Minute)
		w.MustFold(w.Fire(timer))
		w.Now = w.Now.Add(-10 * time.Second) // a writer whose clock is behind: the timer is scheduled again
		setLimit(w, event.ScopePool, "other", 1)
	}
	require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
}

// The clock of the dispatcher is two minutes ahead of the queue's: all that it is
// called for seems late. Found by the simulation, where a task whose worker had died
// stayed RUNNING.
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

// A laptop wakes for a moment in the night, twice: neither call may end what could not
// be heard.
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
	require.Zero(t, w.State.Liveness().FiredAt, "it never fired")
}

// I-18. Seen to fail with overdue not looking at whether the run has ended.
func TestI18FinishedIsFinal(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Task("a")
	def.TimeoutSec, def.HeartbeatTimeoutSec = 300, 1000
	run := w.RunWith(event.RunTriggered{TimeoutSec: 310}, def)
	w.MustFold(w.Started(run, "a", 1))
	timer := w.Timer(event.TimerLiveness) // at 300 s, rounded up to half a minute: both deadlines are due
	w.Now = timer.FireAt.Time().Add(15 * time.Second)
	w.MustFold(w.Fire(timer))
	row := w.State.Runs.Get(run)
	require.Equal(t, state.RunFailed, row.State, "the task's deadline came first, and ended it")
	require.Empty(t, row.ErrorCode)
}

func TestRunKeyExpiryCountsFromFoldTime(t *testing.T) {
	w := foldtest.New(t)
	w.Pass(365 * 24 * time.Hour)
	w.Run(foldtest.Task("ahead")) // by a clock that was a year ahead
	w.Now = foldtest.Epoch.Add(time.Hour)
	w.RunWith(event.RunTriggered{RunKey: "nightly", Fingerprint: "f"}, foldtest.Task("a"))
	again := &event.RunTriggered{RunKey: "nightly", Fingerprint: "f"}
	require.Equal(t, state.NoChange, w.Fold(w.Triggered(again, foldtest.Task("a"))...).Row.Outcome)
	require.Nil(t, w.State.Runs.Get(again.RunID))
}
