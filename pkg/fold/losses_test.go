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

// lost returns the report of an attempt that was lost to infrastructure.
func lost(w *foldtest.World, run, key string, attempt int32, code string) *event.TaskFinished { //nolint:unparam // the same parameters as the other helpers
	p := w.Finished(run, key, attempt, event.Failed)
	p.GrantedAttempts = w.Task(run, key).GrantedAttempts
	p.Error = &event.Error{Code: code, Category: "infrastructure", Message: "gone", Retryable: true}
	return p
}

// retryNow advances the time to the retry timer and fires it.
func retryNow(w *foldtest.World) {
	timer := w.Timer(event.TimerRetry)
	w.Now = timer.FireAt.Time()
	w.MustFold(w.Fire(timer))
}

func attemptOf(w *foldtest.World, run, key string, n int32) *state.Attempt { //nolint:unparam // the same parameters as the other helpers
	return w.State.Attempts.Get(state.AttemptKey{RunID: run, TaskKey: key, Attempt: n})
}

func TestInfrastructureLossesGrantAttempts(t *testing.T) {
	heartbeat := func(w *foldtest.World, run string) {
		w.MustFold(w.Started(run, "a", w.Task(run, "a").Attempt))
		for w.Task(run, "a").State == state.TaskRunning {
			timer := w.Timer(event.TimerLiveness)
			w.Now = timer.FireAt.Time()
			w.MustFold(w.Fire(timer))
		}
	}
	reported := func(code string) func(*foldtest.World, string) {
		return func(w *foldtest.World, run string) {
			w.MustFold(lost(w, run, "a", w.Task(run, "a").Attempt, code))
		}
	}
	undispatched := func(w *foldtest.World, run string) {
		task := w.Task(run, "a")
		row := w.State.Outbox.Rows()[0]
		w.MustFold(&event.DispatchRequested{
			RunID: run, TaskKey: "a", Attempt: task.Attempt, AttemptID: task.AttemptID,
			DispatchID: row.DispatchID, Generation: fold.MaxGenerations + 1,
		})
	}
	for code, lose := range map[string]func(*foldtest.World, string){
		fold.CodeHeartbeatTimeout:  heartbeat,
		fold.CodeUndispatchable:    undispatched,
		fold.CodeWorkerInterrupted: reported("WORKER_INTERRUPTED"),
		fold.CodeStoreUnavailable:  reported("STORE_UNAVAILABLE"),
	} {
		t.Run(code, func(t *testing.T) {
			w := foldtest.New(t)
			run := w.Run(foldtest.Task("a")) // the retry policy of the task allows one attempt
			for n := int32(1); n <= fold.MaxGrantedAttempts; n++ {
				lose(w, run)
				task := w.Task(run, "a")
				require.Equal(t, state.TaskRetryWait, task.State, "loss %d", n)
				require.Equal(t, code, task.ErrorCode)
				require.Equal(t, n, task.GrantedAttempts)
				require.Equal(t, n+1, task.MaxAttempts)
				require.Equal(t, state.RetryInfrastructure, attemptOf(w, run, "a", n).RetryReason)
				retryNow(w)
			}
			lose(w, run)
			require.Equal(t, state.TaskFailed, w.Task(run, "a").State, "at most ten attempts are granted")
			require.Equal(t, int32(fold.MaxGrantedAttempts), w.Task(run, "a").GrantedAttempts)
		})
	}
}

func TestInfrastructureLossesLeavePolicyUnchanged(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 2))
	w.MustFold(lost(w, run, "a", 1, fold.CodeWorkerInterrupted))
	require.LessOrEqual(t, w.Task(run, "a").RetryNotBefore.Sub(event.At(w.Now)), time.Second, "the first loss waits for a second at most")
	retryNow(w)

	first := w.Finished(run, "a", 2, event.Failed)
	first.GrantedAttempts = 1
	w.MustFold(first)
	require.Equal(t, state.RetryPolicy, attemptOf(w, run, "a", 2).RetryReason)
	require.Equal(t, w.Task(run, "a").RetryNotBefore, event.At(w.Now.Add(time.Second)), "the policy's first delay")
	retryNow(w)

	w.MustFold(lost(w, run, "a", 3, fold.CodeStoreUnavailable))
	retryNow(w)
	second := w.Finished(run, "a", 4, event.Failed)
	second.GrantedAttempts = 2
	w.MustFold(second)
	task := w.Task(run, "a")
	require.Equal(t, state.TaskFailed, task.State)
	require.Equal(t, []int32{4, 4, 2}, []int32{task.Attempt, task.MaxAttempts, task.GrantedAttempts})
}

func TestPermanentDispatchFailureEndsTask(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3))
	row := w.State.Outbox.Rows()[0]
	w.MustFold(&event.DispatchFailed{
		DispatchID: row.DispatchID, RunID: run, TaskKey: "a", Attempt: 1, Error: event.Error{Message: "the queue rejects the task"},
	})
	require.Equal(t, state.TaskFailed, w.Task(run, "a").State)
	require.Zero(t, w.Task(run, "a").GrantedAttempts)
}

// Two executions of one attempt report: one was interrupted, and the other one succeeded.
func TestLateSuccessWithdrawsGrant(t *testing.T) {
	for _, lossFirst := range []bool{true, false} {
		w := foldtest.New(t)
		run := w.Run(foldtest.Task("a"))
		loss, success := lost(w, run, "a", 1, fold.CodeWorkerInterrupted), w.Finished(run, "a", 1, event.Succeeded)
		if lossFirst {
			w.MustFold(loss)
			w.MustFold(success)
		} else {
			w.MustFold(success)
			w.Fold(loss)
		}
		task := w.Task(run, "a")
		require.Equal(t, state.TaskSucceeded, task.State)
		require.Equal(t, []int32{1, 0}, []int32{task.MaxAttempts, task.GrantedAttempts})
		require.Empty(t, attemptOf(w, run, "a", 1).RetryReason)
	}
}

// If a rebuild has no recorded order, it folds reports before the decisions of timers. So it may find attempts that
// were granted because of losses, but no reports of these losses.
func TestAdoptedAttemptKeepsItsGrants(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 2))
	failed := w.Finished(run, "a", 2, event.Failed)
	failed.GrantedAttempts = 1 // attempt 1 was lost
	w.MustFold(failed)
	task := w.Task(run, "a")
	require.Equal(t, state.TaskRetryWait, task.State, "the policy's second attempt is left")
	require.Equal(t, []int32{3, 1}, []int32{task.MaxAttempts, task.GrantedAttempts})
	w.MustFold(w.Finished(run, "a", 3, event.Succeeded))
	require.Equal(t, state.TaskSucceeded, w.Task(run, "a").State)
}

func TestAdoptedAttemptBeyondThePolicyProvesGrants(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Started(run, "a", 3)) // this report does not contain the number of losses
	require.Equal(t, []int32{3, 3, 2}, []int32{w.Task(run, "a").Attempt, w.Task(run, "a").MaxAttempts, w.Task(run, "a").GrantedAttempts})
}

func TestUserErrorsAreRetriedOnRequestOnly(t *testing.T) {
	for _, requested := range []bool{false, true} {
		w := foldtest.New(t)
		def := foldtest.Retrying("a", 3)
		def.RetryUserErrors = requested
		run := w.Run(def)
		p := w.Finished(run, "a", 1, event.Failed)
		p.Error.Category = event.CategoryUser
		w.MustFold(p)
		want := map[bool]state.TaskState{false: state.TaskFailed, true: state.TaskRetryWait}[requested]
		require.Equal(t, want, w.Task(run, "a").State)
		require.True(t, attemptOf(w, run, "a", 1).Retryable, "the row keeps the worker's report")
	}
}

func TestCheckResultsAreKept(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	p := w.Finished(run, "a", 1, event.Succeeded)
	p.CheckResults = []event.CheckResult{{Name: "rows", Passed: true, Severity: "ERROR"}}
	w.MustFold(p)
	require.JSONEq(t, `[{"name":"rows","passed":true,"severity":"ERROR"}]`, attemptOf(w, run, "a", 1).CheckResults)
}

func TestRetryRulesDecideByCodeAndCategory(t *testing.T) {
	for name, c := range map[string]struct {
		on, never []string
		report    event.Error
		want      state.TaskState
	}{
		"no rule":               {nil, nil, event.Error{Code: "X_A"}, state.TaskFailed},
		"on code":               {[]string{"X_A"}, nil, event.Error{Code: "X_A"}, state.TaskRetryWait},
		"on category":           {[]string{"input"}, nil, event.Error{Code: "X_A", Category: "input"}, state.TaskRetryWait},
		"on category of a code": {[]string{"input"}, nil, event.Error{Code: "INVALID_INPUT"}, state.TaskRetryWait},
		"another code":          {[]string{"X_B"}, nil, event.Error{Code: "X_A"}, state.TaskFailed},
		"never code":            {nil, []string{"X_A"}, event.Error{Code: "X_A", Retryable: true}, state.TaskFailed},
		"never wins":            {[]string{"X_A"}, []string{"transient"}, event.Error{Code: "X_A", Category: "transient"}, state.TaskFailed},
		"never a loss":          {nil, []string{"WORKER_INTERRUPTED"}, event.Error{Code: "WORKER_INTERRUPTED", Retryable: true}, state.TaskFailed},
		"other never":           {nil, []string{"X_B"}, event.Error{Code: "X_A", Retryable: true}, state.TaskRetryWait},
	} {
		t.Run(name, func(t *testing.T) {
			w := foldtest.New(t)
			def := foldtest.Retrying("a", 3)
			def.RetryOn, def.RetryNever = c.on, c.never
			run := w.Run(def)
			p := w.Finished(run, "a", 1, event.Failed)
			p.Error = &c.report
			w.MustFold(p)
			require.Equal(t, c.want, w.Task(run, "a").State)
		})
	}
}

func TestRetryWaitsAsLongAsTheErrorAsks(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3))
	p := w.Finished(run, "a", 1, event.Failed)
	p.Error = &event.Error{Code: "RATE_LIMITED", Retryable: true, RetryAfterMS: 3_600_000, Details: `{"quota":5}`, SuggestedAction: "ask for more"}
	w.MustFold(p)
	a := attemptOf(w, run, "a", 1)
	require.Equal(t, time.Hour, w.Task(run, "a").RetryNotBefore.Sub(a.FinishedAt))
	require.Equal(t, []string{`{"quota":5}`, "ask for more"}, []string{a.ErrorDetails, a.Suggestion})
}
