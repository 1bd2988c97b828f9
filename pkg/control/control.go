// Package control contains the controllers: pure functions that return the actions to take, given a snapshot and the
// time. The same snapshot always yields the same actions with the same names (INV-3). This package is not a stable API.
//
// A controller receives the state, never a store: it cannot read the ledger (INV-7). An action is a
// proposal. Executing an action twice or late is harmless. The name of a queue task is derived from its purpose, so
// creating it twice has no effect. The events that report the action take effect only if the fold accepts them.
package control

import (
	"cmp"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// PendingAge is the age at which reconciliation takes over a PENDING row that was not
	// dispatched when it was published.
	PendingAge = 5 * time.Second
	// TimerGrace is how late a timer may be before a sweep checks it.
	TimerGrace = time.Minute
	// maxSchedule is how far ahead a queue can schedule a task (30 days), minus a margin for clock differences. If a
	// timer is due later than that, its queue task fires before the timer is due, and the timer is scheduled again.
	maxSchedule = 30*24*time.Hour - time.Hour
)

// Action is something to do outside the state.
//
//sumtype:decl
type Action interface {
	// Name returns the name of the action's queue task.
	Name() string

	action()
}

// CreateDispatch creates the queue task of an attempt.
type CreateDispatch struct {
	Row *state.Dispatch
	// Acknowledge means that DispatchEnqueued is appended to the ledger after the queue task was created. [Refill] sets
	// this field only for rows that are still PENDING.
	Acknowledge bool
}

// DeleteDispatch deletes the queue task of an attempt that was closed before it started, if the queue has not delivered
// the task yet.
type DeleteDispatch struct{ Row *state.Dispatch }

// CreateTimer creates the queue task that fires a timer. The task fires when the timer is due or, if a queue cannot
// schedule that far ahead, at HopAt.
type CreateTimer struct {
	Row         *state.Timer
	HopAt       event.Time
	Acknowledge bool
}

// DeleteTimer deletes the queue task of a timer that is no longer needed.
type DeleteTimer struct{ Row *state.Timer }

// Redispatch requests a dispatch under a new name, but only if the queue no longer has the
// task of the attempt.
type Redispatch struct {
	Queue, QueueTaskName string // "" if the attempt has no queue task
	Request              *event.DispatchRequested
}

// Retime requests that a timer be scheduled again, but only if the queue no longer has its task.
type Retime struct {
	QueueTaskName string // "" if the timer has no queue task
	Request       *event.TimerRequested
}

// TimerQueue is the queue of timers.
const TimerQueue = "timers"

// Name implements [Action].
func (a CreateDispatch) Name() string { return a.Row.QueueTaskName }

// Name implements [Action].
func (a DeleteDispatch) Name() string { return a.Row.QueueTaskName }

// Name implements [Action].
func (a CreateTimer) Name() string { return a.Row.QueueTaskName }

// Name implements [Action].
func (a DeleteTimer) Name() string { return a.Row.QueueTaskName }

// Name implements [Action].
func (a Redispatch) Name() string { return a.QueueTaskName }

// Name implements [Action].
func (a Retime) Name() string { return a.QueueTaskName }

func (CreateDispatch) action() {}
func (DeleteDispatch) action() {}
func (CreateTimer) action()    {}
func (DeleteTimer) action()    {}
func (Redispatch) action()     {}
func (Retime) action()         {}

// React returns the actions for the rows of one publish. The process that has published executes these actions
// immediately.
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

// Dispatch returns the actions for outbox rows that were not dispatched within [PendingAge].
func Dispatch(s *state.State, now event.Time) []Action {
	var actions []Action
	for row := range s.Outbox.All {
		if row.Status == state.DispatchPending && now.Sub(row.CreatedAt) >= PendingAge {
			actions = append(actions, CreateDispatch{row, true})
		}
	}
	return actions
}

// Timers returns the actions for timers that were not put into a queue within [PendingAge].
func Timers(s *state.State, now event.Time) []Action {
	var actions []Action
	for row := range s.Timers.All {
		if row.State == state.TimerScheduled && row.EnqueuedAt == 0 && now.Sub(row.CreatedAt) >= PendingAge {
			actions = append(actions, CreateTimer{row, hop(row, now), true})
		}
	}
	return actions
}

// hop returns the time HopAt of a timer that is due later than a queue can schedule: its queue task fires at this
// time, and the timer is scheduled again. For any other timer, hop returns 0.
func hop(row *state.Timer, now event.Time) event.Time {
	if row.FireAt.Sub(now) <= maxSchedule {
		return 0
	}
	return now.Add(maxSchedule)
}

// Sweep returns the actions of anti-entropy: for outbox rows and timers that are not in a queue yet, attempts that
// were dispatched but never started, tasks that hold a slot but have no outbox row, timers that never fired, and a
// missing liveness or wake timer.
func Sweep(s *state.State, now event.Time) []Action {
	actions := append(Dispatch(s, now), Timers(s, now)...)
	for row := range s.Outbox.All {
		if row.Status == state.DispatchCreated && row.Deadline <= now {
			actions = append(actions, Redispatch{row.WorkerQueue, row.QueueTaskName, request(row)})
		}
	}
	for run := range s.Runs.All {
		if !run.State.Terminal() {
			actions = append(actions, orphans(s, run.RunID)...)
		}
	}
	return append(actions, retimes(s, now)...)
}

// retimes returns actions for timers that should have fired, and for a missing liveness or wake timer.
func retimes(s *state.State, now event.Time) []Action {
	var actions []Action
	for row := range s.Timers.All {
		called := cmp.Or(row.HopAt, row.FireAt)
		if row.State == state.TimerScheduled && row.EnqueuedAt != 0 && now.Sub(called) >= TimerGrace {
			actions = append(actions, Retime{row.QueueTaskName, &event.TimerRequested{
				TimerID: row.TimerID, TimerType: row.TimerType, Generation: row.Generation + 1, FireAt: row.FireAt,
			}})
		}
	}
	return append(actions, missingTimers(s)...)
}

func request(row *state.Dispatch) *event.DispatchRequested {
	return &event.DispatchRequested{
		RunID: row.RunID, TaskKey: row.TaskKey, Attempt: row.Attempt, AttemptID: row.AttemptID,
		DispatchID: row.DispatchID, Generation: row.Generation + 1, WorkerQueue: row.WorkerQueue,
	}
}

// orphans returns actions for tasks that hold a slot and wait for a worker, but have no
// outbox row.
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

// Refill returns the actions that fill an empty queue from the projections. They create the queue tasks of dispatched
// attempts, of running attempts and of all timers, under their existing names. Refill assumes that the worker of a
// running attempt died with the queue. If the attempt had finished, its commit marker makes the new delivery cheap.
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

// running reconstructs the outbox row of a running attempt. The fold deleted this row when the attempt started.
func running(s *state.State, run *state.Run, t *state.Task) *state.Dispatch {
	id := ids.DispatchID(t.RunID, t.TaskKey, t.Attempt)
	return &state.Dispatch{
		DispatchID: id, QueueTaskName: ids.QueueTaskID(ids.KindDispatch, s.Domain, id, 0),
		RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID, MaxAttempts: t.MaxAttempts,
		WorkerQueue: t.WorkerQueue, PlanRef: run.PlanRef, AssetKey: t.AssetKey, PartitionKey: t.PartitionKey,
		TimeoutSec: t.TimeoutSec, HeartbeatTimeoutSec: t.HeartbeatTimeoutSec, Priority: t.Priority, CreatedAt: t.AdmittedAt,
	}
}
