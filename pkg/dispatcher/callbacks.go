package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxBody is the maximum size of a request body, in bytes.
const maxBody = 1 << 20

// catchUp limits how long a request waits for the revision that it names.
const catchUp = 10 * time.Second

// Finder returns the dispatcher of a domain, and opens it if necessary. It returns nil if this service does not serve
// the domain.
type Finder func(context.Context, ids.Domain) (*Dispatcher, error)

// lookUp returns the dispatcher of a domain, or a problem if there is none.
func (find Finder) lookUp(ctx context.Context, d ids.Domain) (*Dispatcher, *contract.Problem) {
	if err := d.Validate(); err != nil {
		return nil, &contract.Problem{Title: "Unknown domain", Status: http.StatusNotFound, Detail: err.Error()}
	}
	found, err := find(ctx, d)
	switch {
	case err != nil:
		return nil, internal(err)
	case found == nil:
		return nil, &contract.Problem{
			Title: "Unknown domain", Status: http.StatusNotFound,
			Detail: "this service does not serve that tenant and workspace",
		}
	}
	return found, nil
}

// TimerPattern is the route that the timer queue calls.
const TimerPattern = "POST /v1/tenants/{tenant}/workspaces/{workspace}/timers/fire"

// Register adds the routes of workers and of the queue to a mux. A callback's signature is
// verified before anything is read: an unsigned request causes no reads and reveals nothing, not even which domains
// exist.
func Register(mux *http.ServeMux, find Finder, keys contract.Keyring, clk clock.Clock) {
	verbs := map[string]func(*Dispatcher, http.ResponseWriter, *http.Request, contract.Callback){
		contract.VerbStarted:   (*Dispatcher).serveStarted,
		contract.VerbHeartbeat: (*Dispatcher).serveHeartbeat,
		contract.VerbFinished:  (*Dispatcher).serveFinished,
	}
	mux.HandleFunc(contract.CallbackPattern, func(w http.ResponseWriter, r *http.Request) {
		serve, ok := verbs[r.PathValue("verb")]
		if !ok {
			writeProblem(w, &contract.Problem{Title: "Unknown callback", Status: http.StatusNotFound, Detail: `the callbacks have the names "started", "heartbeat" and "finished"`})
			return
		}
		cb, err := contract.VerifyCallback(named(r), r.URL.Query(), r.Header.Get("Authorization"), keys, event.At(clk.Now()))
		if err != nil {
			writeProblem(w, &contract.Problem{Title: "Not authorised", Status: http.StatusUnauthorized, Detail: err.Error()})
			return
		}
		find.serve(w, r, cb.Domain, func(d *Dispatcher, w http.ResponseWriter, r *http.Request) {
			w, r, end := d.traceCallback(w, r, cb)
			defer end()
			serve(d, w, r, cb)
		})
	})
	mux.HandleFunc(TimerPattern, func(w http.ResponseWriter, r *http.Request) {
		find.serve(w, r, domainOf(r), (*Dispatcher).serveFire)
	})
}

// serve finds the dispatcher of a domain and calls the given function with it.
func (find Finder) serve(w http.ResponseWriter, r *http.Request, domain ids.Domain, serve func(*Dispatcher, http.ResponseWriter, *http.Request)) {
	d, problem := find.lookUp(r.Context(), domain)
	if problem != nil {
		writeProblem(w, problem)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	serve(d, w, r)
}

func domainOf(r *http.Request) ids.Domain {
	return ids.Domain{Tenant: r.PathValue("tenant"), Workspace: r.PathValue("workspace")}
}

// named returns the callback that a request's path names.
func named(r *http.Request) contract.Callback {
	return contract.Callback{Domain: domainOf(r), RunID: r.PathValue("run"), TaskKey: r.PathValue("task"), Verb: r.PathValue("verb")}
}

// call is a verified callback.
type call struct {
	contract.Callback
	task *state.Task
	run  *state.Run
}

func (c *call) ref(worker string) event.AttemptRef {
	return event.AttemptRef{
		RunID: c.RunID, TaskKey: c.TaskKey, Attempt: c.Attempt, AttemptID: c.AttemptID, WorkerID: worker,
		GrantedAttempts: min(c.task.GrantedAttempts, c.Attempt-1),
	}
}

// planHash returns the beginning of the hash of the plan that the task executes, or "" if its run can have only one
// plan. If several planners have planned the run, a rebuild from the bare ledger folds the plan with this hash.
func (c *call) planHash() string {
	if c.run.RequestID == "" {
		return ""
	}
	return event.PlanHash(c.run.PlanRef)
}

func notRead(err error) *contract.Problem {
	return &contract.Problem{Title: "Body not read", Status: http.StatusBadRequest, Detail: err.Error()}
}

// read reads the body of a request and passes it to the method open.
func (d *Dispatcher) read(r *http.Request, cb contract.Callback, decode func([]byte) (attemptID string, err error)) (*call, *contract.Problem) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, notRead(err)
	}
	return d.open(r.Context(), cb, body, decode)
}

// open decodes the body of a verified callback and finds its task in the newest state.
func (d *Dispatcher) open(
	ctx context.Context, cb contract.Callback, body []byte, decode func([]byte) (attemptID string, err error),
) (*call, *contract.Problem) {
	attemptID, err := decode(body)
	if err != nil {
		p := &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Detail: err.Error()}
		if field := new(contract.FieldError); errors.As(err, &field) {
			p.Field = field.Field
		}
		return nil, p
	}
	if attemptID != cb.AttemptID {
		return nil, &contract.Problem{
			Title: "Malformed body", Status: http.StatusBadRequest, Field: "attempt_id",
			Detail: "the body's attempt_id differs from the attempt in the signed URL",
		}
	}
	return d.find(ctx, cb)
}

func (d *Dispatcher) find(ctx context.Context, cb contract.Callback) (*call, *contract.Problem) {
	snap, err := d.newest(ctx, cb.Revision)
	if err != nil {
		return nil, internal(err)
	}
	c := &call{
		Callback: cb, run: snap.State.Runs.Get(cb.RunID),
		task: snap.State.Tasks.Get(state.Key2{A: cb.RunID, B: cb.TaskKey}),
	}
	if c.run == nil {
		if closed, err := snap.History.Has(ctx, cb.RunID); closed || err != nil && !manifest.Damaged(err) {
			return nil, closedRun(cb, err)
		}
	}
	if c.run == nil || c.task == nil {
		return nil, &contract.Problem{
			Title: "Unknown task", Status: http.StatusNotFound,
			Detail: fmt.Sprintf("revision %d has no task %s in run %s", snap.Revision, cb.TaskKey, cb.RunID),
		}
	}
	if cb.Attempt < c.task.Attempt {
		return nil, d.replaced(c.task)
	}
	return c, nil
}

// closedRun returns the problem that answers a report about a closed run.
func closedRun(cb contract.Callback, err error) *contract.Problem {
	if err != nil {
		return internal(err)
	}
	return &contract.Problem{
		Title: "Run closed", Status: http.StatusConflict,
		Detail: fmt.Sprintf("run %s is closed: it has ended and accepts no more reports", cb.RunID),
	}
}

func (d *Dispatcher) replaced(t *state.Task) *contract.Problem {
	return &contract.Problem{
		Title: "Attempt replaced", Status: http.StatusConflict, CurrentAttemptID: t.AttemptID,
		Detail: fmt.Sprintf("task %s of run %s is %s in attempt %d", t.TaskKey, t.RunID, t.State, t.Attempt),
	}
}

// longTask is the timeout, in seconds, from which a task counts as long: a queue may drop such a task before it has
// ended.
const longTask = 600

func (d *Dispatcher) serveStarted(w http.ResponseWriter, r *http.Request, cb contract.Callback) {
	var body *contract.Started
	c, problem := d.read(r, cb, func(data []byte) (string, error) {
		var err error
		if body, err = contract.DecodeStarted(data); err != nil {
			return "", err
		}
		return body.AttemptID, nil
	})
	if problem == nil {
		problem = d.startable(c)
	}
	if problem != nil {
		writeProblem(w, problem)
		return
	}
	now := event.At(d.cfg.Clock.Now())
	started := now
	appendStart := d.appendSoon
	if c.task.Pool != "" || c.task.TimeoutSec >= longTask {
		// Make the start durable before the response. If a task of a pool were cancelled before its start is recorded,
		// another task would get its slot while the first task is still being killed. If the start of a long task were
		// lost, no redelivery would report it again, because the queue stops redelivering such a task after a while.
		appendStart = d.append
	}
	if c.task.State == state.TaskRunning && c.task.Attempt == c.Attempt {
		started = c.task.StartedAt // a redelivery: the first start counts
	} else if err := appendStart(r.Context(), c.RunID, &event.TaskStarted{AttemptRef: c.ref(body.WorkerID), Plan: c.planHash(), StartedAt: now}); err != nil {
		writeProblem(w, internal(err))
		return
	}
	d.write(w, r, contract.StartedResponse{StartedAt: started, Callbacks: d.renew(c)})
}

// startable returns a problem if an attempt may not start, because its task has ended, or because the attempt has
// failed and the task waits for a retry.
func (d *Dispatcher) startable(c *call) *contract.Problem {
	if c.task.State.Terminal() || c.task.State == state.TaskRetryWait && c.Attempt == c.task.Attempt {
		return d.replaced(c.task)
	}
	return nil
}

func (d *Dispatcher) serveHeartbeat(w http.ResponseWriter, r *http.Request, cb contract.Callback) {
	var body *contract.Heartbeat
	c, problem := d.read(r, cb, func(data []byte) (string, error) {
		var err error
		if body, err = contract.DecodeHeartbeat(data); err != nil {
			return "", err
		}
		return body.AttemptID, nil
	})
	if problem != nil {
		writeProblem(w, problem)
		return
	}
	answer := contract.HeartbeatResponse{Callbacks: d.renew(c)}
	switch {
	case c.task.State.Terminal():
		answer.ShouldCancel, answer.Reason = true, "the task is "+string(c.task.State)
	case c.run.State == state.RunCancelling:
		answer.ShouldCancel, answer.Reason = true, c.run.CancelReason
	}
	timeout := time.Duration(c.task.HeartbeatTimeoutSec) * time.Second
	if !c.task.State.Terminal() && d.heartbeats.due(c.AttemptID, timeout, d.cfg.Clock.Now()) {
		p := &event.TaskHeartbeat{
			AttemptRef: c.ref(body.WorkerID), HeartbeatAt: event.At(d.cfg.Clock.Now()),
			Progress: body.Progress, Message: body.Message,
		}
		if err := d.appendHeartbeat(r.Context(), c.RunID, p, timeout); err != nil {
			d.heartbeats.forget(c.AttemptID)
			writeProblem(w, internal(err))
			return
		}
	}
	d.write(w, r, answer)
}

func (d *Dispatcher) serveFinished(w http.ResponseWriter, r *http.Request, cb contract.Callback) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		writeProblem(w, notRead(err))
		return
	}
	if problem := d.finish(r.Context(), cb, body); problem != nil {
		writeProblem(w, problem)
		return
	}
	d.write(w, r, struct{}{})
}

// answered handles a worker's response to a delivery by the queue of this process. The response is empty or reports the
// end of the attempt. An error means that the report was not stored and will be delivered again. A rejected report is
// dropped, because it would be rejected again.
func (d *Dispatcher) answered(ctx context.Context, row *state.Dispatch, o order, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	cb := d.started(row, o, 0)
	cb.Verb = contract.VerbFinished
	ctx, span := d.startReport(ctx, cb)
	problem := d.finish(ctx, cb, body)
	if problem == nil {
		span.Answered(http.StatusOK)
		return nil
	}
	span.Answered(problem.Status)
	if problem.Status >= http.StatusInternalServerError {
		return errors.New(problem.Detail)
	}
	d.cfg.Logger.WarnContext(ctx, "rejected the result that a worker reported in its response", slog.String("run", row.RunID), slog.String("task", row.TaskKey),
		slog.Int("status", problem.Status), slog.String("detail", problem.Detail))
	return nil
}

// finish appends the end of an attempt, or returns the problem that prevents it.
func (d *Dispatcher) finish(ctx context.Context, cb contract.Callback, data []byte) *contract.Problem {
	var body *contract.Finished
	c, problem := d.open(ctx, cb, data, func(data []byte) (string, error) {
		var err error
		if body, err = contract.DecodeFinished(data); err != nil {
			return "", err
		}
		return body.AttemptID, nil
	})
	if problem == nil {
		problem = d.checkOutput(c, body)
	}
	if problem != nil {
		return problem
	}
	d.heartbeats.forget(c.AttemptID)
	if c.task.State.Terminal() {
		return nil
	}
	if err := d.requireMarker(ctx, c, body); err != nil {
		return internal(err)
	}
	if err := d.requireCandidate(ctx, c, body); err != nil {
		return internal(err)
	}
	now := event.At(d.cfg.Clock.Now()) // a worker's clock may be ahead; the report must still be folded
	body.StartedAt, body.CompletedAt = min(body.StartedAt, now), min(body.CompletedAt, now)
	if c.task.State != state.TaskRunning && body.StartedAt == 0 {
		body.StartedAt = now // no start was reported
	}
	err := d.append(ctx, c.RunID, &event.TaskFinished{
		AttemptRef: c.ref(body.WorkerID), Plan: c.planHash(), Outcome: body.Outcome, Error: body.Error, Output: body.Output,
		MaterializationID: body.MaterializationID, CheckResults: body.CheckResults, CodeChanged: body.CodeChanged, Metrics: body.Metrics, Log: body.Log,
		StartedAt: body.StartedAt, CompletedAt: body.CompletedAt,
	})
	if refused := new(event.DecodeError); errors.As(err, &refused) {
		return &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Detail: refused.Detail}
	}
	if err != nil {
		return internal(err)
	}
	return nil
}

// codeMarkerMissing is the error code of an attempt that reported success, although its commit marker does not exist or
// its report names no output.
const codeMarkerMissing = "MARKER_MISSING"

// requireMarker turns a reported success into a retryable failure if no reader could find the output: because the
// report names no output, or because the commit marker does not exist. An asset without files (`output: none`) has no
// marker. An error means that the store did not respond and that the report will be delivered again.
func (d *Dispatcher) requireMarker(ctx context.Context, c *call, body *contract.Finished) error {
	if body.Outcome != event.Succeeded || c.task.AssetKey == "" || body.Output == nil && c.task.Output == event.OutputNone {
		return nil
	}
	key, err := d.markerKey(c.task)
	if err != nil {
		return err
	}
	if body.Output != nil {
		_, err = d.cfg.Store.Head(ctx, key)
		if err == nil {
			return nil
		}
		if !errors.Is(err, blob.ErrNotFound) {
			return fmt.Errorf("look for the commit marker of task %s of run %s: %w", c.TaskKey, c.RunID, err)
		}
	}
	d.cfg.Logger.WarnContext(ctx, "a worker reported a success without a commit marker; the report is treated as a failure",
		slog.String("run", c.RunID), slog.String("task", c.TaskKey), slog.String("worker", body.WorkerID), slog.String("marker", key))
	body.Outcome, body.Output, body.MaterializationID = event.Failed, nil, ""
	body.Error = &event.Error{
		Code: codeMarkerMissing, Category: "infrastructure", Retryable: true,
		Message: "the worker reported a success, but the commit marker " + key + " does not exist or the report names no output",
	}
	return nil
}

// requireCandidate removes the output from the report of a failure unless the task has a quarantine and the
// output has a marker. Nobody could publish an output without a marker.
func (d *Dispatcher) requireCandidate(ctx context.Context, c *call, body *contract.Finished) error {
	if body.Outcome == event.Succeeded || body.Output == nil {
		return nil
	}
	if c.task.QuarantineSec > 0 {
		for _, key := range []string{contract.QuarantineMarkerKeyOf(body.Output.URI), contract.CommitMarkerKeyOf(body.Output.URI)} {
			_, err := d.cfg.Store.Head(ctx, key)
			if err == nil {
				return nil
			}
			if !errors.Is(err, blob.ErrNotFound) {
				return fmt.Errorf("look for the marker of the output in quarantine of task %s of run %s: %w", c.TaskKey, c.RunID, err)
			}
		}
	}
	body.Output = nil
	return nil
}

// markerKey returns the key of the commit marker of a task's output.
func (d *Dispatcher) markerKey(t *state.Task) (string, error) {
	asset, err := ids.ParseAssetKey(t.AssetKey)
	if err != nil {
		return "", fmt.Errorf("read the asset of task %s of run %s: %w", t.TaskKey, t.RunID, err)
	}
	return contract.CommitMarkerKey(d.cfg.Domain, asset, t.PartitionKey, ids.MaterializationID(d.cfg.Domain, t.RunID, t.TaskKey)), nil
}

// checkOutput returns a problem if a report names a materialization or a folder of another task.
func (d *Dispatcher) checkOutput(c *call, body *contract.Finished) *contract.Problem {
	if id := ids.MaterializationID(d.cfg.Domain, c.RunID, c.TaskKey); body.MaterializationID != "" && body.MaterializationID != id {
		return &contract.Problem{
			Title: "Malformed body", Status: http.StatusBadRequest, Field: "materialization_id",
			Detail: "the materialization of this task is " + id,
		}
	}
	if body.Output == nil || body.Output.URI == "" {
		return nil
	}
	asset, err := ids.ParseAssetKey(c.task.AssetKey)
	if err != nil {
		return &contract.Problem{
			Title: "Malformed body", Status: http.StatusBadRequest, Field: "output",
			Detail: "the task has no asset and so no output",
		}
	}
	prefix := contract.MaterializationPrefix(d.cfg.Domain, asset, c.task.PartitionKey,
		ids.MaterializationID(d.cfg.Domain, c.RunID, c.TaskKey))
	if !contract.IsExecutionURI(body.Output.URI, prefix) {
		return &contract.Problem{
			Title: "Malformed body", Status: http.StatusBadRequest, Field: "output.uri",
			Detail: "the output must be in a folder of its execution below " + prefix,
		}
	}
	return nil
}

// renew returns new callback URLs for an attempt. They are valid for the attempt's timeout plus an hour. If the
// attempt has no timeout, they are valid for a day ([untimed]).
func (d *Dispatcher) renew(c *call) contract.Callbacks {
	valid := untimed
	if c.task.TimeoutSec > 0 {
		valid = time.Duration(c.task.TimeoutSec)*time.Second + callbackExtra
	}
	renewed := c.Callback
	renewed.Expires = event.At(d.cfg.Clock.Now().Add(valid))
	var calls contract.Callbacks
	renewed.Verb = contract.VerbHeartbeat
	calls.Heartbeat, calls.Authorization.Heartbeat = contract.SignCallback(d.cfg.BaseURL, renewed, d.cfg.Keys)
	renewed.Verb = contract.VerbFinished
	calls.Finished, calls.Authorization.Finished = contract.SignCallback(d.cfg.BaseURL, renewed, d.cfg.Keys)
	return calls
}

// fireRequest is the body of the request that fires a timer.
type fireRequest struct {
	TimerID    string `json:"timer_id"`
	Generation int32  `json:"generation"`
}

// serveFire handles the queue's request to fire a timer. If the projections are old, it first brings them up to date,
// because they could lack a heartbeat that prevents a timeout. The request only says that the timer is due: the fold
// decides what follows.
func (d *Dispatcher) serveFire(w http.ResponseWriter, r *http.Request) {
	var req fireRequest
	if err := contract.ReadJSON(r.Body, &req); err != nil || req.TimerID == "" {
		writeProblem(w, &contract.Problem{Title: "Malformed body", Status: http.StatusBadRequest, Field: "timer_id", Detail: "the body must be {timer_id, generation}"})
		return
	}
	if err := d.fire(r.Context(), req); err != nil {
		d.cfg.Logger.WarnContext(r.Context(), "timer not fired; the queue retries",
			slog.String("timer", req.TimerID), slog.Any("error", err))
		writeProblem(w, internal(err))
		return
	}
	d.write(w, r, struct{}{})
}

func (d *Dispatcher) fire(ctx context.Context, req fireRequest) error {
	if err := d.cfg.Appender.Flush(ctx); err != nil { // a heartbeat may still linger
		return err
	}
	now := event.At(d.cfg.Clock.Now())
	snap, err := d.cfg.Snapshots.Current(ctx)
	if err != nil {
		return err
	}
	caughtUp := snap.CaughtUpAt
	if now.Sub(caughtUp) > fold.MaxCompactionLag/2 { //nolint:mnd // half of the lag that the fold accepts, as a margin
		if snap, err = d.refresh(ctx); err != nil {
			return err
		}
		// The state contains every event that was durable at the time now. The fold compares caughtUp with FiredAt,
		// which comes from this machine's clock, as now does. snap.CaughtUpAt may come from another machine's clock,
		// which may be behind.
		caughtUp = max(snap.CaughtUpAt, now)
	}
	timer := snap.State.Timers.Get(req.TimerID)
	if timer == nil || timer.State != state.TimerScheduled || req.Generation < timer.Generation {
		return nil // the timer has fired, was cancelled, or was rescheduled under another name
	}
	if due := cmp.Or(timer.HopAt, timer.FireAt); event.At(d.cfg.Clock.Now()) < due {
		// The queue's clock is ahead of this machine's. If the firing were recorded, the timer would be rescheduled and
		// would fire again immediately, until the clocks agree.
		return fmt.Errorf("timer %s is not due until %s by this machine's clock", req.TimerID, due)
	}
	fired := &event.TimerFired{
		TimerID: req.TimerID, Generation: req.Generation, FiredAt: event.At(d.cfg.Clock.Now()),
		Observed: event.Observed{CaughtUpAt: caughtUp, Revision: snap.Revision},
	}
	return d.append(ctx, "", fired)
}
