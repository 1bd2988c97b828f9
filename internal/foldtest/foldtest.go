// Package foldtest contains a test fixture for the fold: a state, a clock, and short functions that
// build and fold events.
package foldtest

import (
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Domain is the domain of every [World].
var Domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

// TimerOther is a timer type without an effect. No ledger entry can request it: the decoder rejects
// unknown types.
const TimerOther = "OTHER"

// Epoch is the initial time of every [World].
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TB contains the methods of tests, benchmarks and property tests that [World] uses.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// World is a state and the current time. Its methods fold events and build payloads.
type World struct {
	State *state.State
	Now   time.Time

	t       TB
	entries int
	ids     *ids.Source
}

// zeros is a source of zero bytes, so that ids depend only on the time.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// New returns an empty world.
func New(t TB) *World {
	w := &World{State: state.New(Domain), Now: Epoch, t: t}
	w.ids = ids.NewSource(func() time.Time { return w.Now }, zeros{})
	return w
}

// ID returns a new ULID of the current time.
func (w *World) ID() string { return w.ids.New() }

// Pass advances the time by d, which may be negative.
func (w *World) Pass(d time.Duration) { w.Now = w.Now.Add(d) }

// Event returns an event of the current time with a payload.
func (w *World) Event(p event.Payload) *event.Envelope {
	return &event.Envelope{
		ID: w.ID(), Time: event.At(w.Now), Domain: Domain, Source: Domain.Source(), Payload: p,
	}
}

// Group returns a group of events with these payloads, in an entry of its own.
func (w *World) Group(payloads ...event.Payload) fold.Group {
	events := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		events[i] = w.Event(p)
	}
	w.entries++
	return fold.Group{Entry: w.ID(), ID: events[0].ID, Events: events, Revision: int64(w.entries)}
}

// Fold folds payloads as one group and checks the state.
func (w *World) Fold(payloads ...event.Payload) fold.Result {
	w.t.Helper()
	return w.Apply(w.Group(payloads...))
}

// Apply folds a group. It fails the test if [Check] rejects the new state.
func (w *World) Apply(g fold.Group) fold.Result {
	w.t.Helper()
	before := w.State.FoldSeq
	result := fold.Apply(w.State, g)
	if n := w.State.FoldSeq - before; !result.Known && n != max(1, int64(len(g.Events))) {
		w.t.Fatalf("the fold sequence advanced by %d for %d events", n, len(g.Events))
	}
	if err := Check(w.State); err != nil {
		w.t.Fatalf("after folding %s: %v", Types(g), err)
	}
	return result
}

// Types returns the types of a group's events.
func Types(g fold.Group) []string {
	types := make([]string, len(g.Events))
	for i, e := range g.Events {
		types[i] = e.Payload.Type()
	}
	return types
}

// MustFold folds payloads as one group. It fails the test unless the outcome is FOLDED.
func (w *World) MustFold(payloads ...event.Payload) {
	w.t.Helper()
	if r := w.Fold(payloads...); r.Row.Outcome != state.Folded {
		w.t.Fatalf("the outcome is %s %s %s, want FOLDED", r.Row.Outcome, r.Row.Reason, r.Row.Detail)
	}
}

// Task returns the definition of a task of the asset test/KEY.
func Task(key string, dependsOn ...string) event.TaskDef {
	return event.TaskDef{TaskKey: key, DependsOn: dependsOn, AssetKey: "test/" + key}
}

// Retrying returns the definition of a task with several attempts.
func Retrying(key string, attempts int32, dependsOn ...string) event.TaskDef {
	def := Task(key, dependsOn...)
	def.MaxAttempts, def.RetryInitialDelayMS, def.RetryMaxDelayMS = attempts, 1000, 60_000
	return def
}

// Run triggers a run of tasks and returns its id.
func (w *World) Run(defs ...event.TaskDef) string {
	w.t.Helper()
	return w.RunWith(event.RunTriggered{}, defs...)
}

// RunWith triggers a run of tasks, with the fields of p, and returns its id.
func (w *World) RunWith(p event.RunTriggered, defs ...event.TaskDef) string {
	w.t.Helper()
	group := w.Triggered(&p, defs...)
	w.MustFold(group...)
	return p.RunID
}

// Triggered returns the payloads that trigger a run: p with missing ids filled in, and a plan.
func (w *World) Triggered(p *event.RunTriggered, defs ...event.TaskDef) []event.Payload {
	if p.RunID == "" {
		p.RunID = w.ID()
	}
	p.PlanID = w.ID()
	if p.Trigger.Type == "" {
		p.Trigger.Type = "manual"
	}
	return []event.Payload{p, &event.PlanCreated{
		RunID: p.RunID, PlanID: p.PlanID, PlanRef: "plans/" + p.PlanID + ".json", Tasks: defs,
	}}
}

// Ref returns a worker's reference to an attempt.
func Ref(run, key string, attempt int32) event.AttemptRef {
	return event.AttemptRef{
		RunID: run, TaskKey: key, Attempt: attempt,
		AttemptID: ids.AttemptID(Domain, run, key, attempt), WorkerID: "worker-1",
	}
}

// Started returns a worker's report that an attempt started now.
func (w *World) Started(run, key string, attempt int32) *event.TaskStarted {
	return &event.TaskStarted{AttemptRef: Ref(run, key, attempt), StartedAt: event.At(w.Now)}
}

// Beat returns a worker's heartbeat with the current time.
func (w *World) Beat(run, key string, attempt int32) *event.TaskHeartbeat {
	return &event.TaskHeartbeat{AttemptRef: Ref(run, key, attempt), HeartbeatAt: event.At(w.Now)}
}

// Finished returns a worker's report that an attempt ended now. A failure is retryable.
func (w *World) Finished(run, key string, attempt int32, outcome event.Outcome) *event.TaskFinished {
	p := &event.TaskFinished{
		AttemptRef: Ref(run, key, attempt), Outcome: outcome,
		StartedAt: event.At(w.Now), CompletedAt: event.At(w.Now),
	}
	if outcome == event.Succeeded {
		p.Output = &event.Output{URI: "assets/" + run + "/" + key + "/", RowCount: 1, ByteSize: 2}
	} else {
		p.Error = &event.Error{Code: "BOOM", Message: "it went wrong", Retryable: true}
	}
	return p
}

// Fire returns a TimerFired event for a timer, with the current time. The event says that the projections were complete
// up to now.
func (w *World) Fire(timer *state.Timer) *event.TimerFired {
	return &event.TimerFired{
		TimerID: timer.TimerID, Generation: timer.Generation, FiredAt: event.At(w.Now),
		Observed: event.Observed{CaughtUpAt: event.At(w.Now)},
	}
}

// Task returns the row of a task. It fails the test if the run has no such task.
func (w *World) Task(run, key string) *state.Task {
	w.t.Helper()
	row := w.State.Tasks.Get(state.Key2{A: run, B: key})
	if row == nil {
		w.t.Fatalf("run %s has no task %s", run, key)
	}
	return row
}

// States returns the states of a run's tasks as "key=STATE", in the order of their keys.
func (w *World) States(run string) []string {
	var states []string
	w.State.TasksOf(run, func(t *state.Task) bool {
		states = append(states, fmt.Sprintf("%s=%s", t.TaskKey, t.State))
		return true
	})
	return states
}

// RunState returns the state of a run.
func (w *World) RunState(run string) state.RunState { return w.State.Runs.Get(run).State }

// Timer returns the scheduled timer of a type, or nil. It fails the test if there are two.
func (w *World) Timer(timerType string) *state.Timer {
	w.t.Helper()
	var found *state.Timer
	for row := range w.State.Timers.All {
		if row.TimerType == timerType && row.State == state.TimerScheduled {
			if found != nil {
				w.t.Fatalf("two timers of type %s are scheduled: %s and %s", timerType, found.TimerID, row.TimerID)
			}
			found = row
		}
	}
	return found
}
