package fold

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Defaults for plans without a retry policy. Plans of Servo projects always have a policy: package project sets its
// defaults.
const (
	defaultInitialDelayMS     = 1_000
	defaultMaxDelayMS         = 60_000
	defaultMultiplierPermille = 2_000

	permille = 1000
)

// These constants determine the delays before attempts that are granted after losses: from one second to ten minutes.
// After ten losses in a row, the delays add up to at least 13.6 minutes. A deployment or an outage of the store
// rarely takes longer.
const (
	lossInitialDelayMS     = 1_000
	lossMaxDelayMS         = 600_000
	lossMultiplierPermille = 2_000
	lossJitterPermille     = 200
)

// MaxBackoffMS limits the delay before a retry to a year, regardless of the plan.
const MaxBackoffMS = 365 * 24 * 3600 * 1000

// lost reports whether an attempt was lost to infrastructure. A loss means that the worker, the queue or the store
// failed, not the task. Errors that the task's policy never retries are not losses.
func (c closing) lost(t *state.Task) bool {
	if !c.retryable || c.listed(t.RetryNever) {
		return false
	}
	switch c.code {
	case CodeHeartbeatTimeout, CodeUndispatchable, CodeWorkerInterrupted, CodeStoreUnavailable:
		return c.outcome == event.Failed || c.outcome == event.TimedOut
	}
	return false
}

// mayRetry reports whether the task's policy retries this kind of error.
func (c closing) mayRetry(t *state.Task) bool {
	switch {
	case c.code == CodeCheckFailed || c.listed(t.RetryNever):
		return false // another attempt of the same run would read the same inputs
	case c.listed(t.RetryOn):
		return c.outcome == event.Failed || c.outcome == event.TimedOut
	}
	return c.retryable && (!c.user() || t.RetryUserErrors)
}

// listed reports whether a comma-separated list of codes and categories contains the error.
func (c closing) listed(rules string) bool {
	if rules == "" || c.code == "" && c.category == "" {
		return false
	}
	category := cmp.Or(c.category, event.CategoryOf(c.code))
	for rule := range strings.SplitSeq(rules, ",") {
		if rule == c.code || rule == category {
			return true
		}
	}
	return false
}

// user reports whether the error is in the query, the command, their inputs or the project. Such an error is retried
// only if the project requests that.
func (c closing) user() bool {
	switch c.category {
	case event.CategoryUser, event.CategoryInput, event.CategoryConfiguration:
		return true
	}
	return false
}

// retryReason returns the reason why another attempt follows this one, or "" if no attempt follows.
func (c closing) retryReason(t *state.Task) string {
	switch {
	case c.lost(t):
		return state.RetryInfrastructure
	case c.retryable || c.mayRetry(t):
		return state.RetryPolicy
	}
	return ""
}

// grant increases a task's number of attempts by n. A negative n withdraws grants, because a later report shows that
// the attempt was not lost.
func grant(t *state.Task, n int32) {
	t.GrantedAttempts += n
	t.MaxAttempts = int32(min(int64(t.MaxAttempts)+int64(n), math.MaxInt32)) //nolint:gosec // min limits the value
}

// retryLater puts a task into RETRY_WAIT and creates the timer that makes it ready again.
func (f *folder) retryLater(current, t *state.Task, c closing, reason string, delayMS int64) {
	fireAt := f.at().Add(time.Duration(delayMS) * time.Millisecond)
	t.State, t.Outcome, t.RetryNotBefore = state.TaskRetryWait, string(c.outcome), fireAt
	f.putTask(t, current.State)
	f.changeAttempt(t, func(a *state.Attempt) { a.RetryReason = reason })
	f.putTimer(&state.Timer{
		TimerID:   ids.TimerID(event.TimerRetry, t.RunID, t.TaskKey, t.Attempt, fireAt.Time().Unix()),
		TimerType: event.TimerRetry, RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID,
		State: state.TimerScheduled, FireAt: fireAt, CreatedAt: f.at(),
	})
}

// Backoff returns the delay in milliseconds after the failure of a task's current attempt. It is the initial delay,
// multiplied by the policy's multiplier once for each earlier attempt that was not lost to infrastructure, up to the
// maximum delay. Jitter shortens the delay, so that tasks that failed together do not retry together. The jitter is
// derived from the attempt's id.
func Backoff(t *state.Task) int64 {
	return backoff(t.Attempt-t.GrantedAttempts, t.AttemptID, delays{
		t.RetryInitialDelayMS, t.RetryMaxDelayMS, t.RetryMultiplierPermille, t.RetryJitterPermille,
	})
}

// lossBackoff returns the delay in milliseconds before the attempt that was last granted to a task.
func lossBackoff(t *state.Task) int64 {
	return backoff(t.GrantedAttempts, t.AttemptID, delays{
		lossInitialDelayMS, lossMaxDelayMS, lossMultiplierPermille, lossJitterPermille,
	})
}

// delays are the delays of a retry policy.
type delays struct {
	initialMS, maxMS   int64
	multiplier, jitter int32 // in thousandths
}

// backoff returns the delay in milliseconds after the nth failure.
func backoff(n int32, attemptID string, d delays) int64 {
	greatest := min(d.maxMS, MaxBackoffMS)
	delay := min(d.initialMS, greatest)
	for i := int32(1); i < n; i++ {
		next := min(scale(delay, int64(d.multiplier)), greatest)
		if next == delay {
			break // all later delays are equal
		}
		delay = next
	}
	sum := sha256.Sum256([]byte(attemptID))
	spread := scale(delay, int64(min(d.jitter, permille)))
	if spread <= 0 {
		return delay
	}
	return delay - int64(binary.BigEndian.Uint64(sum[:8])%uint64(spread+1)) //nolint:gosec // the remainder is at most spread
}

// scale returns v × thousandths ÷ 1000, at most math.MaxInt64. Negative values count as 0.
func scale(v, thousandths int64) int64 {
	hi, lo := bits.Mul64(uint64(max(v, 0)), uint64(max(thousandths, 0))) //nolint:gosec // both are made positive
	if hi >= permille {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, permille)
	return int64(min(q, 1<<63-1)) //nolint:gosec // min limits the value
}
