package fold

import (
	"encoding/json"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// putTimer puts a timer row, with the queue name that its generation has.
func (f *folder) putTimer(t *state.Timer) {
	t.CloudTaskID = ids.QueueTaskID(ids.KindTimer, f.domain(), t.TimerID, t.Generation)
	put(f, &f.st.Timers, t)
}

// dropTimer deletes the retry timer that a task waits for.
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

// endTimer puts a timer in a state that it never leaves.
func (f *folder) endTimer(timer *state.Timer, s state.TimerState, deleted bool) {
	row := *timer
	if row.State == state.TimerScheduled {
		row.State = s
		if s == state.TimerFired {
			row.FiredAt = f.at()
		}
	}
	row.Deleted = deleted
	put(f, &f.st.Timers, &row)
}

// again has a timer called once more, at a time, under a new queue name: the
// name of the call that came is used up.
func (f *folder) again(timer *state.Timer, at event.Time) {
	row := *timer
	row.Generation++
	row.FireAt, row.EnqueuedAt, row.HopAt = at, 0, 0
	f.putTimer(&row)
}

// timerFired does what a timer is for, if it is due and the projections it is
// judged by are fresh (INV-9); else it has it come again.
func (f *folder) timerFired(p *event.TimerFired) verdict {
	timer := f.st.Timers.Get(p.TimerID)
	switch {
	case timer == nil || timer.State != state.TimerScheduled:
		return stale("no such timer waits")
	case p.Generation != timer.Generation:
		return stale("the timer has been scheduled anew")
	case p.FiredAt.Sub(p.Observed.CaughtUpAt) > MaxCompactionLag:
		f.again(timer, max(timer.FireAt, f.at().Add(LagRetry)))
		return verdict{outcome: state.Folded, detail: "the projections lagged; the timer comes again"}
	case p.FiredAt < timer.FireAt:
		f.again(timer, timer.FireAt)
		return folded
	case timer.TimerType == event.TimerLiveness && cameLate(timer, p.FiredAt):
		late := *timer
		late.Payload = jsonOf(lateness{LateMs: p.FiredAt.Sub(timer.FireAt).Milliseconds(), Calls: latenessOf(timer).Calls + 1})
		f.again(&late, f.at().Add(LateRetry))
		return verdict{outcome: state.Folded, detail: "the call came late; what was silent meanwhile may not have been heard"}
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
	default:
		f.deleteTimer(timer, state.TimerFired)
	}
	return folded
}

// overdue deals with something live whose time has run out.
func (f *folder) overdue(d state.Deadline) {
	if f.peekRun(d.RunID).State.Terminal() {
		return // an earlier deadline of the same call has ended the run
	}
	switch d.Kind {
	case state.DeadlineHeartbeat:
		f.expireAttempt(d, CodeHeartbeatTimeout, "no sign of life for "+d.Timeout.String())
	case state.DeadlineTask:
		f.expireAttempt(d, CodeTaskTimeout, "timed out after "+d.Timeout.String())
	case state.DeadlineRun:
		run := f.run(d.RunID)
		run.ErrorCode, run.ErrorMessage = CodeRunTimeout, "the run timed out after "+d.Timeout.String()
		f.cancelRun(run, run.ErrorMessage, false)
	case state.DeadlineCancel:
		run := f.run(d.RunID)
		f.cancelRun(run, run.CancelReason, true)
	}
}

func (f *folder) expireAttempt(d state.Deadline, code, message string) {
	current := f.st.Tasks.Get(state.Key2{A: d.RunID, B: d.TaskKey})
	if current == nil || current.State.Terminal() || current.State == state.TaskRetryWait {
		return // another deadline of the same attempt was earlier
	}
	t := *current
	f.finish(current, &t, closing{outcome: event.TimedOut, code: code, message: message, retryable: true})
}

// lateness is the payload of a liveness timer that was called late: by how much, and how
// often in a row.
type lateness struct {
	LateMs int64 `json:"late_ms"`
	Calls  int   `json:"calls,omitempty"`
}

func latenessOf(timer *state.Timer) lateness {
	var before lateness
	if timer.Payload == "" || json.Unmarshal([]byte(timer.Payload), &before) != nil {
		return lateness{}
	}
	return before
}

// cameLate reports whether a liveness call is too late to be acted on. One that is as
// late as the one before it is not: so every call is to a dispatcher whose clock is
// ahead of the queue's. Nor is one after MaxLateCalls in a row.
func cameLate(timer *state.Timer, firedAt event.Time) bool {
	late, before := firedAt.Sub(timer.FireAt), latenessOf(timer)
	if before.Calls >= MaxLateCalls ||
		timer.Payload != "" && (late-time.Duration(before.LateMs)*time.Millisecond).Abs() <= LateCall {
		return false
	}
	return late > LateCall
}

// maxLivenessDelay bounds how late the liveness timer may be.
const maxLivenessDelay = 30 * time.Second

// keepLiveness keeps the domain's one liveness timer at or before the earliest
// deadline. While runs are live a timer that is too early is left alone: it does
// nothing when it fires but set the next.
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
	fireAt := roundUp(next.At, min(next.Timeout/10, maxLivenessDelay)) //nolint:mnd // a tenth of the time-out
	// A deadline that is past has been met by a call already, which was late or
	// which the projections lagged behind: the next call comes soon, not at once.
	if soon := f.at().Add(LateRetry); scheduled && (timer.FireAt <= fireAt || next.At <= f.at() && timer.FireAt <= soon) {
		return
	}
	generation, payload := int32(0), ""
	if timer != nil {
		generation = timer.Generation + 1
		if scheduled {
			payload = timer.Payload // the late calls in a row count on
		}
		f.deleteTimer(timer, state.TimerCancelled)
	}
	f.putTimer(&state.Timer{
		TimerID:   ids.TimerID(event.TimerLiveness, "", "", 0, fireAt.Time().Unix()),
		TimerType: event.TimerLiveness, Generation: generation,
		State: state.TimerScheduled, FireAt: fireAt, CreatedAt: f.at(), Payload: payload,
	})
}

// retireLiveness ends the liveness timer but keeps its row: the next one takes
// its generation from it, so that no queue name is ever used twice.
func (f *folder) retireLiveness(timer *state.Timer, s state.TimerState) { f.endTimer(timer, s, false) }

// roundUp is t, or up to granularity later, to at least a second, so that
// deadlines close to each other share a timer.
func roundUp(t event.Time, granularity time.Duration) event.Time {
	g := event.Time(max(granularity.Truncate(time.Second), time.Second).Microseconds())
	return (t + g - 1) / g * g
}
