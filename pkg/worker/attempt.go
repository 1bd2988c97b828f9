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

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/secret"
)

const (
	// startTries is how long a start is tried to be reported before the queue is
	// asked to deliver again.
	startTries = 5 * time.Second
	// tellAfter is how long an attempt that was admitted with its delivery runs before its
	// start is reported. One that ends before is reported by the answer to the delivery.
	tellAfter = 100 * time.Millisecond
	// finishTries is how long an end is tried to be reported, if the URL is
	// valid for that long. Where the queue will not deliver again, only the URL
	// says for how long.
	finishTries = time.Hour
)

// attempt is one execution of one attempt at a task.
type attempt struct {
	w      *Worker
	job    *job
	env    *contract.Envelope
	domain ids.Domain
	asset  ids.AssetKey
	nonce  string
	calls  *callbacks
	log    *slog.Logger

	// dir is the execution's scratch folder, once there is one: see [attempt.scratch].
	dir string
	// output keeps what the task printed.
	output boundedLog
	// shown says that readers may follow the log.
	shown bool
	// mask hides the secrets of the command, once it has any.
	mask      *secret.Mask
	startedAt event.Time
	// told is set by who tells of the attempt first: of its start, or of its end.
	told atomic.Bool
	// known says that the start was taken.
	known   atomic.Bool
	telling sync.Mutex
	metrics map[string]int64
	// freeSlot lets the next task run.
	freeSlot func()
	// afterwards is what nobody waits for.
	afterwards []func()
}

func newAttempt(w *Worker, j *job, env *contract.Envelope) *attempt {
	asset, _ := ids.ParseAssetKey(env.AssetKey) // checked when it was decoded
	return &attempt{
		w: w, job: j, env: env, domain: env.Domain(), asset: asset, nonce: w.cfg.Nonce(),
		calls: &callbacks{
			client: w.cfg.HTTPClient, clock: w.cfg.Clock, urls: env.Callbacks, traceparent: env.Traceparent, tracestate: env.Tracestate,
		},
		log: w.cfg.Logger.With("tenant", env.Tenant, "workspace", env.Workspace, "run_id", env.RunID,
			"task_key", env.TaskKey, "attempt", env.Attempt),
		metrics:  map[string]int64{},
		freeSlot: sync.OnceFunc(func() { <-w.slots }),
	}
}

// showLog lets readers follow the log from now on. From now on, the secrets of the task are
// known, and hidden from them.
func (a *attempt) showLog() {
	if a.shown {
		return
	}
	a.shown = true
	a.job.log = &liveLog{text: &a.output, mask: a.mask}
	close(a.job.live)
}

func (a *attempt) now() event.Time { return event.At(a.w.cfg.Clock.Now()) }

// run takes the attempt from its start to its report, and gives what to answer
// the queue. Ctx ends, with a cause, when the execution is to be stopped; what
// must be reported nevertheless goes under the job's life.
func (a *attempt) run(ctx context.Context) answer {
	defer a.freeSlot()
	a.startedAt = a.now()
	admitted := a.startedAt < a.env.AdmittedUntil && !a.isLong() // of a long one the queue lets go: it has to be known to run
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
	stopBeats := background(a.job.life, func(ctx context.Context) {
		if admitted {
			a.startLate(ctx)
		}
		a.heartbeats(ctx)
	})
	defer stopBeats()

	output, err := a.perform(ctx)
	a.job.executing.Store(false)
	a.freeSlot()
	if err != nil && errors.Is(context.Cause(ctx), errReplaced) {
		a.log.InfoContext(ctx, "stopped an attempt that was replaced")
		span.End(errReplaced)
		return answer{status: http.StatusOK}
	}
	f := a.finished(ctx, output, err)
	defer func() { endTrace(span, f) }()
	if admitted && a.told.CompareAndSwap(false, true) {
		if report, ok := a.inAnswer(ctx, f); ok {
			return answer{status: http.StatusOK, report: report}
		}
	}
	return answer{status: a.report(ctx, f)}
}

// inAnswer is the end as the answer to the delivery has it. Should that be lost, the task
// is delivered again, and was a short one.
func (a *attempt) inAnswer(ctx context.Context, f *contract.Finished) (report []byte, ok bool) {
	report, err := json.Marshal(f)
	if err != nil {
		a.log.ErrorContext(ctx, "could not encode the end", "error", err)
	}
	return report, err == nil && len(report) <= contract.MaxAnswerBytes
}

// isLong reports whether the task may take longer than a delivery is held. One
// without a time-out is taken for a short one until it has taken longer: most are.
func (a *attempt) isLong() bool {
	return time.Duration(a.env.TimeoutSec)*time.Second > a.w.cfg.HoldFor
}

// start reports the start. 0 means: go on.
func (a *attempt) start(ctx context.Context) int {
	status, err := a.tellStart(ctx, a.startedAt.Add(startTries))
	switch {
	case err != nil || isTransient(status):
		a.log.WarnContext(ctx, "could not report the start; the queue is to deliver again", "status", status, "error", err)
		return http.StatusInternalServerError
	case isOK(status):
		return 0
	case status == http.StatusConflict:
		a.log.InfoContext(ctx, "the attempt is not to be executed")
	default:
		// The URL is no good, and would be no better next time. Once the queue has
		// let go of the task, the sweeper has it dispatched anew, with a new URL.
		a.log.ErrorContext(ctx, "the start was refused; the delivery is dropped", "status", status)
	}
	return http.StatusOK
}

// tellStart makes the call, until a time, and takes over the URLs that the answer brings.
// If the start was taken before, it does nothing.
func (a *attempt) tellStart(ctx context.Context, until event.Time) (status int, err error) {
	a.telling.Lock()
	defer a.telling.Unlock()
	if a.known.Load() {
		return http.StatusOK, nil
	}
	var answer contract.StartedAnswer
	status, err = a.calls.deliver(ctx, until, contract.VerbStarted, contract.Started{
		AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, StartedAt: a.startedAt,
	}, &answer)
	if err == nil && isOK(status) {
		a.calls.renew(answer.Callbacks)
		a.known.Store(true)
	}
	return status, err
}

// startLate reports the start of an attempt that was admitted with its delivery, once
// it takes longer than most: of the others the end tells when they began.
func (a *attempt) startLate(ctx context.Context) {
	if a.w.cfg.Clock.Sleep(ctx, tellAfter) == nil && a.told.CompareAndSwap(false, true) {
		a.beat(ctx)
	}
}

// beatEvery is the time from a heartbeat's answer to the next one: two fit into the
// time-out of a task where answers take long, and else three.
func (a *attempt) beatEvery() time.Duration {
	every := a.w.cfg.HeartbeatEvery
	if limit := time.Duration(a.env.HeartbeatTimeoutSec) * time.Second / 3; limit > 0 {
		every = min(every, limit)
	}
	return every
}

// heartbeats reports that the attempt is alive, and stops it when told to.
func (a *attempt) heartbeats(ctx context.Context) {
	for every := a.beatEvery(); a.w.cfg.Clock.Sleep(ctx, every) == nil; {
		if !a.beat(ctx) {
			return
		}
	}
}

// beat reports that the attempt is alive or, as long as that is not known, that it has
// started. It is false when there is no more to report.
func (a *attempt) beat(ctx context.Context) bool {
	var answer contract.HeartbeatAnswer
	var status int
	var err error
	if !a.known.Load() {
		status, err = a.tellStart(ctx, a.now().Add(startTries))
	} else {
		status, err = a.calls.post(ctx, contract.VerbHeartbeat, contract.Heartbeat{
			AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, HeartbeatAt: a.now(),
		}, &answer)
	}
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil || !isOK(status) && status != http.StatusConflict:
		a.log.WarnContext(ctx, "a heartbeat was not taken", "status", status, "error", err)
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

// perform gives what the task made: what a marker names that is there already, or
// that of this execution; nil where the task leaves no files.
func (a *attempt) perform(ctx context.Context) (*event.Output, error) {
	if a.env.TimeoutSec > 0 {
		stop := background(ctx, func(ctx context.Context) {
			if a.w.cfg.Clock.Sleep(ctx, time.Duration(a.env.TimeoutSec)*time.Second) == nil {
				a.job.stop(errTimedOut)
			}
		})
		defer stop()
	}
	t, err := a.task(ctx)
	if err != nil {
		return nil, err
	}
	if t.HasFiles() {
		marker, err := a.committed(ctx)
		if err != nil {
			return nil, err
		}
		if marker != nil {
			return marker.Output(), nil
		}
	}
	inputs, err := phase(ctx, a, "stage", func(ctx context.Context) ([]input, error) { return a.resolve(ctx, t) })
	if err != nil {
		return nil, err
	}
	began := a.now()
	made, err := phase(ctx, a, "execute", func(ctx context.Context) ([]outputFile, error) { return a.executeWork(ctx, t, inputs) })
	a.metrics["execute_ms"] = a.now().Sub(began).Milliseconds()
	a.output.close()
	a.showLog()
	saved := a.saveLog(err)
	defer func() {
		if errors.Is(context.Cause(ctx), errInterrupted) {
			a.afterwards = append(a.afterwards, saved) // there may be time for one of them: the report
			return
		}
		saved()
	}()
	if err != nil {
		return nil, err
	}
	if !t.HasFiles() {
		return nil, nothing(made)
	}
	marker, err := phase(ctx, a, "commit", func(ctx context.Context) (*contract.Marker, error) { return a.commit(ctx, made) })
	if err != nil {
		return nil, err
	}
	return marker.Output(), nil
}

// nothing is the error of a task that leaves files, and said it would not.
func nothing(made []outputFile) error {
	if len(made) == 0 {
		return nil
	}
	return refuse(CodeInvalidOutput, "the asset has output: none, and its task left %d files, %s among them: remove output: none to store them",
		len(made), made[0].name)
}

func (a *attempt) tidy(ctx context.Context) {
	for _, f := range a.afterwards {
		f()
	}
	if a.dir == "" {
		return
	}
	if err := removeAll(a.dir); err != nil {
		a.log.WarnContext(ctx, "could not remove the scratch folder", "dir", a.dir, "error", a.masked(err))
	}
}

// scratch makes the execution's folder, if there is none yet. Tasks that need none
// have none: to make and remove one costs more than all else that a small task does.
func (a *attempt) scratch() (err error) {
	if a.dir != "" {
		return nil
	}
	if a.dir, err = a.w.scratch.execution(a.env.AttemptID + "-" + a.nonce); err != nil {
		return fail(CodeWorker, CategoryInfrastructure, err)
	}
	return nil
}

// folder makes a folder below the execution's.
func (a *attempt) folder(name string) (string, error) {
	if err := a.scratch(); err != nil {
		return "", err
	}
	path := filepath.Join(a.dir, name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("make scratch folder: %w", err))
	}
	return path, nil
}

// saveLog stores what the task printed, beside what comes next; the function
// that it gives waits for that. A log that is lost fails no task.
func (a *attempt) saveLog(err error) (wait func()) {
	// Each stream was masked as it came: what was left out may have cut a secret in two. Here
	// is what two streams have put together.
	text := a.mask.Bytes(a.output.bytes())
	if len(text) == 0 {
		return func() {}
	}
	key := contract.LogKey(a.domain, a.env.RunID, a.env.TaskKey, a.env.Attempt, a.env.AttemptID)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, putErr := a.w.cfg.Store.Put(a.job.life, key, text); putErr != nil {
			a.log.WarnContext(a.job.life, "could not store the log", "key", key, "error", putErr, "task_error", a.masked(err))
		}
	}()
	return func() { <-done }
}

// masked is an error as it may be logged.
func (a *attempt) masked(err error) string {
	if err == nil {
		return ""
	}
	return a.mask.String(err.Error())
}

// finished is the report of an execution.
func (a *attempt) finished(ctx context.Context, output *event.Output, err error) *contract.Finished {
	f := &contract.Finished{
		AttemptID: a.env.AttemptID, WorkerID: a.w.cfg.WorkerID, MaterializationID: a.env.MaterializationID,
		Metrics: a.metrics, StartedAt: a.startedAt, CompletedAt: a.now(),
	}
	if err == nil {
		f.Outcome, f.Output = event.Succeeded, output
		return f
	}
	f.Outcome, f.Error = verdict(ctx, a.mask, err)
	a.log.InfoContext(ctx, "the attempt ended without an output", "outcome", string(f.Outcome), "code", f.Error.Code,
		"error", f.Error.Message)
	return f
}

// report delivers the end, and gives what to answer the queue.
func (a *attempt) report(ctx context.Context, f *contract.Finished) int {
	deadline := a.now().Add(finishTries)
	status, err := a.tellStart(a.job.life, deadline) // without that nobody takes the end
	if err == nil && isOK(status) {
		status, err = a.tellEnd(f, deadline)
	}
	switch {
	case err == nil && isOK(status):
		return http.StatusOK
	case err == nil && status == http.StatusConflict:
		a.log.InfoContext(ctx, "the attempt was replaced; its end counts for nothing")
		return http.StatusOK
	case err == nil && !isTransient(status) && status != http.StatusUnauthorized:
		a.log.ErrorContext(ctx, "the end was refused", "status", status, "outcome", string(f.Outcome))
		return http.StatusOK
	}
	// Delivered again, the attempt starts with the envelope's longer-lived URL,
	// gets new ones, and finds the marker, if the task leaves files. Where the queue
	// has let go of it, its silence is noticed, and the next attempt finds it.
	a.log.ErrorContext(ctx, "could not report the end; the queue is to deliver again, or the attempt to be given up",
		"status", status, "error", err)
	return http.StatusInternalServerError
}

// tellEnd makes the call, for as long as its URL is valid and, where the queue delivers
// again, until the deadline.
func (a *attempt) tellEnd(f *contract.Finished, deadline event.Time) (status int, err error) {
	switch expires := contract.CallbackExpiry(a.calls.url(contract.VerbFinished)); {
	case expires == 0:
	case a.job.letGo.Load():
		deadline = expires
	default:
		deadline = min(deadline, expires)
	}
	return a.calls.deliver(a.job.life, deadline, contract.VerbFinished, f, nil)
}
