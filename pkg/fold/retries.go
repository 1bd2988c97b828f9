package fold

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/bits"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The retry policy of a plan that does not spell one out. The project's defaults are in
// package project; these are for plans that others write.
const (
	defaultInitialDelayMS     = 1_000
	defaultMaxDelayMS         = 60_000
	defaultMultiplierPermille = 2_000

	permille = 1000
)

// The delays before attempts that are granted for losses: a second for the first, ten
// minutes for the last. Ten losses in a row span at least 13.6 minutes: a deployment, or an
// outage of the store, rarely takes longer.
const (
	lossInitialDelayMS     = 1_000
	lossMaxDelayMS         = 600_000
	lossMultiplierPermille = 2_000
	lossJitterPermille     = 200
)

// MaxBackoffMS is the longest that a task waits for a retry, whatever its plan
// says: a year.
const MaxBackoffMS = 365 * 24 * 3600 * 1000

// lost reports whether an attempt ended because of the infrastructure: its worker, its
// queue or its store was lost, and the task did nothing wrong.
func (c closing) lost() bool {
	if !c.retryable {
		return false
	}
	switch c.code {
	case CodeHeartbeatTimeout, CodeUndispatchable, CodeWorkerInterrupted, CodeStoreUnavailable:
		return c.outcome == event.Failed || c.outcome == event.TimedOut
	}
	return false
}

// mayRetry reports whether the task's policy allows another attempt after this end.
func (c closing) mayRetry(t *state.Task) bool { return c.retryable && (!c.user || t.RetryUserErrors) }

// retryReason is why an attempt followed one that ended like this.
func (c closing) retryReason() string {
	switch {
	case c.lost():
		return state.RetryInfrastructure
	case c.retryable:
		return state.RetryPolicy
	}
	return ""
}

// grant gives a task n more attempts for losses; n is negative where a loss turns out to be none.
func grant(t *state.Task, n int32) {
	t.GrantedAttempts += n
	t.MaxAttempts = int32(min(int64(t.MaxAttempts)+int64(n), math.MaxInt32)) //nolint:gosec // bounded in the same line
}

// retryLater makes a task wait, with a durable timer that makes it ready again.
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

// Backoff is how long a task waits after its current attempt failed, in
// milliseconds: the initial delay, multiplied for each attempt before that was not
// lost to infrastructure, at most the greatest delay, less a part that the attempt's
// id decides, so that tasks that failed together do not come back together.
func Backoff(t *state.Task) int64 {
	return backoff(t.Attempt-t.GrantedAttempts, t.AttemptID, delays{
		t.RetryInitialDelayMS, t.RetryMaxDelayMS, t.RetryMultiplierPermille, t.RetryJitterPermille,
	})
}

// lossBackoff is how long a task waits after the loss that its last grant was for.
func lossBackoff(t *state.Task) int64 {
	return backoff(t.GrantedAttempts, t.AttemptID, delays{
		lossInitialDelayMS, lossMaxDelayMS, lossMultiplierPermille, lossJitterPermille,
	})
}

// delays is how the delays of a retry policy grow: milliseconds and thousandths.
type delays struct {
	initialMS, maxMS   int64
	multiplier, jitter int32
}

// backoff is the delay after the nth failure.
func backoff(n int32, attemptID string, d delays) int64 {
	greatest := min(d.maxMS, MaxBackoffMS)
	delay := min(d.initialMS, greatest)
	for i := int32(1); i < n; i++ {
		next := min(scale(delay, int64(d.multiplier)), greatest)
		if next == delay {
			break // every later delay is the same
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

// scale is v × thousandths ÷ 1000, without overflow, for values that are not negative.
func scale(v, thousandths int64) int64 {
	hi, lo := bits.Mul64(uint64(max(v, 0)), uint64(max(thousandths, 0))) //nolint:gosec // both are made positive
	if hi >= permille {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, permille)
	return int64(min(q, 1<<63-1)) //nolint:gosec // bounded in the same line
}
