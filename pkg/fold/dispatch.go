package fold

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// dispatchEnqueued records that the queue task of an attempt exists.
func (f *folder) dispatchEnqueued(p *event.DispatchEnqueued) verdict {
	old := f.st.Outbox.Get(p.DispatchID)
	switch {
	case old == nil:
		return stale("the attempt has started or was closed")
	case p.Generation != old.Generation:
		return stale("the attempt was dispatched again")
	case old.Status == state.DispatchCreated:
		return noChange
	}
	row := *old
	row.Status, row.EnqueuedAt, row.Deadline = state.DispatchCreated, f.at(), f.at().Add(DispatchDeadline)
	put(f, f.st.Outbox, &row)
	if current := f.st.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey}); current.State == state.TaskReady {
		t := *current
		t.State = state.TaskDispatched
		f.putTask(&t, current.State)
	}
	return folded
}

// dispatchFailed records that the queue rejected the queue task of an attempt permanently.
func (f *folder) dispatchFailed(p *event.DispatchFailed) verdict {
	old := f.st.Outbox.Get(p.DispatchID)
	switch {
	case old == nil:
		return stale("the attempt has started or was closed")
	case p.Generation != old.Generation || old.Status != state.DispatchPending:
		return stale("the attempt was dispatched meanwhile")
	}
	f.undispatchable(old, orDefault(p.Error.Message, "the queue rejected the task"), p.Error.Retryable)
	return folded
}

// undispatchable ends the attempt of an outbox row as failed.
func (f *folder) undispatchable(row *state.Dispatch, message string, retryable bool) {
	failed := *row
	failed.Status, failed.Error = state.DispatchFailed, message
	put(f, f.st.Outbox, &failed)
	current := f.st.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
	t := *current
	f.finish(current, &t, closing{outcome: event.Failed, code: CodeUndispatchable, message: message, retryable: retryable})
}

// dispatchRequested dispatches an attempt again, with a new queue task name. The sweeper requests
// this if the queue task is lost, or if an admitted task has no outbox row.
func (f *folder) dispatchRequested(p *event.DispatchRequested) verdict {
	t := f.st.Tasks.Get(state.Key2{A: p.RunID, B: p.TaskKey})
	if t.AttemptID != p.AttemptID || t.AdmittedAt == 0 || t.State != state.TaskReady && t.State != state.TaskDispatched {
		return stale("the attempt is not waiting for a worker")
	}
	old := f.st.Outbox.Get(ids.DispatchID(p.RunID, p.TaskKey, p.Attempt))
	switch {
	case old == nil:
		f.dispatch(t, f.peekRun(p.RunID).PlanRef, p.Generation)
	case p.Generation <= old.Generation:
		return noChange
	case p.Generation > MaxGenerations:
		f.undispatchable(old, fmt.Sprintf("dispatched %d times without starting", old.Generation+1), true)
	default:
		row := *old
		row.Generation, row.Status = p.Generation, state.DispatchPending
		row.QueueTaskName = ids.QueueTaskID(ids.KindDispatch, f.domain(), row.DispatchID, row.Generation)
		row.EnqueuedAt, row.Deadline = 0, 0
		put(f, f.st.Outbox, &row)
	}
	return folded
}

// timerEnqueued records that the queue task of a timer exists.
func (f *folder) timerEnqueued(p *event.TimerEnqueued) verdict {
	old := f.st.Timers.Get(p.TimerID)
	switch {
	case old == nil || old.State != state.TimerScheduled:
		return stale("the timer has fired or was cancelled")
	case p.Generation != old.Generation:
		return stale("the timer was scheduled again")
	case old.EnqueuedAt != 0:
		return noChange
	}
	row := *old
	row.EnqueuedAt, row.HopAt = f.at(), p.HopAt
	f.putTimer(&row)
	return folded
}

// timerRequested creates an external timer, or schedules a lost timer again.
func (f *folder) timerRequested(p *event.TimerRequested) verdict {
	old := f.st.Timers.Get(p.TimerID)
	switch {
	case old == nil && (p.TimerType == event.TimerRetry || p.TimerType == event.TimerLiveness || p.TimerType == event.TimerWake):
		return stale("the timer has fired or was cancelled")
	case old == nil:
		f.putTimer(&state.Timer{
			TimerID: p.TimerID, TimerType: p.TimerType, Generation: p.Generation, State: state.TimerScheduled,
			FireAt: p.FireAt, CreatedAt: f.at(), Payload: string(p.Payload),
		})
		return folded
	case p.Generation <= old.Generation:
		return noChange
	case old.State != state.TimerScheduled:
		return stale("the timer has fired or was cancelled")
	}
	row := *old
	row.Generation = p.Generation
	row.EnqueuedAt, row.HopAt = 0, 0
	f.putTimer(&row)
	return folded
}
