package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

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

// attempt is one execution of a task's attempt in this process. One goroutine executes it and changes its fields. Other
// goroutines use only a.reports, the text of a.output, and fields that never change.
type attempt struct {
	identity

	w    *Worker
	job  *job
	log  *slog.Logger
	mask *secret.Mask // hides the known secrets

	startedAt event.Time
	reports   reports
	claim     claim
	staged    staged
	output    taskLog
	usage     usage

	// dir is the execution's scratch folder; empty until [attempt.scratch] creates it.
	dir string
	// checkResults are the results of the checks that have run, or the results in an adopted marker.
	checkResults []event.CheckResult
	// codeChanged means that the code which the task executed may differ from the code in the plan.
	codeChanged bool
	// overruled means that the result of another execution counts, because this execution adopted an output or was
	// replaced.
	overruled bool
	// cleanups run after the deliveries are answered.
	cleanups []func()
}

// identity says which attempt of which task an execution executes. It never changes.
type identity struct {
	env    *contract.Envelope
	domain ids.Domain
	asset  ids.AssetKey
	nonce  string   // differs between the executions of an attempt
	batch  []string // the partitions of the task if it has several
}

// claim holds the resources of the worker that are reserved for the task.
type claim struct {
	resources *plan.Resources // the resources that the asset declares, or nil
	memory    *reservation    // the memory that is reserved for the task
	free      func()          // releases the slot, and then the memory, for the next task
}

// staged describes how far the execution has prepared the inputs.
type staged struct {
	// views is the number of views of inputs with partition columns. Each view has a folder: the folder of the first
	// view has the name 1, that of the second has the name 2.
	views int
	// fetched counts the downloaded input files. The next local copy is named after this number.
	fetched int
	// laidOut means that the folders of the inputs exist.
	laidOut bool
	// unmerged are the inputs from which the query read many small files. The worker merges these files after the report
	// of the end.
	unmerged []merging
}

// taskLog is the task's log.
type taskLog struct {
	boundedLog

	shown bool      // readers may follow the log
	parts *logParts // stores parts of the log while a command runs; nil: the log has no parts
	short string    // the log, if the report of the end contains it
}

// usage is what the execution has used.
type usage struct {
	metrics  map[string]int64
	cpu      time.Duration // the CPU time of the query or the command; valid if the field measured is set
	measured bool
}

func newAttempt(w *Worker, j *job, env *contract.Envelope) *attempt {
	asset, _ := ids.ParseAssetKey(env.AssetKey) // contract.Open has validated the key
	a := &attempt{
		w: w, job: j, identity: identity{env: env, domain: env.Domain(), asset: asset, nonce: w.cfg.Nonce()},
		reports: reports{calls: &callbacks{
			client: w.cfg.HTTPClient, clock: w.cfg.Clock, urls: env.Callbacks, traceparent: env.Traceparent, tracestate: env.Tracestate,
		}},
		log: w.cfg.Logger.With("tenant", env.Tenant, "workspace", env.Workspace, "run_id", env.RunID,
			"task_key", env.TaskKey, "attempt", env.Attempt),
		usage: usage{metrics: map[string]int64{}},
	}
	a.claim.free = sync.OnceFunc(func() {
		<-w.slots
		if a.claim.memory != nil {
			w.memory.release(a.claim.memory, w.cfg.Clock.Now())
		}
	})
	return a
}

func (a *attempt) now() event.Time { return event.At(a.w.cfg.Clock.Now()) }

// run executes the attempt from the report of its start to the report of its end, and returns the response for the
// queue. ctx ends, with a cause, when the execution must stop. The worker can still send reports after that, because
// they use the context job.life.
func (a *attempt) run(ctx context.Context) answer {
	defer a.claim.free()
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
	a.claim.free()
	if err != nil && errors.Is(context.Cause(ctx), errReplaced) {
		a.overruled = true
		a.log.InfoContext(ctx, "stopped an attempt that was replaced")
		span.End(errReplaced)
		return answer{status: http.StatusOK}
	}
	f := a.finished(ctx, output, err)
	defer func() { endTrace(span, f) }()
	if admitted && a.reports.sent.CompareAndSwap(false, true) {
		if report, ok := a.encodeAnswer(ctx, f); ok {
			return answer{status: http.StatusOK, report: report}
		}
	}
	return answer{status: a.report(ctx, f)}
}

// isLong reports whether the task's timeout exceeds the time that a delivery waits. A task without a timeout counts
// as short, because most tasks are short.
func (a *attempt) isLong() bool {
	return time.Duration(a.env.TimeoutSec)*time.Second > a.w.cfg.HoldFor
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
	a.claim.resources = t.Resources // not set yet if the plan could not be read when the task reserved memory
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
// task fails, and its files are not committed.
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

// unexpectedFiles returns an error for the files that a task has written although its asset has no output.
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

// masked returns the text of an error with secrets masked.
func (a *attempt) masked(err error) string {
	if err == nil {
		return ""
	}
	return a.mask.String(err.Error())
}
