// Package view converts rows of the state to information for users: the progress of a run, the limits that it waits
// for, its failures, why a task is in its state, and the totals of an asset. This package is not a stable API.
//
// The functions of this package are pure: they take a state and a time, and return values. The command line and the
// API render these values.
package view

import (
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Explanation explains the state of a task. It depends only on a snapshot, a time and the task's
// events in the ledger.
type Explanation struct {
	RunID    string          `json:"run_id"`
	RunState state.RunState  `json:"run_state"`
	TaskKey  string          `json:"task_key"`
	Kind     string          `json:"kind"`
	State    state.TaskState `json:"state"`
	// Headline explains the state in one sentence.
	Headline string `json:"headline"`
	// Cause is the chain of failed, skipped or cancelled upstreams that led to the state of the task, nearest first.
	Cause []Cause `json:"cause,omitempty"`
	// RootCauses lists all failed tasks upstream of the task, sorted by key, if the task ended without running.
	RootCauses []string `json:"root_causes,omitempty"`

	// Incomplete describes which partitions the inputs of the task lack.
	Incomplete []string `json:"incomplete,omitempty"`

	// Checks are the results of the task's checks, failures first.
	Checks []CheckInfo `json:"checks,omitempty"`

	// Quarantine describes the output that a check has blocked, and the decision about that output.
	Quarantine *Quarantined `json:"quarantine,omitempty"`

	Attempts  []AttemptInfo `json:"attempts"`
	Upstreams []Edge        `json:"upstreams"`
	// Downstreams is the number of tasks that depend directly on the task.
	Downstreams int         `json:"downstreams"`
	Limits      []LimitInfo `json:"limits"`
	Timers      []TimerInfo `json:"timers,omitempty"`
	Dispatch    *Dispatch   `json:"dispatch,omitempty"`
	Heartbeat   *Heartbeat  `json:"heartbeat,omitempty"`
	Events      []EventInfo `json:"events"`
	// EventsLeftOut is set if the ledger has more events than were read.
	EventsLeftOut bool `json:"events_left_out,omitempty"`
}

// Cause is one task in the chain of causes.
type Cause struct {
	TaskKey string          `json:"task_key"`
	State   state.TaskState `json:"state"`
	Error   string          `json:"error,omitempty"`
}

// AttemptInfo is an attempt of the task.
type AttemptInfo struct {
	Attempt    int32              `json:"attempt"`
	AttemptID  string             `json:"attempt_id"`
	State      state.AttemptState `json:"state"`
	WorkerID   string             `json:"worker_id,omitempty"`
	CreatedAt  event.Time         `json:"created_at"`
	StartedAt  event.Time         `json:"started_at,omitempty,omitzero"`
	FinishedAt event.Time         `json:"finished_at,omitempty,omitzero"`
	Outcome    string             `json:"outcome,omitempty"`
	Error      string             `json:"error,omitempty"`
	Retryable  bool               `json:"retryable,omitempty"`
	// Details (JSON) and SuggestedAction are information that the worker adds to the error.
	Details         string `json:"details,omitempty"`
	SuggestedAction string `json:"suggested_action,omitempty"`
	// RetryReason says why another attempt followed: POLICY or INFRASTRUCTURE. It is empty if none followed.
	RetryReason string `json:"retry_reason,omitempty"`
}

// Edge is a dependency of the task on an upstream task, with the state of the upstream task.
type Edge struct {
	TaskKey    string           `json:"task_key"`
	State      state.TaskState  `json:"state"`
	Resolution state.Resolution `json:"resolution,omitempty"`
	ResolvedAt event.Time       `json:"resolved_at,omitempty,omitzero"`
	Attempt    int32            `json:"attempt,omitempty"`
}

// LimitInfo is a limit that applies to the task, and how many of its slots are in use.
type LimitInfo struct {
	// Scope is run, pool or workspace.
	Scope string `json:"scope"`
	Name  string `json:"name,omitempty"`
	Slots int32  `json:"slots"`
	InUse int32  `json:"in_use"`
	// Full is set if no slot is free.
	Full bool `json:"full"`
	// Holders names some of the tasks that occupy the slots of a full limit.
	Holders []string `json:"holders,omitempty"`
}

// TimerInfo is a timer that concerns the task.
type TimerInfo struct {
	TimerID string           `json:"timer_id"`
	Type    string           `json:"type"`
	State   state.TimerState `json:"state"`
	FireAt  event.Time       `json:"fire_at"`
	// Enqueued is set if the queue task of the timer exists.
	Enqueued bool `json:"enqueued"`
}

// Dispatch is the task's row of the outbox.
type Dispatch struct {
	DispatchID    string               `json:"dispatch_id"`
	QueueTaskName string               `json:"queue_task_name"`
	Status        state.DispatchStatus `json:"status"`
	Generation    int32                `json:"generation"`
	CreatedAt     event.Time           `json:"created_at"`
	EnqueuedAt    event.Time           `json:"enqueued_at,omitempty,omitzero"`
	Error         string               `json:"error,omitempty"`
}

// Heartbeat is the last heartbeat of a running task.
type Heartbeat struct {
	At       event.Time `json:"at"`
	Progress int32      `json:"progress,omitempty"`
	Message  string     `json:"message,omitempty"`
	// Deadline is when the attempt counts as lost unless another heartbeat arrives.
	Deadline event.Time `json:"deadline"`
}

// EventInfo is an event that contributed to the state.
type EventInfo struct {
	Time    event.Time         `json:"time"`
	Type    string             `json:"type"`
	EventID string             `json:"event_id"`
	Entry   string             `json:"entry"`
	Group   string             `json:"group"`
	Actor   string             `json:"actor,omitempty"`
	Summary string             `json:"summary,omitempty"`
	Outcome state.EntryOutcome `json:"outcome,omitempty"`
	Reason  string             `json:"reason,omitempty"`
}

// Explain explains a task. The caller must have set the outcomes of the events.
func Explain(s *state.State, task *state.Task, now event.Time, events []EventInfo) *Explanation {
	x := explainer{s: s, run: s.Runs.Get(task.RunID), task: task, now: now}
	e := &Explanation{
		RunID: task.RunID, RunState: x.run.State, TaskKey: task.TaskKey, Kind: task.Kind, State: task.State,
		Checks: checksOf(s, task.RunID, task.TaskKey), Quarantine: QuarantineOf(s, task), Attempts: x.attempts(), Upstreams: x.upstreams(task.TaskKey), Timers: x.timers(),
		Dispatch: x.dispatch(), Heartbeat: x.heartbeat(), Events: events,
	}
	s.Downstream(task.RunID, task.TaskKey, func(*state.Dep) bool { e.Downstreams++; return true })
	if task.Kind != event.KindGroup {
		e.Limits = x.limits()
	}
	e.Cause, e.RootCauses = x.cause(e.Upstreams), x.roots()
	e.Headline = strings.Join(strings.Fields(x.headline(e)), " ")
	return e
}

// explainer explains one task.
type explainer struct {
	s    *state.State
	run  *state.Run
	task *state.Task
	now  event.Time
}

func (x *explainer) attempts() []AttemptInfo { return AttemptsOf(x.s, x.task) }

// AttemptsOf returns the attempts of a task, first attempt first.
func AttemptsOf(s *state.State, task *state.Task) []AttemptInfo {
	attempts := []AttemptInfo{}
	s.AttemptsOf(task.RunID, task.TaskKey, func(a *state.Attempt) bool {
		attempts = append(attempts, AttemptInfo{
			Attempt: a.Attempt, AttemptID: a.AttemptID, State: a.State, WorkerID: a.WorkerID,
			CreatedAt: a.CreatedAt, StartedAt: a.StartedAt, FinishedAt: a.FinishedAt,
			Outcome: a.Outcome, Error: Problem(a.ErrorCode, a.ErrorMessage), Retryable: a.Retryable, RetryReason: a.RetryReason,
			Details: a.ErrorDetails, SuggestedAction: a.Suggestion,
		})
		return true
	})
	return attempts
}

// upstreams returns the dependencies of a task of the run.
func (x *explainer) upstreams(taskKey string) []Edge {
	edges := []Edge{}
	x.s.Deps.Ascend(state.Key3{A: x.task.RunID}, func(d *state.Dep) bool {
		if d.RunID != x.task.RunID {
			return false
		}
		if d.Downstream == taskKey {
			edge := Edge{TaskKey: d.Upstream, Resolution: d.Resolution, ResolvedAt: d.SatisfiedAt, Attempt: d.SatisfyingAttempt}
			if up := x.s.Tasks.Get(state.Key2{A: d.RunID, B: d.Upstream}); up != nil {
				edge.State = up.State
			}
			edges = append(edges, edge)
		}
		return true
	})
	return edges
}

// limits returns the limits that apply to the task, the narrowest first.
func (x *explainer) limits() []LimitInfo {
	var limits []LimitInfo
	if x.run.MaxParallelism > 0 {
		limits = append(limits, LimitInfo{
			Scope: "run", Name: x.run.RunID, Slots: x.run.MaxParallelism, InUse: x.s.SlotsInUseByRun(x.run.RunID),
		})
	}
	if slots, ok := x.s.SlotLimit(event.ScopePool, x.task.Pool); ok && x.task.Pool != "" {
		limits = append(limits, LimitInfo{Scope: event.ScopePool, Name: x.task.Pool, Slots: slots, InUse: x.s.SlotsInUseInPool(x.task.Pool)})
	}
	slots, _ := x.s.SlotLimit(event.ScopeWorkspace, "")
	limits = append(limits, LimitInfo{Scope: event.ScopeWorkspace, Name: x.s.Domain.String(), Slots: slots, InUse: x.s.SlotsInUse()})
	for i := range limits {
		if limits[i].Full = limits[i].InUse >= limits[i].Slots; limits[i].Full {
			limits[i].Holders = x.holders(limits[i])
		}
	}
	return limits
}

// maxHolders is the maximum number of tasks that an explanation names for the slots of a limit.
const maxHolders = 20

// holders returns tasks that occupy the slots of a limit.
func (x *explainer) holders(l LimitInfo) []string {
	var keys []string
	for run := range x.s.Runs.All {
		if run.State.Terminal() || l.Scope == "run" && run.RunID != x.run.RunID {
			continue
		}
		x.s.TasksOf(run.RunID, func(t *state.Task) bool {
			if t.AdmittedAt != 0 && (l.Scope != event.ScopePool || t.Pool == l.Name) {
				key := t.TaskKey
				if run.RunID != x.run.RunID {
					key += " of run " + run.RunID
				}
				keys = append(keys, key)
			}
			return len(keys) < maxHolders
		})
	}
	return keys
}

func (x *explainer) timers() []TimerInfo {
	var timers []TimerInfo
	prefix := "timer:" + strings.ToLower(event.TimerRetry) + ":" + x.task.RunID + ":" + x.task.TaskKey + ":"
	x.s.Timers.Ascend(prefix, func(t *state.Timer) bool {
		if !strings.HasPrefix(t.TimerID, prefix) {
			return false
		}
		timers = append(timers, timerInfo(t))
		return true
	})
	if t := x.s.Liveness(); t != nil && x.task.State == state.TaskRunning {
		timers = append(timers, timerInfo(t))
	}
	return timers
}

func timerInfo(t *state.Timer) TimerInfo {
	return TimerInfo{TimerID: t.TimerID, Type: t.TimerType, State: t.State, FireAt: t.FireAt, Enqueued: t.EnqueuedAt != 0}
}

func (x *explainer) dispatch() *Dispatch {
	row := x.s.Outbox.Get(ids.DispatchID(x.task.RunID, x.task.TaskKey, x.task.Attempt))
	if row == nil {
		return nil
	}
	return &Dispatch{
		DispatchID: row.DispatchID, QueueTaskName: row.QueueTaskName, Status: row.Status, Generation: row.Generation,
		CreatedAt: row.CreatedAt, EnqueuedAt: row.EnqueuedAt, Error: row.Error,
	}
}

func (x *explainer) heartbeat() *Heartbeat {
	row := x.s.Heartbeats.Get(x.task.Key())
	if row == nil {
		return nil
	}
	return &Heartbeat{
		At: row.LastHeartbeatAt, Progress: row.Progress, Message: row.Message,
		Deadline: row.LastHeartbeatAt.Add(seconds(x.task.HeartbeatTimeoutSec)),
	}
}
