// Package foldtest drives the fold in tests: a world of one domain in which
// events are written as one says them.
package foldtest

import (
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Domain is the domain of every world.
var Domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

// TimerOther is the type of a timer that the fold keeps and that decides nothing. No ledger
// entry can ask for one: the decoder rejects types that have no meaning yet.
const TimerOther = "OTHER"

// Epoch is when every world begins.
var Epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TB is what a world needs of a test, a benchmark or a property.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// World is a state and the time in it.
type World struct {
	State *state.State
	Now   time.Time

	t       TB
	entries int
	ids     *ids.Source
}

// zeros is entropy without any: ids follow from the time alone.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// New makes an empty world.
func New(t TB) *World {
	w := &World{State: state.New(Domain), Now: Epoch, t: t}
	w.ids = ids.NewSource(func() time.Time { return w.Now }, zeros{})
	return w
}

// ID mints a ULID of the world's time.
func (w *World) ID() string { return w.ids.New() }

// Pass lets time pass.
func (w *World) Pass(d time.Duration) { w.Now = w.Now.Add(d) }

// Event wraps a payload, as of now.
func (w *World) Event(p event.Payload) *event.Envelope {
	return &event.Envelope{
		ID: w.ID(), Time: event.At(w.Now), Domain: Domain, Source: Domain.Source(), Payload: p,
	}
}

// Group makes a group of payloads, in an entry of its own.
func (w *World) Group(payloads ...event.Payload) fold.Group {
	events := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		events[i] = w.Event(p)
	}
	w.entries++
	return fold.Group{Entry: w.ID(), ID: events[0].ID, Events: events, Revision: int64(w.entries)}
}

// Fold folds payloads as one group.
func (w *World) Fold(payloads ...event.Payload) fold.Result {
	w.t.Helper()
	return w.Apply(w.Group(payloads...))
}

// Apply folds a group and fails the test if it leaves a state that cannot be.
func (w *World) Apply(g fold.Group) fold.Result {
	w.t.Helper()
	before := w.State.FoldSeq
	result := fold.Apply(w.State, g)
	if n := w.State.FoldSeq - before; !result.Known && n != max(1, int64(len(g.Events))) {
		w.t.Fatalf("the fold sequence went on by %d for %d events", n, len(g.Events))
	}
	if err := Check(w.State); err != nil {
		w.t.Fatalf("after folding %s: %v", Types(g), err)
	}
	return result
}

// Types names the types of a group's events.
func Types(g fold.Group) []string {
	types := make([]string, len(g.Events))
	for i, e := range g.Events {
		types[i] = e.Payload.Type()
	}
	return types
}

// MustFold folds payloads and fails the test unless they change something.
func (w *World) MustFold(payloads ...event.Payload) {
	w.t.Helper()
	if r := w.Fold(payloads...); r.Row.Outcome != state.Folded {
		w.t.Fatalf("fold came to %s %s %s, not FOLDED", r.Row.Outcome, r.Row.Reason, r.Row.Detail)
	}
}

// Task is a task definition: key, then what it depends on.
func Task(key string, dependsOn ...string) event.TaskDef {
	return event.TaskDef{TaskKey: key, DependsOn: dependsOn, AssetKey: "test/" + key}
}

// Retrying is a task with attempts to spare.
func Retrying(key string, attempts int32, dependsOn ...string) event.TaskDef {
	def := Task(key, dependsOn...)
	def.MaxAttempts, def.RetryInitialDelayMS, def.RetryMaxDelayMS = attempts, 1000, 60_000
	return def
}

// Run triggers a run of tasks and gives its id.
func (w *World) Run(defs ...event.TaskDef) string {
	w.t.Helper()
	return w.RunWith(event.RunTriggered{}, defs...)
}

// RunWith is Run with the trigger's fields.
func (w *World) RunWith(p event.RunTriggered, defs ...event.TaskDef) string {
	w.t.Helper()
	group := w.Triggered(&p, defs...)
	w.MustFold(group...)
	return p.RunID
}

// Triggered are the payloads of a run's group.
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

// Ref names an attempt as a worker does.
func Ref(run, key string, attempt int32) event.AttemptRef {
	return event.AttemptRef{
		RunID: run, TaskKey: key, Attempt: attempt,
		AttemptID: ids.AttemptID(Domain, run, key, attempt), WorkerID: "worker-1",
	}
}

// Started is a worker's report that an attempt began, now.
func (w *World) Started(run, key string, attempt int32) *event.TaskStarted {
	return &event.TaskStarted{AttemptRef: Ref(run, key, attempt), StartedAt: event.At(w.Now)}
}

// Beat is a worker's sign of life, now.
func (w *World) Beat(run, key string, attempt int32) *event.TaskHeartbeat {
	return &event.TaskHeartbeat{AttemptRef: Ref(run, key, attempt), HeartbeatAt: event.At(w.Now)}
}

// Finished is a worker's report that an attempt ended, now. A failure is retryable.
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

// Fire is the call of a timer, now, judged by fresh projections.
func (w *World) Fire(timer *state.Timer) *event.TimerFired {
	return &event.TimerFired{
		TimerID: timer.TimerID, Generation: timer.Generation, FiredAt: event.At(w.Now),
		Observed: event.Observed{CaughtUpAt: event.At(w.Now)},
	}
}

// Task is the row of a task.
func (w *World) Task(run, key string) *state.Task {
	w.t.Helper()
	row := w.State.Tasks.Get(state.Key2{A: run, B: key})
	if row == nil {
		w.t.Fatalf("run %s has no task %s", run, key)
	}
	return row
}

// States are the states of a run's tasks, "key=STATE" in the order of their keys.
func (w *World) States(run string) []string {
	var states []string
	w.State.TasksOf(run, func(t *state.Task) bool {
		states = append(states, fmt.Sprintf("%s=%s", t.TaskKey, t.State))
		return true
	})
	return states
}

// RunState is the state of a run.
func (w *World) RunState(run string) state.RunState { return w.State.Runs.Get(run).State }

// Timer is the only scheduled timer of a type, or nil.
func (w *World) Timer(timerType string) *state.Timer {
	w.t.Helper()
	var found *state.Timer
	for row := range w.State.Timers.All {
		if row.TimerType == timerType && row.State == state.TimerScheduled {
			if found != nil {
				w.t.Fatalf("two timers of type %s wait: %s and %s", timerType, found.TimerID, row.TimerID)
			}
			found = row
		}
	}
	return found
}
