// Package dispatcher carries out what the controllers decide, and takes what
// workers and the queue report.
//
// It holds no state that matters: an action that is lost is decided again from
// the projections, and one that is carried out twice meets the name of the queue
// task it created the first time.
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

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Snapshots are the published states of a domain.
type Snapshots interface {
	Current(ctx context.Context) (*snapshot.Snapshot, error)
	Await(ctx context.Context, after int64) (*snapshot.Snapshot, error)
}

// Compactor folds what was appended.
type Compactor interface {
	Compact(ctx context.Context, r compactor.Request) (compactor.Result, error)
}

// Config is what a dispatcher works with.
type Config struct {
	Domain    ids.Domain
	Queue     queue.Queue
	Appender  *ledger.Appender
	Compactor Compactor
	Snapshots Snapshots
	// Markers is the store in which workers commit outputs.
	Markers Markers
	// Keys sign what workers may report, and are for nobody else to have: who has them
	// can report in the place of any worker.
	Keys contract.Keyring
	// WorkerKeys seal what workers are sent, who have them; without any, Keys do.
	WorkerKeys contract.Keyring
	// Turns are shared with the dispatchers of other domains; nil: there are none to
	// share with.
	Turns *Turns
	// QueueAsks says that the queue asks this dispatcher before each delivery, because it is
	// in this process.
	QueueAsks bool
	// WorkerURL is where the tasks of a queue are pushed to.
	WorkerURL func(queue string) string
	// BaseURL is where this service is reached, by workers and by the queue.
	BaseURL string
	IDs     *ids.Source
	Clock   clock.Clock
	Logger  *slog.Logger
	// Traces make spans of dispatches and callbacks; nil: there are none.
	Traces *trace.Tracer
}

// Markers tells whether a commit marker exists: [blob.ErrNotFound] if it does not.
type Markers interface {
	Head(ctx context.Context, key string) (blob.Object, error)
}

// Validity of what is handed out.
const (
	startedValid  = 7 * 24 * time.Hour
	callbackExtra = time.Hour
	// untimed is how long the callbacks of a task without a time-out are valid; each
	// heartbeat renews them.
	untimed = 24 * time.Hour
)

// parallel bounds the calls to the queue that are under way.
const parallel = 64

// Dispatcher is the dispatcher of one domain.
type Dispatcher struct {
	Config

	mu      sync.Mutex
	pending []control.Action
	wake    chan struct{}
	beats   *beats
	claims  *claims
}

// New makes a dispatcher.
func New(cfg Config) *Dispatcher {
	if cfg.WorkerKeys.Current == "" {
		cfg.WorkerKeys = cfg.Keys
	}
	return &Dispatcher{Config: cfg, wake: make(chan struct{}, 1), beats: newBeats(), claims: newClaims()}
}

// React takes up what a publish changed. It does not block: Run carries it out.
func (d *Dispatcher) React(p compactor.Published) {
	d.Submit(control.React(p.Changed.Outbox, p.Changed.Timers, event.At(d.Clock.Now())))
}

// Submit hands over actions for Run to carry out.
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

// Run carries out what is handed over until ctx is done. What is left then is
// decided again, from the projections, by whoever comes next.
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
		// What was decided on was read from a published revision, and this one is no
		// older: who takes a callback waits for it before saying that it knows no such
		// task.
		snap, err := d.Snapshots.Current(ctx)
		if err != nil {
			d.log(ctx, actions[0], err)
			continue
		}
		for _, o := range d.orders(snap.Revision, actions) {
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
		d.Logger.WarnContext(ctx, "action failed; it is decided again later",
			slog.String("queue_task", a.Name()), slog.Any("error", err))
	}
}

// Execute carries out actions, which were decided on in a published revision, and
// waits for them. One that fails keeps none of the others from being carried out.
func (d *Dispatcher) Execute(ctx context.Context, revision int64, actions []control.Action) error {
	return d.execute(ctx, revision, actions, func(control.Action, error) {})
}

// execute is Execute; done is told what became of each action, by several
// goroutines at once.
func (d *Dispatcher) execute(ctx context.Context, revision int64, actions []control.Action, done func(control.Action, error)) error {
	orders := d.orders(revision, actions)
	slices.SortStableFunc(orders, func(a, b order) int { return takesTurn(a) - takesTurn(b) })
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

// takesTurn puts what waits for its tenant's turn behind what does not.
func takesTurn(o order) int {
	if _, ok := o.Action.(control.CreateDispatch); ok {
		return 1
	}
	return 0
}

// Reconcile carries out what the projections call for and nobody has taken up.
func (d *Dispatcher) Reconcile(ctx context.Context) error {
	snap, err := d.Snapshots.Current(ctx)
	if err != nil {
		return err
	}
	now := event.At(d.Clock.Now())
	return d.Execute(ctx, snap.Revision, append(control.Dispatch(snap.State, now), control.Timers(snap.State, now)...))
}

// sweepTurns is how long a sweep waits for turns: other domains wait for it.
const sweepTurns = 15 * time.Second

// Sweep is anti-entropy on a state of at least the given revision, one that a
// barrier has brought up to date: it asks the queue after everything overdue, and
// has what is gone dispatched anew.
func (d *Dispatcher) Sweep(ctx context.Context, revision int64) error {
	snap, err := d.newest(ctx, revision)
	if err != nil {
		return err
	}
	turns, cancel := context.WithTimeout(ctx, sweepTurns)
	defer cancel()
	err = d.claimed(turns, snap.Revision, control.Sweep(snap.State, event.At(d.Clock.Now())))
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		d.Logger.WarnContext(ctx, "not all that a sweep found was queued in time; the next one goes on",
			slog.String("domain", d.Domain.String()), slog.Any("error", err))
		return nil
	}
	return err
}

// order is an action with what it is to be carried out with. That is settled
// before any is: how actions carried out side by side overtake each other has no
// say in it.
type order struct {
	control.Action
	token    string // what the execution does comes after it
	revision int64  // is published, and no older than what was decided on
	// traceparent and tracestate name the span of the dispatch; "": there is none.
	traceparent, tracestate string
}

func (d *Dispatcher) orders(revision int64, actions []control.Action) []order {
	orders := make([]order, len(actions))
	for i, a := range actions {
		orders[i] = order{Action: a, token: d.IDs.New(), revision: revision}
	}
	return orders
}

func (d *Dispatcher) act(ctx context.Context, o order) error {
	switch a := o.Action.(type) {
	case control.CreateDispatch:
		return d.createDispatch(ctx, a, o)
	case control.DeleteDispatch:
		return d.Queue.Delete(ctx, a.Row.WorkerQueue, a.Row.CloudTaskID)
	case control.CreateTimer:
		return d.createTimer(ctx, a)
	case control.DeleteTimer:
		return d.Queue.Delete(ctx, control.TimerQueue, a.Row.CloudTaskID)
	case control.Redispatch:
		return d.repair(ctx, a.Queue, a.CloudTaskID, a.Request.RunID, a.Request)
	case control.Retime:
		return d.repair(ctx, control.TimerQueue, a.CloudTaskID, "", a.Request)
	}
	panic(fmt.Sprintf("dispatcher: no case for %T", o.Action))
}

// createDispatch creates the queue task of an attempt. A queue that has it
// already, or had it, is as good; one that will never take it is a fact for the
// ledger. Any other error leaves the outbox row PENDING, to be tried again under
// the same name.
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
	return d.soon(ctx, a.Row.RunID, &event.DispatchEnqueued{
		DispatchID: a.Row.DispatchID, RunID: a.Row.RunID, TaskKey: a.Row.TaskKey, Attempt: a.Row.Attempt,
		Generation: a.Row.Generation, CloudTaskID: a.Row.CloudTaskID, Deduplicated: err != nil,
	})
}

// enqueue creates the queue task of an attempt.
func (d *Dispatcher) enqueue(ctx context.Context, row *state.Dispatch, o order) (err error) {
	ctx, span := d.Traces.Start(ctx, "dispatch", trace.About{
		Tenant: d.Domain.Tenant, Workspace: d.Domain.Workspace, RunID: row.RunID, TaskKey: row.TaskKey,
		Attempt: row.Attempt, AttemptID: row.AttemptID,
	}, oteltrace.WithSpanKind(oteltrace.SpanKindProducer))
	defer func() { span.End(failure(err)) }()
	if d.Traces.On() {
		o.traceparent, o.tracestate = trace.Active(ctx)
	}
	release, err := d.Turns.Take(ctx, d.Domain.Tenant)
	if err != nil {
		return err
	}
	defer release()
	task, err := d.dispatchTask(row, o)
	if err != nil {
		return err
	}
	return d.Queue.Create(ctx, task)
}

// failure is err, unless it says that there is nothing left to do.
func failure(err error) error {
	if errors.Is(err, queue.ErrExists) {
		return nil
	}
	return err
}

func (d *Dispatcher) dispatchTask(row *state.Dispatch, o order) (queue.Task, error) {
	task := queue.Task{
		Queue: row.WorkerQueue, Name: row.CloudTaskID, URL: d.WorkerURL(row.WorkerQueue) + "/execute",
		Header: map[string]string{"Content-Type": "application/json"}, DispatchDeadline: maxDispatchDeadline,
	}
	if d.QueueAsks && len(row.TaskKey)+len(row.AssetKey)+len(row.PartitionKey)+len(row.PlanRef) < maxPrepared {
		task.Prepare = func(ctx context.Context) ([]byte, bool, error) { return d.prepare(ctx, row, o) }
		task.Answered = func(ctx context.Context, body []byte) error { return d.answered(ctx, row, o, body) }
		return task, nil
	}
	var err error
	task.Body, err = d.sealed(d.envelope(row, o))
	return task, err
}

// maxPrepared bounds what an envelope holds that is made when it is delivered: it is
// too late then to find that no queue takes it.
const maxPrepared = 8 << 10

// envelope is what a worker is told of an attempt.
func (d *Dispatcher) envelope(row *state.Dispatch, o order) *contract.Envelope {
	env := &contract.Envelope{
		ContractVersion: contract.Version,
		Tenant:          d.Domain.Tenant, Workspace: d.Domain.Workspace, RunID: row.RunID, TaskKey: row.TaskKey,
		TaskID: ids.TaskID(d.Domain, row.RunID, row.TaskKey), Attempt: row.Attempt, AttemptID: row.AttemptID,
		MaxAttempts: row.MaxAttempts, PlanRef: row.PlanRef, AssetKey: row.AssetKey, PartitionKey: row.PartitionKey,
		MaterializationID: ids.MaterializationID(d.Domain, row.RunID, row.TaskKey),
		TimeoutSec:        row.TimeoutSec, HeartbeatTimeoutSec: row.HeartbeatTimeoutSec,
		CausalToken: o.token, Traceparent: o.traceparent, Tracestate: o.tracestate,
	}
	env.Auth.ExpiresAt = event.At(d.Clock.Now().Add(startedValid))
	env.Callbacks.Started, env.Callbacks.Authorization.Started = contract.SignCallback(d.BaseURL, d.started(row, o, env.Auth.ExpiresAt), d.Keys)
	return env
}

// started is the right to report the start of an attempt.
func (d *Dispatcher) started(row *state.Dispatch, o order, expires event.Time) contract.Callback {
	return contract.Callback{
		Domain: d.Domain, RunID: row.RunID, TaskKey: row.TaskKey, Attempt: row.Attempt, AttemptID: row.AttemptID,
		Verb: contract.VerbStarted, Expires: expires, Revision: o.revision,
	}
}

// sealed signs an envelope.
func (d *Dispatcher) sealed(env *contract.Envelope) ([]byte, error) {
	body, err := contract.Seal(env, d.WorkerKeys, env.Auth.ExpiresAt)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", queue.ErrInvalid, err)
	}
	return body, nil
}

// admissionValid is for how long an attempt that was found to be the current one may
// begin without asking again: as long as the answer to a worker's question may be on
// its way.
const admissionValid = time.Second

// prepare gives the envelope of a delivery that is about to be made. What a worker
// would ask before it begins is answered with it: whether the attempt is the current
// one. One that is not is not delivered. A task of a pool is asked for all the same: were it
// cancelled before its start is known, its slot would be given away while it is killed.
func (d *Dispatcher) prepare(ctx context.Context, row *state.Dispatch, o order) (body []byte, wanted bool, err error) {
	env := d.envelope(row, o)
	c, problem := d.find(ctx, d.started(row, o, env.Auth.ExpiresAt))
	if problem == nil {
		problem = d.startable(c)
	}
	switch {
	case problem == nil && c.task.Pool == "":
		env.AdmittedUntil = event.At(d.Clock.Now().Add(admissionValid))
	case problem != nil && problem.Status == http.StatusConflict:
		return nil, false, nil
	}
	// Of anything else, such as a store that is away, the worker hears when it asks.
	body, err = d.sealed(env)
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
	err = d.Queue.Create(ctx, queue.Task{
		Queue: control.TimerQueue, Name: a.Row.CloudTaskID, URL: d.BaseURL + firePath(d.Domain),
		Header: map[string]string{"Content-Type": "application/json"}, Body: body, ScheduleTime: at.Time(),
	})
	if err != nil && !errors.Is(err, queue.ErrExists) {
		return fmt.Errorf("schedule timer %s: %w", a.Row.TimerID, err)
	}
	if !a.Acknowledge {
		return nil
	}
	return d.soon(ctx, a.Row.RunID, &event.TimerEnqueued{
		TimerID: a.Row.TimerID, Generation: a.Row.Generation, CloudTaskID: a.Row.CloudTaskID, HopAt: a.HopAt,
	})
}

func firePath(d ids.Domain) string {
	return "/v1/tenants/" + url.PathEscape(d.Tenant) + "/workspaces/" + url.PathEscape(d.Workspace) + "/timers/fire"
}

// repair asks for something to be queued under a new name, but only if the queue
// no longer has it under the old one: what is merely slow is left alone.
func (d *Dispatcher) repair(ctx context.Context, queueName, task, run string, request event.Payload) error {
	if task != "" {
		there, err := d.Queue.Exists(ctx, queueName, task)
		if err != nil || there {
			return err
		}
	}
	return d.append(ctx, run, request)
}

func (d *Dispatcher) append(ctx context.Context, run string, p event.Payload) error {
	_, err := d.Appender.Append(ctx, []*event.Envelope{{Domain: d.Domain, CorrelationID: run, Payload: p}})
	return err
}

// soon appends what is told again if it is lost: that a queue has a task, whose
// name it refuses a second time; that an attempt has started or is alive, which
// its end says too, and the queue delivers it again if its worker dies.
func (d *Dispatcher) soon(ctx context.Context, run string, p event.Payload) error {
	return d.Appender.AppendSoon(ctx, []*event.Envelope{{Domain: d.Domain, CorrelationID: run, Payload: p}})
}
