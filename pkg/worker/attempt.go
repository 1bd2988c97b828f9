package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/secret"
)

const (
	// startTimeout is how long the worker retries the report of a start. After that, the delivery fails, and the queue
	// redelivers the task.
	startTimeout = 5 * time.Second
	// lateStart is the delay after which an admitted attempt reports its start. If the attempt ends earlier, the
	// response to the delivery contains both the start and the end.
	lateStart = 100 * time.Millisecond
	// finishTimeout is how long the worker retries the report of an end if the queue can still redeliver the task.
	// Otherwise, the worker retries until the URL of the report expires. It never uses an expired URL.
	finishTimeout = time.Hour
)

// attempt is one execution of a task's attempt in this process.
type attempt struct {
	w      *Worker
	job    *job
	env    *contract.Envelope
	domain ids.Domain
	asset  ids.AssetKey
	nonce  string
	// batch holds the partitions of the task if it has several.
	batch []string
	// views counts the views that were created of inputs with partition columns. Each view has a folder, whose name is
	// its number in this count.
	views int
	// fetched counts the input files that were downloaded. The name of a local copy contains its number in this count.
	fetched int
	// unmerged are the inputs from which the query read many small files. The worker merges these files after the report
	// of the end.
	unmerged []merging
	calls    *callbacks
	log      *slog.Logger

	// dir is the execution's scratch folder; empty until [attempt.scratch] creates it.
	dir string
	// output is the task's log.
	output boundedLog
	// shown means that readers may follow the log.
	shown bool
	// parts stores parts of the log while a command runs. Nil: the log has no parts.
	parts *logParts
	// overruled means that the result of another execution counts, because this execution adopted an output or was
	// replaced.
	overruled bool
	// mask hides the known secrets.
	mask      *secret.Mask
	startedAt event.Time
	// reporting is set by the first report of the attempt, either of its start or of its end. The response to the
	// delivery may contain the report of the end only if that report is the first.
	reporting atomic.Bool
	// startAccepted means that the report of the start was accepted. startMu serializes the reports of the start.
	startAccepted atomic.Bool
	startMu       sync.Mutex
	metrics       map[string]int64
	// shortLog is the log, if the report of the end contains it.
	shortLog string
	// cpu is the CPU time of the query or the command, if measured is set.
	cpu      time.Duration
	measured bool
	// checkResults are the results of the checks that have run, or the results in an adopted marker.
	checkResults []event.CheckResult
	// codeChanged means that the code which the task executed may differ from the code in the plan.
	codeChanged bool
	// laidOut means that the folders of the inputs exist.
	laidOut bool
	// freeSlot releases the slot, and then the memory, for the next task.
	freeSlot func()
	// resources are the resources that the asset declares, or nil. reserved is the memory that is reserved for the
	// task.
	resources *plan.Resources
	reserved  *reservation
	// cleanups run after the deliveries are answered.
	cleanups []func()
}

func newAttempt(w *Worker, j *job, env *contract.Envelope) *attempt {
	asset, _ := ids.ParseAssetKey(env.AssetKey) // contract.Open has validated the key
	a := &attempt{
		w: w, job: j, env: env, domain: env.Domain(), asset: asset, nonce: w.cfg.Nonce(),
		calls: &callbacks{
			client: w.cfg.HTTPClient, clock: w.cfg.Clock, urls: env.Callbacks, traceparent: env.Traceparent, tracestate: env.Tracestate,
		},
		log: w.cfg.Logger.With("tenant", env.Tenant, "workspace", env.Workspace, "run_id", env.RunID,
			"task_key", env.TaskKey, "attempt", env.Attempt),
		metrics: map[string]int64{},
	}
	a.freeSlot = sync.OnceFunc(func() {
		<-w.slots
		if a.reserved != nil {
			w.memory.release(a.reserved, w.cfg.Clock.Now())
		}
	})
	return a
}

// showLog lets readers follow the log. It is called when the task's secrets are known and can be
// masked.
func (a *attempt) showLog() {
	if a.shown {
		return
	}
	a.shown = true
	a.job.log = &liveLog{text: &a.output, mask: a.mask}
	close(a.job.live)
}

func (a *attempt) now() event.Time { return event.At(a.w.cfg.Clock.Now()) }

// run executes the attempt from the report of its start to the report of its end, and returns the answer for the queue.
// ctx ends, with a cause, when the execution must stop. The worker can still send reports after that, because they
// use the context job.life.
func (a *attempt) run(ctx context.Context) answer {
	defer a.freeSlot()
	a.startedAt = a.now()
	// A delivery of a long task is answered before the task ends, so the worker must report the start.
	admitted := a.startedAt < a.env.AdmittedUntil && !a.isLong()
	if !admitted {
		if status := a.start(ctx); status != 0 {
			return answer{status: status}
		}
	}
	ctx, span := a.trace(ctx)
	a.job.executing.Store(true)
	if a.isLong() {
		close(a.job.long)
	}
	stopHeartbeats := background(a.job.life, func(ctx context.Context) {
		if admitted {
			a.reportLateStart(ctx)
		}
		a.heartbeats(ctx)
	})
	defer stopHeartbeats()

	output, err := a.perform(ctx)
	a.job.executing.Store(false)
	a.freeSlot()
	if err != nil && errors.Is(context.Cause(ctx), errReplaced) {
		a.overruled = true
		a.log.InfoContext(ctx, "stopped an attempt that was replaced")
		span.End(errReplaced)
		return answer{status: http.StatusOK}
	}
	f := a.finished(ctx, output, err)
	defer func() { endTrace(span, f) }()
	if admitted && a.reporting.CompareAndSwap(false, true) {
		if report, ok := a.encodeAnswer(ctx, f); ok {
			return answer{status: http.StatusOK, report: report}
		}
	}
	return answer{status: a.report(ctx, f)}
}

// encodeAnswer encodes the report of the end for the response to the delivery. If the response is lost, the queue
// redelivers the task, which then executes again. Only reports of short tasks are sent this way, so little work is
// lost.
func (a *attempt) encodeAnswer(ctx context.Context, f *contract.Finished) (report []byte, ok bool) {
	report, err := json.Marshal(f)
	if err != nil {
		a.log.ErrorContext(ctx, "could not encode the result", "error", err)
	}
	return report, err == nil && len(report) <= contract.MaxResponseBytes
}

// isLong reports whether the task's timeout exceeds the time that a delivery waits. A task without a timeout counts
// as short, because most tasks are short.
func (a *attempt) isLong() bool {
	return time.Duration(a.env.TimeoutSec)*time.Second > a.w.cfg.HoldFor
}

// start reports the start. It returns 0 if the attempt may execute. Otherwise it returns the HTTP status with which
// the worker answers the queue.
func (a *attempt) start(ctx context.Context) int {
	status, err := a.reportStart(ctx, a.startedAt.Add(startTimeout))
	switch {
	case err != nil || isTransient(status):
		a.log.WarnContext(ctx, "could not report the start; leaving the redelivery to the queue", "status", status, "error", err)
		return http.StatusInternalServerError
	case isOK(status):
		return 0
	case status == http.StatusConflict:
		a.log.InfoContext(ctx, "skipping an attempt that is not the current one")
	default:
		// The URL is invalid, and a redelivery would have the same URL. So the queue should drop the task. The sweeper then
		// dispatches it again with a new URL.
		a.log.ErrorContext(ctx, "the start was rejected; dropping the delivery", "status", status)
	}
	return http.StatusOK
}

// reportStart reports the start, retries until the given time, and takes new URLs from the response. If the start was
// accepted before, it does nothing.
func (a *attempt) reportStart(ctx context.Context, until event.Time) (status int, err error) {
	a.startMu.Lock()
	defer a.startMu.Unlock()
	if a.startAccepted.Load() {
		return http.StatusOK, nil
	}
	var answer contract.StartedResponse
	status, err = a.calls.deliver(ctx, until, contract.VerbStarted, contract.Started{
		AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, StartedAt: a.startedAt,
	}, &answer)
	if err == nil && isOK(status) {
		a.calls.renew(answer.Callbacks)
		a.startAccepted.Store(true)
	}
	return status, err
}

// reportLateStart reports the start of an attempt that was admitted with its delivery and runs longer than lateStart.
// For an attempt that ends earlier, the report of the end is enough: it contains the time of the start.
func (a *attempt) reportLateStart(ctx context.Context) {
	if a.w.cfg.Clock.Sleep(ctx, lateStart) == nil && a.reporting.CompareAndSwap(false, true) {
		a.beat(ctx)
	}
}

// heartbeatInterval returns the pause between two heartbeats: at most a third of the task's heartbeat timeout, so that
// one slow response does not cause a timeout.
func (a *attempt) heartbeatInterval() time.Duration {
	every := a.w.cfg.HeartbeatEvery
	if limit := time.Duration(a.env.HeartbeatTimeoutSec) * time.Second / 3; limit > 0 {
		every = min(every, limit)
	}
	return every
}

// heartbeats sends heartbeats until ctx is done, and stops the attempt if a response requests that.
func (a *attempt) heartbeats(ctx context.Context) {
	for every := a.heartbeatInterval(); a.w.cfg.Clock.Sleep(ctx, every) == nil; {
		if !a.beat(ctx) {
			return
		}
	}
}

// beat sends a heartbeat or, if the report of the start has not been accepted yet, the start. It returns false if no
// more heartbeats may be sent.
func (a *attempt) beat(ctx context.Context) bool {
	var answer contract.HeartbeatResponse
	var status int
	var err error
	if !a.startAccepted.Load() {
		status, err = a.reportStart(ctx, a.now().Add(startTimeout))
	} else {
		status, err = a.calls.post(ctx, contract.VerbHeartbeat, contract.Heartbeat{
			AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, HeartbeatAt: a.now(),
		}, &answer)
	}
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil || !isOK(status) && status != http.StatusConflict:
		a.log.WarnContext(ctx, "a heartbeat was not accepted", "status", status, "error", err)
	case status == http.StatusConflict:
		a.job.stop(errReplaced)
		return false
	default:
		a.calls.renew(answer.Callbacks)
		if answer.ShouldCancel {
			a.job.stop(cancelledError{answer.Reason})
		}
	}
	return true
}

// perform returns the task's output, which is either the output that an existing marker names or the output of this
// execution. It returns nil if the task has no output files. If it returns both an output and an error, the output is
// in quarantine.
func (a *attempt) perform(ctx context.Context) (*event.Output, error) {
	if a.env.TimeoutSec > 0 {
		stop := background(ctx, func(ctx context.Context) {
			limit := time.Duration(a.env.TimeoutSec) * time.Second
			if a.w.cfg.Clock.Sleep(ctx, limit) == nil {
				a.job.stop(timedOutError{limit})
			}
		})
		defer stop()
	}
	t, err := a.task(ctx)
	if err != nil {
		return nil, err
	}
	a.resources = t.Resources // not set before if the plan could not be read when the task reserved memory
	if err := a.exceeded(); err != nil {
		return nil, err
	}
	if t.task.Kind != event.KindCheck && t.HasFiles() {
		if output, found, err := a.finishedBefore(ctx, t); found || err != nil {
			return output, err
		}
	}
	end, err := a.survive(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if t.task.Kind == event.KindCheck {
		return nil, a.checkVisible(ctx, t)
	}
	inputs, err := phase(ctx, a, "stage", func(ctx context.Context) ([]input, error) { return a.resolve(ctx, t) })
	if err != nil {
		return nil, err
	}
	began := a.now()
	made, err := a.checkedWork(ctx, t, inputs)
	a.measure(a.now().Sub(began))
	a.output.close()
	a.showLog()
	defer a.waitForLog(ctx, a.saveLog(err))
	if err != nil {
		return a.quarantine(ctx, t, made, err)
	}
	if !t.HasFiles() {
		return nil, unexpectedFiles(made)
	}
	marker, err := phase(ctx, a, "commit", func(ctx context.Context) (*contract.CommitMarker, error) { return a.commit(ctx, a.markerKey(), made) })
	if err != nil {
		return nil, err
	}
	if marker.AttemptID != a.env.AttemptID || marker.Nonce != a.nonce {
		return a.adopt(ctx, t, marker)
	}
	return marker.Output(), nil
}

// checkedWork runs the PRE checks, executes the task, and runs the POST checks. If it returns the error of a check, the
// task fails, and its files are not stored.
func (a *attempt) checkedWork(ctx context.Context, t *work, inputs []input) (made []outputFile, err error) {
	checks := func(name string) error {
		if len(quality.In(t.Checks, name)) == 0 {
			return nil
		}
		_, err := phase(ctx, a, "check", func(ctx context.Context) (any, error) { return nil, a.audit(ctx, t, name, inputs, made, nil) })
		return err
	}
	if err := checks(quality.Pre); err != nil {
		return nil, err
	}
	made, err = phase(ctx, a, "execute", func(ctx context.Context) ([]outputFile, error) { return a.executeWork(ctx, t, inputs) })
	if err != nil {
		return nil, err
	}
	return made, checks(quality.Post)
}

// unexpectedFiles returns an error if a task with output: none has written files.
func unexpectedFiles(made []outputFile) error {
	if len(made) == 0 {
		return nil
	}
	names := made[0].name
	if more := len(made) - 1; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return permanent(CodeInvalidOutput, "the asset has `output: none`, but its task wrote files (%s): remove `output: none` to store them", names)
}

func (a *attempt) cleanUp(ctx context.Context) {
	for _, f := range a.cleanups {
		f()
	}
	if a.dir == "" {
		return
	}
	if err := removeAll(a.dir); err != nil {
		a.log.WarnContext(ctx, "could not remove the scratch folder", "dir", a.dir, "error", a.masked(err))
	}
}

// scratch creates the execution's folder, unless it exists. Tasks that need no folder never call it: creating and
// removing a folder takes longer than the rest of a small task.
func (a *attempt) scratch() (err error) {
	if a.dir != "" {
		return nil
	}
	if a.dir, err = a.w.scratch.execution(a.env.AttemptID + "-" + a.nonce); err != nil {
		return fail(CodeWorker, CategoryInfrastructure, err)
	}
	return nil
}

// folder creates a folder below the execution's folder.
func (a *attempt) folder(name string) (string, error) {
	if err := a.scratch(); err != nil {
		return "", err
	}
	path := filepath.Join(a.dir, name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("create scratch folder: %w", err))
	}
	return path, nil
}

// saveLog stores the task's log in the background, unless the log is short. The function wait waits until the log is
// stored. A log that cannot be stored does not fail the task.
func (a *attempt) saveLog(err error) (wait func()) {
	a.parts.end()
	// The log may omit its middle, and so cut a secret in two. Therefore, each stream was masked as it arrived. This
	// second pass masks secrets whose parts came from two streams.
	text := a.mask.Bytes(a.output.bytes())
	if len(text) == 0 {
		a.dropAllParts()
		return func() {}
	}
	if len(text) <= int(a.env.LogBytes) && utf8.Valid(text) {
		a.shortLog = string(text) // the report contains a short log, so no object is stored
		a.dropParts()
		return func() {}
	}
	key := a.logKey()
	done := make(chan struct{})
	var putErr error
	go func() {
		defer close(done)
		if _, putErr = a.w.cfg.Store.Put(a.job.life, key, text); putErr != nil {
			a.log.WarnContext(a.job.life, "could not store the log", "key", key, "error", putErr, "task_error", a.masked(err))
		}
	}()
	a.cleanups = append(a.cleanups, func() {
		if <-done; putErr == nil {
			a.parts.remove()
		}
	})
	return func() { <-done }
}

// logKey returns the object key of the log.
func (a *attempt) logKey() string {
	return contract.LogKey(a.domain, a.env.RunID, a.env.TaskKey, a.env.Attempt, a.env.AttemptID)
}

// dropParts makes the worker delete the parts of the log after the report of the end. It is called if this report
// contains the whole log.
func (a *attempt) dropParts() {
	if a.parts != nil {
		a.cleanups = append(a.cleanups, a.parts.remove)
	}
}

// dropAllParts makes the worker delete the log parts of all executions of the attempt after the report of the end. It
// does not delete them if the result of another execution counts. It is called if this execution printed nothing.
func (a *attempt) dropAllParts() {
	if a.parts == nil {
		return
	}
	a.cleanups = append(a.cleanups, func() {
		if !a.overruled {
			a.parts.removeAll()
		}
	})
}

// waitForLog waits until the log is stored.
func (a *attempt) waitForLog(ctx context.Context, saved func()) {
	if errors.Is(context.Cause(ctx), errInterrupted) {
		a.cleanups = append(a.cleanups, saved) // report first: a worker that is closing may be killed before the log is stored
		return
	}
	saved()
}

// masked returns the text of an error with secrets masked.
func (a *attempt) masked(err error) string {
	if err == nil {
		return ""
	}
	return a.mask.String(err.Error())
}

// finished returns the report of the execution's end.
func (a *attempt) finished(ctx context.Context, output *event.Output, err error) *contract.Finished {
	f := &contract.Finished{
		AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, MaterializationID: a.env.MaterializationID,
		Metrics: a.metrics, StartedAt: a.startedAt, CompletedAt: a.now(), CheckResults: a.checkResults,
		CodeChanged: a.codeChanged, Log: a.shortLog,
	}
	if err == nil {
		f.Outcome, f.Output = event.Succeeded, output
		return f
	}
	f.Outcome, f.Error = verdict(ctx, a.mask, err)
	if f.Error.Code == CodeCheckFailed {
		f.Output = output
	}
	a.log.InfoContext(ctx, "the attempt did not succeed", "outcome", string(f.Outcome), "code", f.Error.Code,
		"error", f.Error.Message)
	return f
}

// report reports the end, and returns the status for the queue.
func (a *attempt) report(ctx context.Context, f *contract.Finished) int {
	deadline := a.now().Add(finishTimeout)
	status, err := a.reportStart(a.job.life, deadline) // the control plane accepts an end only after a start
	if err == nil && isOK(status) {
		status, err = a.reportEnd(f, deadline)
	}
	if err == nil && status == http.StatusBadRequest && f.Outcome != event.Succeeded {
		a.log.ErrorContext(ctx, "the report of a failure was rejected; reporting only its error", "outcome", string(f.Outcome))
		status, err = a.reportEnd(errorOnly(f), deadline)
	}
	switch {
	case err == nil && isOK(status):
		return http.StatusOK
	case err == nil && status == http.StatusConflict:
		a.overruled = true
		a.log.InfoContext(ctx, "the attempt was replaced; its result is ignored")
		return http.StatusOK
	case err == nil && !isTransient(status) && status != http.StatusUnauthorized:
		a.log.ErrorContext(ctx, "the result was rejected", "status", status, "outcome", string(f.Outcome))
		return http.StatusOK
	}
	// A redelivered attempt reports its start to the envelope's longer-lived URL, gets new URLs, and finds the commit
	// marker if the task has output files. If the queue has dropped the attempt, the control plane notices the missing
	// heartbeats and starts the next attempt, which finds the marker.
	a.log.ErrorContext(ctx, "could not report the result; leaving it to a redelivery or to the next attempt",
		"status", status, "error", err)
	return http.StatusInternalServerError
}

// errorOnly returns a shorter report of a failure, without the details, the results of checks and the log. It is sent
// if the control plane has rejected the full report: without any report, the control plane would treat the attempt as
// lost and repeat it.
func errorOnly(f *contract.Finished) *contract.Finished {
	return &contract.Finished{
		AttemptID: f.AttemptID, WorkerID: f.WorkerID, Outcome: f.Outcome, StartedAt: f.StartedAt, CompletedAt: f.CompletedAt,
		Error: &event.Error{
			Code: f.Error.Code, Category: f.Error.Category, Retryable: f.Error.Retryable,
			Message: bounded(f.Error.Message + "\nThe control plane rejected the report with the details of this error."),
		},
	}
}

// reportEnd reports the end, and retries as long as the URL of the report is valid. If the queue can still redeliver
// the task, reportEnd stops at the deadline.
func (a *attempt) reportEnd(f *contract.Finished, deadline event.Time) (status int, err error) {
	switch expires := contract.CallbackExpiry(a.calls.url(contract.VerbFinished)); {
	case expires == 0:
	case a.job.released.Load():
		deadline = expires
	default:
		deadline = min(deadline, expires)
	}
	return a.calls.deliver(a.job.life, deadline, contract.VerbFinished, f, nil)
}
