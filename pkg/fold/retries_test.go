package fold_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// policy returns a task with a retry policy, in its nth attempt. initial and greatest are delays in milliseconds; the
// multiplier and the jitter are in thousandths.
func policy(n int32, initial, greatest int64, multiplier, jitter int32) *state.Task {
	return &state.Task{
		Attempt: n, AttemptID: "01KDYT2YV800000000000000AB", RetryInitialDelayMS: initial, RetryMaxDelayMS: greatest,
		RetryMultiplierPermille: multiplier, RetryJitterPermille: jitter,
	}
}

func TestBackoffGrowsUpToMaximum(t *testing.T) {
	for _, c := range []struct {
		task *state.Task
		want int64
	}{
		{policy(1, 1000, 60_000, 2000, 0), 1000},
		{policy(2, 1000, 60_000, 2000, 0), 2000},
		{policy(6, 1000, 60_000, 2000, 0), 32_000},
		{policy(7, 1000, 60_000, 2000, 0), 60_000},
		{policy(8, 1000, 60_000, 2000, 0), 60_000},
		{policy(3, 1000, 60_000, 1500, 0), 2250},
		{policy(4, 333, 60_000, 1500, 0), 1122}, // 333 → 499 → 748 → 1122: each step rounds down
		{policy(9, 5000, 1000, 2000, 0), 1000},  // the maximum also limits the initial delay
		{policy(3, 1000, 60_000, 500, 0), 250},  // a multiplier below one
		{policy(1, 0, 60_000, 2000, 500), 0},
		{policy(40, 1000, math.MaxInt64, 1_000_000, 0), fold.MaxBackoffMS},
		{policy(1, math.MaxInt64, math.MaxInt64, 2000, 1000), 21_515_279_019},
		// These values are fixed, because the results of a replay must never change.
		{policy(1, 1000, 60_000, 2000, 500), 566},
		{policy(7, 1000, 60_000, 2000, 1000), 51_372},
	} {
		require.Equal(t, c.want, fold.Backoff(c.task), "%+v", c.task)
	}
}

func TestBackoffReturnsForManyAttempts(t *testing.T) {
	for _, multiplier := range []int32{0, 500, 1000, 1001} {
		require.LessOrEqual(t, fold.Backoff(policy(math.MaxInt32, 999, math.MaxInt64, multiplier, 0)), int64(999))
	}
	require.Equal(t, int64(fold.MaxBackoffMS), fold.Backoff(policy(math.MaxInt32, 1000, math.MaxInt64, 1001, 0)))
}

func TestBackoffStaysBetweenItsBounds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		task := policy(
			rapid.Int32Range(1, math.MaxInt32).Draw(r, "attempt"),
			rapid.Int64Min(0).Draw(r, "initial"), rapid.Int64Min(0).Draw(r, "max"),
			rapid.Int32Range(0, 1_000_000).Draw(r, "multiplier"), rapid.Int32Range(0, 1000).Draw(r, "jitter"),
		)
		got := fold.Backoff(task)
		plain := *task
		plain.RetryJitterPermille = 0
		whole := fold.Backoff(&plain)
		if got < 0 || got > whole || whole > task.RetryMaxDelayMS || whole > fold.MaxBackoffMS {
			r.Fatalf("the delay is %d ms, and %d ms without jitter", got, whole)
		}
		if keep := whole - whole/1000*int64(task.RetryJitterPermille) - int64(task.RetryJitterPermille); got < keep {
			r.Fatalf("jitter subtracts %d ms of %d ms", whole-got, whole)
		}
	})
}

func TestRetryableFailureRetriesAfterTimer(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3), foldtest.Task("b", "a"))
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	require.Equal(t, []string{"a=RETRY_WAIT", "b=BLOCKED"}, w.States(run))
	require.Zero(t, w.State.SlotsInUse(), "a waiting task has no slot")
	timer := w.Timer(event.TimerRetry)
	require.Equal(t, event.At(w.Now.Add(time.Second)), timer.FireAt)
	require.Equal(t, timer.FireAt, w.Task(run, "a").RetryNotBefore)

	w.Now = timer.FireAt.Time()
	w.MustFold(w.Fire(timer))
	task := w.Task(run, "a")
	require.Equal(t, int32(2), task.Attempt)
	require.Zero(t, task.RetryNotBefore)
	require.Empty(t, task.ErrorCode+task.Outcome+task.WorkerID)
	require.NotZero(t, task.AdmittedAt)
	require.Nil(t, w.Timer(event.TimerRetry))
	require.Equal(t, state.Stale, w.Fold(w.Fire(timer)).Row.Outcome, "the same call again")

	w.MustFold(w.Finished(run, "a", 2, event.Failed))
	require.Equal(t, event.At(w.Now.Add(2*time.Second)), w.Timer(event.TimerRetry).FireAt)
	w.Now = w.Timer(event.TimerRetry).FireAt.Time()
	w.MustFold(w.Fire(w.Timer(event.TimerRetry)))
	w.MustFold(w.Finished(run, "a", 3, event.Failed))
	require.Equal(t, []string{"a=FAILED", "b=SKIPPED"}, w.States(run))
	require.Equal(t, state.RunFailed, w.RunState(run))
	require.Equal(t, 3, w.State.Attempts.Len(), "every attempt has a row")
}

func TestPermanentFailureIsFinal(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3))
	final := w.Finished(run, "a", 1, event.Failed)
	final.Error.Retryable = false
	w.MustFold(final)
	require.Equal(t, []string{"a=FAILED"}, w.States(run))
	require.Equal(t, "BOOM", w.Task(run, "a").ErrorCode)
}

func TestSuccessAfterTimeoutIsAccepted(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3), foldtest.Task("b", "a"))
	w.MustFold(w.Started(run, "a", 1))
	w.Now = w.Timer(event.TimerLiveness).FireAt.Time()
	w.MustFold(w.Fire(w.Timer(event.TimerLiveness)))
	require.Equal(t, state.TaskRetryWait, w.Task(run, "a").State)
	require.Equal(t, fold.CodeHeartbeatTimeout, w.Task(run, "a").ErrorCode)
	retry := w.Timer(event.TimerRetry)

	require.Equal(t, state.Stale, w.Fold(w.Beat(run, "a", 1)).Row.Outcome)
	require.Equal(t, state.Stale, w.Fold(w.Started(run, "a", 1)).Row.Outcome)
	require.Equal(t, state.NoChange, w.Fold(w.Finished(run, "a", 1, event.Failed)).Row.Outcome)
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.States(run))
	task := w.Task(run, "a")
	require.Empty(t, task.ErrorCode+task.ErrorMessage)
	require.Equal(t, int32(1), task.Attempt)
	first := w.State.Attempts.Get(state.AttemptKey{RunID: run, TaskKey: "a", Attempt: 1})
	require.Equal(t, string(event.Succeeded), first.Outcome)
	require.Nil(t, w.Timer(event.TimerRetry))
	require.Equal(t, state.Stale, w.Fold(w.Fire(retry)).Row.Outcome)
}
