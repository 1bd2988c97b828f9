package fold

import (
	"encoding/json"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// putTimer writes a timer with the queue task name of its generation.
func (f *folder) putTimer(t *state.Timer) {
	t.QueueTaskName = ids.QueueTaskID(ids.KindTimer, f.domain(), t.TimerID, t.Generation)
	put(f, f.st.Timers, t)
}

// dropTimer cancels the retry timer of a task if the task is waiting for a retry.
func (f *folder) dropTimer(t *state.Task) {
	if t.State != state.TaskRetryWait {
		return
	}
	id := ids.TimerID(event.TimerRetry, t.RunID, t.TaskKey, t.Attempt, t.RetryNotBefore.Time().Unix())
	if timer := f.st.Timers.Get(id); timer != nil {
		f.deleteTimer(timer, state.TimerCancelled)
	}
}

func (f *folder) deleteTimer(timer *state.Timer, s state.TimerState) { f.endTimer(timer, s, true) }

// endTimer puts a scheduled timer into a final state. It deletes the row if deleted is true.
func (f *folder) endTimer(timer *state.Timer, s state.TimerState, deleted bool) {
	row := *timer
	if row.State == state.TimerScheduled {
		row.State = s
		if s == state.TimerFired {
			row.FiredAt = f.at()
		}
	}
	row.Deleted = deleted
	put(f, f.st.Timers, &row)
}

// reschedule schedules another call of a timer. The call needs a new queue task name, because the queue rejects names
// that it has already seen.
func (f *folder) reschedule(timer *state.Timer, at event.Time) {
	row := *timer
	row.Generation++
	row.FireAt, row.EnqueuedAt, row.HopAt = at, 0, 0
	f.putTimer(&row)
}

// timerFired executes a timer that is due. It reschedules the timer if the call was early, or if the caller's
// projections were too old (INV-9).
func (f *folder) timerFired(p *event.TimerFired) verdict {
	timer := f.st.Timers.Get(p.TimerID)
	switch {
	case timer == nil || timer.State != state.TimerScheduled:
		return stale("the timer is not scheduled")
	case p.Generation != timer.Generation:
		return stale("the timer was scheduled again")
	case p.FiredAt.Sub(p.Observed.CaughtUpAt) > MaxCompactionLag:
		f.reschedule(timer, max(timer.FireAt, f.at().Add(LagRetry)))
		return verdict{outcome: state.Folded, detail: "the projections lagged; the timer fires again later"}
	case p.FiredAt < timer.FireAt:
		f.reschedule(timer, timer.FireAt)
		return folded
	case timer.TimerType == event.TimerLiveness && isLate(timer, p.FiredAt):
		for _, d := range f.st.Due(p.FiredAt) {
			if d.Kind == state.DeadlineCandidate {
				f.expire(f.st.Candidates.Get(d.Candidate)) // the expiry of a candidate does not depend on workers
			}
		}
		late := *timer
		late.Payload = jsonOf(lateness{LateMs: p.FiredAt.Sub(timer.FireAt).Milliseconds(), Calls: latenessOf(timer).Calls + 1})
		f.reschedule(&late, f.at().Add(LateRetry))
		return verdict{outcome: state.Folded, detail: "the liveness call was late; workers get time for a heartbeat"}
	}
	switch timer.TimerType {
	case event.TimerRetry:
		f.deleteTimer(timer, state.TimerFired)
		t := f.st.Tasks.Get(state.Key2{A: timer.RunID, B: timer.TaskKey})
		if t != nil && t.State == state.TaskRetryWait && t.Attempt == timer.Attempt {
			f.makeReady(t)
		}
	case event.TimerLiveness:
		f.retireLiveness(timer, state.TimerFired)
		for _, d := range f.st.Due(p.FiredAt) {
			f.overdue(d)
		}
	case event.TimerWake:
		f.endTimer(timer, state.TimerFired, false) // keep the row: the next wake timer needs its generation and time
		f.wake(p.FiredAt)
	default:
		f.deleteTimer(timer, state.TimerFired)
	}
	return folded
}

// overdue handles a deadline that has passed: it closes the attempt, cancels the run or expires the candidate.
func (f *folder) overdue(d state.Deadline) {
	if d.Kind == state.DeadlineCandidate {
		f.expire(f.st.Candidates.Get(d.Candidate))
		return
	}
	if f.peekRun(d.RunID).State.Terminal() {
		return // an earlier deadline in the same call ended the run
	}
	switch d.Kind {
	case state.DeadlineHeartbeat:
		f.expireAttempt(d, CodeHeartbeatTimeout, "no heartbeat for "+d.Timeout.String())
	case state.DeadlineTask:
		f.expireAttempt(d, CodeTaskTimeout, "timed out after "+d.Timeout.String())
	case state.DeadlineRun:
		run := f.run(d.RunID)
		run.ErrorCode, run.ErrorMessage = CodeRunTimeout, "the run timed out after "+d.Timeout.String()
		f.cancelRun(run, run.ErrorMessage, false)
	case state.DeadlineCancel:
		run := f.run(d.RunID)
		f.cancelRun(run, run.CancelReason, true)
	case state.DeadlineCandidate:
	}
}

// expireAttempt closes an attempt as timed out.
func (f *folder) expireAttempt(d state.Deadline, code, message string) {
	current := f.st.Tasks.Get(state.Key2{A: d.RunID, B: d.TaskKey})
	if current == nil || current.State.Terminal() || current.State == state.TaskRetryWait {
		return // an earlier deadline closed the attempt
	}
	t := *current
	f.finish(current, &t, closing{outcome: event.TimedOut, code: code, message: message, retryable: true})
}

// lateness is the payload of a liveness timer that was called late.
type lateness struct {
	LateMs int64 `json:"late_ms"`         // delay of the last call
	Calls  int   `json:"calls,omitempty"` // consecutive late calls
}

func latenessOf(timer *state.Timer) lateness {
	var l lateness
	if timer.Payload == "" || json.Unmarshal([]byte(timer.Payload), &l) != nil {
		return lateness{}
	}
	return l
}

// isLate reports whether a liveness call is too late to close attempts. It returns false if the call is about as late
// as the previous one: the dispatcher's clock is probably ahead of the queue's clock, so that every call seems late.
// It also returns false after MaxLateCalls consecutive late calls.
func isLate(timer *state.Timer, firedAt event.Time) bool {
	late, previous := firedAt.Sub(timer.FireAt), latenessOf(timer)
	if previous.Calls >= MaxLateCalls ||
		timer.Payload != "" && (late-time.Duration(previous.LateMs)*time.Millisecond).Abs() <= LateCall {
		return false
	}
	return late > LateCall
}

// maxLivenessDelay is the longest delay that rounding may cause between a deadline and the liveness timer.
const maxLivenessDelay = 30 * time.Second

// keepLiveness schedules the domain's only liveness timer at the earliest deadline, rounded up. If the current timer
// fires earlier, keepLiveness leaves the timer unchanged: when the timer fires, the fold schedules it again. If no
// deadline exists, it keeps the timer as long as runs are live.
func (f *folder) keepLiveness() {
	timer := f.st.Liveness()
	scheduled := timer != nil && timer.State == state.TimerScheduled
	next, ok := f.st.NextDeadline()
	if !ok {
		if scheduled && f.st.LiveRuns() == 0 {
			f.retireLiveness(timer, state.TimerCancelled)
		}
		return
	}
	fireAt := roundUp(next.At, min(next.Timeout/10, maxLivenessDelay)) //nolint:mnd // a tenth of the timeout
	// A deadline that has already passed means that the fold has rescheduled the last call, because the call was late or
	// its caller's projections lagged. Keep the rescheduled call if it comes soon.
	if soon := f.at().Add(LateRetry); scheduled && (timer.FireAt <= fireAt || next.At <= f.at() && timer.FireAt <= soon) {
		return
	}
	generation, payload := int32(0), ""
	if timer != nil {
		generation = timer.Generation + 1
		if scheduled {
			payload = timer.Payload // keep counting late calls
		}
		f.deleteTimer(timer, state.TimerCancelled)
	}
	f.putTimer(&state.Timer{
		TimerID:   ids.TimerID(event.TimerLiveness, "", "", 0, fireAt.Time().Unix()),
		TimerType: event.TimerLiveness, Generation: generation,
		State: state.TimerScheduled, FireAt: fireAt, CreatedAt: f.at(), Payload: payload,
	})
}

// retireLiveness ends the liveness timer but keeps its row. The generation of the next timer is derived from the row,
// so that no queue task name is used twice.
func (f *folder) retireLiveness(timer *state.Timer, s state.TimerState) { f.endTimer(timer, s, false) }

// roundUp rounds t up to a multiple of the granularity, so that deadlines that are close to each other share a timer.
// The granularity is rounded down to whole seconds, but is at least one second.
func roundUp(t event.Time, granularity time.Duration) event.Time {
	g := event.Time(max(granularity.Truncate(time.Second), time.Second).Microseconds())
	return (t + g - 1) / g * g
}
