// Package dispatcher executes the actions of the controllers, and receives the reports of workers
// and the calls of the queue. This package is not a stable API.
//
// A dispatcher keeps no state that must survive a restart. The controllers derive a lost action again from the
// projections. An action that is executed twice finds the queue task that it created the first time, because the name
// of the task is derived from the action.
package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Snapshots returns the published states of a domain.
type Snapshots interface {
	Current(ctx context.Context) (*snapshot.Snapshot, error)
	Await(ctx context.Context, after int64) (*snapshot.Snapshot, error)
}

// Compactor folds appended entries.
type Compactor interface {
	Compact(ctx context.Context, r compactor.Request) (compactor.Result, error)
}

// Config configures a dispatcher.
type Config struct {
	// Handle is the domain. Workers commit outputs in its store.
	*domain.Handle
	Queue     queue.Queue
	Appender  *ledger.Appender
	Compactor Compactor
	Snapshots Snapshots
	// Keys sign callback URLs. They must stay secret: anybody who has them can report for any worker.
	Keys contract.Keyring
	// WorkerKeys sign envelopes; the workers have these keys, too. Without WorkerKeys, Keys sign envelopes.
	WorkerKeys contract.Keyring
	// FairQueue is the fair queue that dispatchers of several domains share. Nil: no queueing.
	FairQueue *FairQueue
	// InProcessQueue is true if the queue runs in this process and calls Prepare before each delivery.
	InProcessQueue bool
	// WorkerURL returns the address of the workers that execute the tasks of a queue.
	WorkerURL func(queue string) string
	// BaseURL is the address at which workers and the queue reach this service.
	BaseURL string
	// OnState passes two kinds of states to the automators: every state that another process published, and the state
	// that a sweep uses, if it has work that no automator has done in time. overdue is true for the second kind. OnState
	// must not block. Nil: there are no automators.
	OnState func(s *state.State, overdue bool)
	// Traces records spans of dispatches and callbacks. Nil: none are recorded.
	Traces *trace.Tracer
}

// The periods for which callback URLs are valid.
const (
	startedValid  = 7 * 24 * time.Hour
	callbackExtra = time.Hour
	// untimed is the validity of the callbacks of a task without a timeout. Each heartbeat renews
	// them.
	untimed = 24 * time.Hour
)

// parallel is the maximum number of concurrent calls to the queue.
const parallel = 64

// Dispatcher is the dispatcher of one domain.
type Dispatcher struct {
	cfg Config

	mu         sync.Mutex
	pending    []control.Action
	wake       chan struct{}
	heartbeats *heartbeats
	inFlight   *inFlight
}

// New returns a dispatcher.
func New(cfg Config) *Dispatcher {
	if cfg.WorkerKeys.Current == "" {
		cfg.WorkerKeys = cfg.Keys
	}
	return &Dispatcher{cfg: cfg, wake: make(chan struct{}, 1), heartbeats: newHeartbeats(), inFlight: newInFlight()}
}

// React submits the actions for the rows that a publish changed. It does not block.
func (d *Dispatcher) React(p compactor.Published) {
	d.Submit(control.React(state.List[state.Dispatch](p.Changed), state.List[state.Timer](p.Changed), event.At(d.cfg.Clock.Now())))
}

// Submit queues actions for Run to execute.
func (d *Dispatcher) Submit(actions []control.Action) {
	if len(actions) == 0 {
		return
	}
	d.mu.Lock()
	d.pending = append(d.pending, actions...)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run executes submitted actions until ctx is done. The next process derives the remaining actions again from the
// projections.
func (d *Dispatcher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, parallel)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		}
		d.mu.Lock()
		actions := d.pending
		d.pending = nil
		d.mu.Unlock()
		// This snapshot is at least as new as the revision that the actions come from. The receiver of a callback
		// waits for this revision before it answers that the task is unknown.
		snap, err := d.cfg.Snapshots.Current(ctx)
		if err != nil {
			d.log(ctx, actions[0], err)
			continue
		}
		for _, o := range d.orders(snap, actions) {
			select {
			case <-ctx.Done():
				return nil
			case slots <- struct{}{}:
			}
			wg.Go(func() {
				defer func() { <-slots }()
				d.log(ctx, o.Action, d.act(ctx, o))
			})
		}
	}
}

func (d *Dispatcher) log(ctx context.Context, a control.Action, err error) {
	if err != nil && ctx.Err() == nil {
		d.cfg.Logger.WarnContext(ctx, "action failed; it will be repeated",
			slog.String("queue_task", a.Name()), slog.Any("error", err))
	}
}

// Execute executes actions that were derived from a published state, and waits for them. If one
// fails, the others are still executed.
func (d *Dispatcher) Execute(ctx context.Context, snap *snapshot.Snapshot, actions []control.Action) error {
	return d.execute(ctx, snap, actions, func(control.Action, error) {})
}

// execute implements [Dispatcher.Execute]. It calls the function done with the result of each
// action, from several goroutines.
func (d *Dispatcher) execute(ctx context.Context, snap *snapshot.Snapshot, actions []control.Action, done func(control.Action, error)) error {
	orders := d.orders(snap, actions)
	slices.SortStableFunc(orders, func(a, b order) int { return dispatchesLast(a) - dispatchesLast(b) })
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, o := range orders {
		g.Go(func() error {
			err := d.act(ctx, o)
			done(o.Action, err)
			return err
		})
	}
	return g.Wait()
}

// dispatchesLast is a sort key that puts the actions that wait in the fair queue after all other actions.
func dispatchesLast(o order) int {
	if _, ok := o.Action.(control.CreateDispatch); ok {
		return 1
	}
	return 0
}

// Reconcile executes the actions that the projections call for and that no process has executed.
func (d *Dispatcher) Reconcile(ctx context.Context) error {
	snap, err := d.cfg.Snapshots.Current(ctx)
	if err != nil {
		return err
	}
	now := event.At(d.cfg.Clock.Now())
	return d.Execute(ctx, snap, append(control.Dispatch(snap.State, now), control.Timers(snap.State, now)...))
}

// sweepTurns limits how long a sweep waits in the fair queue, because the sweeps of other domains wait for this one.
const sweepTurns = 15 * time.Second

// Sweep compares a state with the queue. It uses the state of the given revision, which a barrier has published, or of
// a later revision. For each overdue queue task, Sweep asks the queue whether it still has the task. Sweep requests a
// new dispatch for each task that the queue has lost.
func (d *Dispatcher) Sweep(ctx context.Context, revision int64) error {
	snap, err := d.newest(ctx, revision)
	if err != nil {
		return err
	}
	now := event.At(d.cfg.Clock.Now())
	if control.Unattended(snap.State, now) {
		d.automate(snap.State, true)
	}
	turns, cancel := context.WithTimeout(ctx, sweepTurns)
	defer cancel()
	err = d.executeNew(turns, snap, control.Sweep(snap.State, now))
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		d.cfg.Logger.WarnContext(ctx, "the sweep timed out before it had queued everything; the next sweep continues",
			slog.String("domain", d.cfg.Domain.String()), slog.Any("error", err))
		return nil
	}
	return err
}

// automate calls OnState.
func (d *Dispatcher) automate(s *state.State, overdue bool) {
	if d.cfg.OnState != nil {
		d.cfg.OnState(s, overdue)
	}
}

// order is an action with its parameters. They are fixed before any action executes, so that they
// do not depend on the order in which concurrent actions execute.
type order struct {
	control.Action
	token    string // the causal token: events of the execution sort after it
	revision int64  // a published revision, at least as new as the state that the action comes from
	// unmet names the upstreams of a dispatched task that did not succeed.
	unmet contract.Without
	// traceparent and tracestate identify the span of the dispatch. "": no span.
	traceparent, tracestate string
}

// orders returns orders for actions. The snapshot is at least as new as the state that the actions come from.
func (d *Dispatcher) orders(snap *snapshot.Snapshot, actions []control.Action) []order {
	orders := make([]order, len(actions))
	for i, a := range actions {
		orders[i] = order{Action: a, token: d.cfg.IDs.New(), revision: snap.Revision}
		if create, ok := a.(control.CreateDispatch); ok {
			orders[i].unmet = unmetUpstreams(snap.State, create.Row)
		}
	}
	return orders
}

// unmetUpstreams returns the upstreams of a dispatched task that did not succeed. All upstreams have ended, unless a
// rebuild from the bare ledger has admitted the task because of a worker's report.
func unmetUpstreams(s *state.State, row *state.Dispatch) contract.Without {
	t := s.Tasks.Get(state.Key2{A: row.RunID, B: row.TaskKey})
	switch {
	case t == nil || t.DepsSatisfied == t.DepsTotal: // if there is no task, the dispatch is outdated
		return ""
	case t.DepsResolved < t.DepsTotal:
		return contract.UnknownWithout
	}
	return contract.WithoutTasks(s.Unmet(row.RunID, row.TaskKey))
}

func (d *Dispatcher) act(ctx context.Context, o order) error {
	switch a := o.Action.(type) {
	case control.CreateDispatch:
		return d.createDispatch(ctx, a, o)
	case control.DeleteDispatch:
		return d.cfg.Queue.Delete(ctx, a.Row.WorkerQueue, a.Row.QueueTaskName)
	case control.CreateTimer:
		return d.createTimer(ctx, a)
	case control.DeleteTimer:
		return d.cfg.Queue.Delete(ctx, control.TimerQueue, a.Row.QueueTaskName)
	case control.Redispatch:
		return d.repair(ctx, a.Queue, a.QueueTaskName, a.Request.RunID, a.Request)
	case control.Retime:
		return d.repair(ctx, control.TimerQueue, a.QueueTaskName, "", a.Request)
	}
	panic(fmt.Sprintf("dispatcher: no case for %T", o.Action))
}

// createDispatch creates the queue task of an attempt. It also succeeds if the queue has or had the task. If the
// queue can never accept the task, createDispatch appends DispatchFailed. After any other error the outbox row stays
// PENDING, and a later call uses the same name.
func (d *Dispatcher) createDispatch(ctx context.Context, a control.CreateDispatch, o order) error {
	err := d.enqueue(ctx, a.Row, o)
	switch {
	case errors.Is(err, queue.ErrInvalid):
		return d.append(ctx, a.Row.RunID, &event.DispatchFailed{
			DispatchID: a.Row.DispatchID, RunID: a.Row.RunID, TaskKey: a.Row.TaskKey, Attempt: a.Row.Attempt,
			Generation: a.Row.Generation,
			Error:      event.Error{Code: "UNDISPATCHABLE", Category: "configuration", Message: err.Error()},
		})
	case err != nil && !errors.Is(err, queue.ErrExists):
		return fmt.Errorf("dispatch task %s of run %s: %w", a.Row.TaskKey, a.Row.RunID, err)
	case !a.Acknowledge:
		return nil
	}
	return d.appendSoon(ctx, a.Row.RunID, &event.DispatchEnqueued{
		DispatchID: a.Row.DispatchID, RunID: a.Row.RunID, TaskKey: a.Row.TaskKey, Attempt: a.Row.Attempt,
		Generation: a.Row.Generation, QueueTaskName: a.Row.QueueTaskName, Deduplicated: err != nil,
	})
}

// enqueue creates the queue task of an attempt.
func (d *Dispatcher) enqueue(ctx context.Context, row *state.Dispatch, o order) (err error) {
	ctx, span := d.cfg.Traces.Start(ctx, "dispatch", trace.About{
		Tenant: d.cfg.Domain.Tenant, Workspace: d.cfg.Domain.Workspace, RunID: row.RunID, TaskKey: row.TaskKey,
		Attempt: row.Attempt, AttemptID: row.AttemptID,
	}, oteltrace.WithSpanKind(oteltrace.SpanKindProducer))
	defer func() { span.End(failure(err)) }()
	if d.cfg.Traces.On() {
		o.traceparent, o.tracestate = trace.Active(ctx)
	}
	release, err := d.cfg.FairQueue.Acquire(ctx, d.cfg.Domain.Tenant)
	if err != nil {
		return err
	}
	defer release()
	task, err := d.dispatchTask(row, o)
	if err != nil {
		return err
	}
	return d.cfg.Queue.Create(ctx, task)
}

// failure returns err, or nil if the queue already has the task.
func failure(err error) error {
	if errors.Is(err, queue.ErrExists) {
		return nil
	}
	return err
}

func (d *Dispatcher) dispatchTask(row *state.Dispatch, o order) (queue.Task, error) {
	task := queue.Task{
		Queue: row.WorkerQueue, Name: row.QueueTaskName, URL: d.cfg.WorkerURL(row.WorkerQueue) + "/execute",
		Header: map[string]string{"Content-Type": "application/json"}, DispatchDeadline: maxDispatchDeadline,
		Turn: queue.Turn{Priority: row.Priority, Group: row.RunID, Since: row.CreatedAt.Time()},
	}
	if d.cfg.InProcessQueue && len(row.TaskKey)+len(row.AssetKey)+len(row.PartitionKey)+len(row.PlanRef) < maxPrepared {
		task.Prepare = func(ctx context.Context) ([]byte, bool, error) { return d.prepare(ctx, row, o) }
		task.OnResponse = func(ctx context.Context, body []byte) error { return d.answered(ctx, row, o, body) }
		return task, nil
	}
	var err error
	task.Body, err = d.signed(d.envelope(row, o))
	return task, err
}

// maxPrepared bounds the total length of the names in an envelope that is built at delivery. The queue cannot reject
// such an envelope if it is too large: a queue checks sizes only when a queue task is created.
const maxPrepared = 8 << 10

// envelope returns the envelope that a worker receives for an attempt.
func (d *Dispatcher) envelope(row *state.Dispatch, o order) *contract.Envelope {
	env := &contract.Envelope{
		ContractVersion: contract.Version,
		Tenant:          d.cfg.Domain.Tenant, Workspace: d.cfg.Domain.Workspace, RunID: row.RunID, TaskKey: row.TaskKey,
		TaskID: ids.TaskID(d.cfg.Domain, row.RunID, row.TaskKey), Attempt: row.Attempt, AttemptID: row.AttemptID,
		MaxAttempts: row.MaxAttempts, PlanRef: row.PlanRef, AssetKey: row.AssetKey, PartitionKey: row.PartitionKey,
		MaterializationID: ids.MaterializationID(d.cfg.Domain, row.RunID, row.TaskKey),
		TimeoutSec:        row.TimeoutSec, HeartbeatTimeoutSec: row.HeartbeatTimeoutSec,
		LogBytes: event.MaxLog, Without: o.unmet, CausalToken: o.token, Traceparent: o.traceparent, Tracestate: o.tracestate,
	}
	env.Auth.ExpiresAt = event.At(d.cfg.Clock.Now().Add(startedValid))
	env.Callbacks.Started, env.Callbacks.Authorization.Started = contract.SignCallback(d.cfg.BaseURL, d.started(row, o, env.Auth.ExpiresAt), d.cfg.Keys)
	return env
}

// started returns the callback that reports the start of an attempt.
func (d *Dispatcher) started(row *state.Dispatch, o order, expires event.Time) contract.Callback {
	return contract.Callback{
		Domain: d.cfg.Domain, RunID: row.RunID, TaskKey: row.TaskKey, Attempt: row.Attempt, AttemptID: row.AttemptID,
		Verb: contract.VerbStarted, Expires: expires, Revision: o.revision,
	}
}

// signed encodes and signs an envelope.
func (d *Dispatcher) signed(env *contract.Envelope) ([]byte, error) {
	body, err := contract.Seal(env, d.cfg.WorkerKeys, env.Auth.ExpiresAt)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", queue.ErrInvalid, err)
	}
	return body, nil
}

// admissionValid is how long after a delivery the worker may start the attempt without asking the dispatcher. This is
// as safe as asking, because the dispatcher's answer could take just as long to arrive.
const admissionValid = time.Second

// prepare returns the envelope of a delivery. If the attempt is no longer the current one, wanted is false, and the
// attempt is not delivered. The envelope already admits the attempt, which saves the worker a request. A worker must
// still ask before it executes a task of a pool. Suppose that it did not ask, and that the task is cancelled before its
// start is recorded. Another task would then get the slot of the pool while the worker is still killing the first task.
func (d *Dispatcher) prepare(ctx context.Context, row *state.Dispatch, o order) (body []byte, wanted bool, err error) {
	env := d.envelope(row, o)
	c, problem := d.find(ctx, d.started(row, o, env.Auth.ExpiresAt))
	if problem == nil {
		problem = d.startable(c)
	}
	switch {
	case problem == nil && c.task.Pool == "":
		env.AdmittedUntil = event.At(d.cfg.Clock.Now().Add(admissionValid))
	case problem != nil && problem.Status == http.StatusConflict:
		return nil, false, nil
	}
	// Any other problem, such as an unreachable store, does not prevent the delivery: the worker asks before it starts,
	// and gets the error.
	body, err = d.signed(env)
	return body, err == nil, err
}

const maxDispatchDeadline = 30 * time.Minute

func (d *Dispatcher) createTimer(ctx context.Context, a control.CreateTimer) error {
	body, err := json.Marshal(fireRequest{TimerID: a.Row.TimerID, Generation: a.Row.Generation})
	if err != nil {
		return fmt.Errorf("encode timer %s: %w", a.Row.TimerID, err)
	}
	at := a.Row.FireAt
	if a.HopAt != 0 {
		at = a.HopAt
	}
	err = d.cfg.Queue.Create(ctx, queue.Task{
		Queue: control.TimerQueue, Name: a.Row.QueueTaskName, URL: d.cfg.BaseURL + firePath(d.cfg.Domain),
		Header: map[string]string{"Content-Type": "application/json"}, Body: body, ScheduleTime: at.Time(),
	})
	if err != nil && !errors.Is(err, queue.ErrExists) {
		return fmt.Errorf("schedule timer %s: %w", a.Row.TimerID, err)
	}
	if !a.Acknowledge {
		return nil
	}
	return d.appendSoon(ctx, a.Row.RunID, &event.TimerEnqueued{
		TimerID: a.Row.TimerID, Generation: a.Row.Generation, QueueTaskName: a.Row.QueueTaskName, HopAt: a.HopAt,
	})
}

func firePath(d ids.Domain) string {
	return "/v1/tenants/" + url.PathEscape(d.Tenant) + "/workspaces/" + url.PathEscape(d.Workspace) + "/timers/fire"
}

// repair requests a new queue task under a new name, but only if the queue no longer has the old
// one. A task that is merely slow is left alone.
func (d *Dispatcher) repair(ctx context.Context, queueName, task, run string, request event.Payload) error {
	if task != "" {
		exists, err := d.cfg.Queue.Exists(ctx, queueName, task)
		if err != nil || exists {
			return err
		}
	}
	return d.append(ctx, run, request)
}

func (d *Dispatcher) append(ctx context.Context, run string, p event.Payload) error {
	_, err := d.cfg.Appender.Append(ctx, []*event.Envelope{{Domain: d.cfg.Domain, CorrelationID: run, Payload: p}})
	return err
}

// appendSoon appends an event that may be lost without harm, because its fact is reported again. For example, the queue
// reports again that a name exists, and the end of an attempt also reports that the attempt was started and alive. If
// the worker dies before it reports the end, the queue redelivers the attempt.
func (d *Dispatcher) appendSoon(ctx context.Context, run string, p event.Payload) error {
	return d.cfg.Appender.AppendBuffered(ctx, []*event.Envelope{{Domain: d.cfg.Domain, CorrelationID: run, Payload: p}})
}
