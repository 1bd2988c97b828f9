// Package control holds the controllers: pure functions from a snapshot, and the
// time, to the actions that are to be taken. The same snapshot gives the same
// actions with the same names, however often and wherever it is asked (INV-3).
//
// A controller is handed state, never a store: it cannot read the ledger (INV-7).
// An action is a proposal. Carrying it out twice, or late, does no harm: queue
// tasks have names that follow from what they are for, and what is written to
// the ledger about them is judged by the fold.
package control

import (
	"cmp"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// PendingAge is how old a PENDING row is that was not dispatched by whoever
	// was handed it: a reconciliation takes it up.
	PendingAge = 5 * time.Second
	// TimerGrace is how late a timer may be before the sweeper asks after it.
	TimerGrace = time.Minute
	// maxSchedule is how far ahead queues schedule a call (30 days), with room
	// for clocks that differ. What is further away goes in hops.
	maxSchedule = 30*24*time.Hour - time.Hour
)

// Action is something to be done in the world.
//
//sumtype:decl
type Action interface {
	// Name is the name of the queue task that the action is about.
	Name() string

	action()
}

// CreateDispatch creates the queue task of an attempt.
type CreateDispatch struct {
	Row *state.Dispatch
	// Acknowledge says that the ledger is to be told: not on a refill, which
	// restores what the ledger knows of.
	Acknowledge bool
}

// DeleteDispatch deletes the queue task of an attempt that was closed before it
// started, as far as that is still possible.
type DeleteDispatch struct{ Row *state.Dispatch }

// CreateTimer creates the queue task that calls when a timer is due, or, where
// that is further ahead than a queue can schedule, at HopAt.
type CreateTimer struct {
	Row         *state.Timer
	HopAt       event.Time
	Acknowledge bool
}

// DeleteTimer deletes the queue task of a timer that is no longer needed.
type DeleteTimer struct{ Row *state.Timer }

// Redispatch asks the queue whether it still has the task of an attempt, and,
// only if it has not, asks the ledger for a dispatch under a new name.
type Redispatch struct {
	Queue, CloudTaskID string // empty id: there is nothing to ask about
	Request            *event.DispatchRequested
}

// Retime asks the queue whether it still has the call of a timer, and, only if
// it has not, asks the ledger for the timer to be scheduled anew.
type Retime struct {
	CloudTaskID string // empty: there is nothing to ask about
	Request     *event.TimerRequested
}

// TimerQueue is the queue that calls timers.
const TimerQueue = "timers"

// Name implements [Action].
func (a CreateDispatch) Name() string { return a.Row.CloudTaskID }

// Name implements [Action].
func (a DeleteDispatch) Name() string { return a.Row.CloudTaskID }

// Name implements [Action].
func (a CreateTimer) Name() string { return a.Row.CloudTaskID }

// Name implements [Action].
func (a DeleteTimer) Name() string { return a.Row.CloudTaskID }

// Name implements [Action].
func (a Redispatch) Name() string { return a.CloudTaskID }

// Name implements [Action].
func (a Retime) Name() string { return a.CloudTaskID }

func (CreateDispatch) action() {}
func (DeleteDispatch) action() {}
func (CreateTimer) action()    {}
func (DeleteTimer) action()    {}
func (Redispatch) action()     {}
func (Retime) action()         {}

// React gives the actions that the rows of one publish call for: whoever is
// handed new rows acts on them at once.
func React(outbox []*state.Dispatch, timers []*state.Timer, now event.Time) []Action {
	var actions []Action
	for _, row := range outbox {
		switch {
		case row.Deleted && row.Status == state.DispatchCancelled:
			actions = append(actions, DeleteDispatch{row})
		case !row.Deleted && row.Status == state.DispatchPending:
			actions = append(actions, CreateDispatch{row, true})
		}
	}
	for _, row := range timers {
		switch {
		case row.State == state.TimerCancelled:
			actions = append(actions, DeleteTimer{row})
		case !row.Deleted && row.State == state.TimerScheduled && row.EnqueuedAt == 0:
			actions = append(actions, CreateTimer{row, hop(row, now), true})
		}
	}
	return actions
}

// Dispatch gives the actions for outbox rows that nobody has taken up.
func Dispatch(s *state.State, now event.Time) []Action {
	var actions []Action
	for row := range s.Outbox.All {
		if row.Status == state.DispatchPending && now.Sub(row.CreatedAt) >= PendingAge {
			actions = append(actions, CreateDispatch{row, true})
		}
	}
	return actions
}

// Timers gives the actions for timers that nobody has taken up.
func Timers(s *state.State, now event.Time) []Action {
	var actions []Action
	for row := range s.Timers.All {
		if row.State == state.TimerScheduled && row.EnqueuedAt == 0 && now.Sub(row.CreatedAt) >= PendingAge {
			actions = append(actions, CreateTimer{row, hop(row, now), true})
		}
	}
	return actions
}

// hop is when the queue is to call where the timer is further ahead than a queue
// can schedule; else none.
func hop(row *state.Timer, now event.Time) event.Time {
	if row.FireAt.Sub(now) <= maxSchedule {
		return 0
	}
	return now.Add(maxSchedule)
}

// Sweep gives the actions of anti-entropy: what was dispatched and never
// started, what is ready and was never dispatched, timers that never fired, and
// a liveness timer that is missing.
func Sweep(s *state.State, now event.Time) []Action {
	actions := append(Dispatch(s, now), Timers(s, now)...)
	for row := range s.Outbox.All {
		if row.Status == state.DispatchCreated && row.Deadline <= now {
			actions = append(actions, Redispatch{row.WorkerQueue, row.CloudTaskID, request(row)})
		}
	}
	for run := range s.Runs.All {
		if !run.State.Terminal() {
			actions = append(actions, orphans(s, run.RunID)...)
		}
	}
	return append(actions, retimes(s, now)...)
}

// retimes are for timers that should have been called, and for the liveness
// timer where there should be one.
func retimes(s *state.State, now event.Time) []Action {
	var actions []Action
	for row := range s.Timers.All {
		called := cmp.Or(row.HopAt, row.FireAt)
		if row.State == state.TimerScheduled && row.EnqueuedAt != 0 && now.Sub(called) >= TimerGrace {
			actions = append(actions, Retime{row.CloudTaskID, &event.TimerRequested{
				TimerID: row.TimerID, TimerType: row.TimerType, Generation: row.Generation + 1, FireAt: row.FireAt,
			}})
		}
	}
	timer := s.Liveness()
	if next, ok := s.NextDeadline(); ok && (timer == nil || timer.State != state.TimerScheduled) {
		// Whatever is folded puts the timer back: the request only sees to it that
		// something is.
		actions = append(actions, Retime{Request: &event.TimerRequested{
			TimerID:   ids.TimerID(event.TimerLiveness, "", "", 0, next.At.Time().Unix()),
			TimerType: event.TimerLiveness, FireAt: next.At,
		}})
	}
	return actions
}

func request(row *state.Dispatch) *event.DispatchRequested {
	return &event.DispatchRequested{
		RunID: row.RunID, TaskKey: row.TaskKey, Attempt: row.Attempt, AttemptID: row.AttemptID,
		DispatchID: row.DispatchID, Generation: row.Generation + 1, WorkerQueue: row.WorkerQueue,
	}
}

// orphans are tasks that hold a slot and wait for a worker, without an outbox row.
func orphans(s *state.State, runID string) []Action {
	var actions []Action
	s.TasksOf(runID, func(t *state.Task) bool {
		waiting := t.State == state.TaskReady || t.State == state.TaskDispatched
		id := ids.DispatchID(t.RunID, t.TaskKey, t.Attempt)
		if waiting && t.AdmittedAt != 0 && s.Outbox.Get(id) == nil {
			actions = append(actions, Redispatch{Queue: t.WorkerQueue, Request: &event.DispatchRequested{
				RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID,
				DispatchID: id, Generation: 0, WorkerQueue: t.WorkerQueue,
			}})
		}
		return true
	})
	return actions
}

// Refill gives the actions that fill an empty queue with all that the
// projections say it should hold: what is dispatched, what is running (its
// worker died with the queue; the commit marker makes a finished one cheap), and
// every timer, under the same names.
func Refill(s *state.State, now event.Time) []Action {
	var actions []Action
	for row := range s.Outbox.All {
		actions = append(actions, CreateDispatch{row, row.Status == state.DispatchPending})
	}
	for run := range s.Runs.All {
		if run.State.Terminal() {
			continue
		}
		s.TasksOf(run.RunID, func(t *state.Task) bool {
			if t.State == state.TaskRunning {
				actions = append(actions, CreateDispatch{Row: running(s, run, t)})
			}
			return true
		})
	}
	for row := range s.Timers.All {
		if row.State == state.TimerScheduled {
			actions = append(actions, CreateTimer{row, hop(row, now), row.EnqueuedAt == 0})
		}
	}
	return actions
}

// running is the outbox row that a running attempt had.
func running(s *state.State, run *state.Run, t *state.Task) *state.Dispatch {
	id := ids.DispatchID(t.RunID, t.TaskKey, t.Attempt)
	return &state.Dispatch{
		DispatchID: id, CloudTaskID: ids.QueueTaskID(ids.KindDispatch, s.Domain, id, 0),
		RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID, MaxAttempts: t.MaxAttempts,
		WorkerQueue: t.WorkerQueue, PlanRef: run.PlanRef, AssetKey: t.AssetKey, PartitionKey: t.PartitionKey,
		TimeoutSec: t.TimeoutSec, HeartbeatTimeoutSec: t.HeartbeatTimeoutSec,
	}
}
