package worker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Handler serves POST /execute, /healthz and /readyz.
func (w *Worker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /execute", w.execute)
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		select {
		case <-w.life.drain:
			rw.WriteHeader(http.StatusServiceUnavailable)
		default:
			rw.WriteHeader(http.StatusOK)
		}
	})
	mux.HandleFunc("/execute", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Allow", http.MethodPost)
		w.answer(rw, r, &contract.Problem{Status: http.StatusMethodNotAllowed, Detail: "use POST"})
	})
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		w.answer(rw, r, &contract.Problem{Status: http.StatusNotFound, Detail: "a worker serves POST /execute"})
	})
	return mux
}

// job is an attempt that this process executes. All deliveries of the attempt share one job.
type job struct {
	// life is a context that ends when the worker ends. It has the values of the first delivery's context.
	life context.Context //nolint:containedctx // for work that continues after the attempt is stopped
	stop func(cause error)
	// executing is true while the task executes. It is set when the start is accepted or the attempt is admitted, and is
	// cleared when the report of the end begins.
	executing atomic.Bool
	// long is closed when an attempt whose timeout exceeds Config.HoldFor begins to execute.
	long chan struct{}
	// released means that a delivery may have been answered with 202 Accepted. After this response, the queue does not
	// redeliver.
	released atomic.Bool
	// live is closed when readers may follow the log. log is set before that.
	live chan struct{}
	log  *liveLog
	done chan struct{}
	end  answer // set before done is closed
}

// answer is the response to a delivery.
type answer struct {
	status int
	// report is the report of the attempt's end, if the response contains it.
	report []byte
}

func (j *job) finish(end answer) {
	j.end = end
	close(j.done)
}

func (w *Worker) execute(rw http.ResponseWriter, r *http.Request) {
	r = r.WithContext(trace.WithinRequest(r.Context(), r.Header))
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, contract.MaxEnvelopeBytes))
	if err != nil {
		w.reject(rw, r, http.StatusBadRequest, err)
		return
	}
	env, err := contract.Open(body, w.cfg.Keyring, event.At(w.cfg.Clock.Now()))
	switch {
	case errors.Is(err, contract.ErrForged), errors.Is(err, contract.ErrExpired):
		w.reject(rw, r, http.StatusUnauthorized, err)
		return
	case err != nil:
		w.reject(rw, r, http.StatusBadRequest, err)
		return
	}
	j := w.join(trace.Within(r.Context(), env.Traceparent, env.Tracestate), env)
	if j == nil {
		rw.WriteHeader(http.StatusInternalServerError) // not 503, because a queue would then slow down all its deliveries
		return
	}
	end := w.await(r.Context(), j)
	if end.status == 0 {
		return
	}
	if end.report != nil {
		rw.Header().Set("Content-Type", "application/json")
	}
	rw.WriteHeader(end.status)
	if _, err := rw.Write(end.report); err != nil { // the queue redelivers after an error
		w.cfg.Logger.DebugContext(r.Context(), "could not write the response", "error", err)
	}
}

// reject answers a delivery that is not a valid task. The status is an error, because after a success the queue would
// delete the delivery, although the control plane would never receive a report.
func (w *Worker) reject(rw http.ResponseWriter, r *http.Request, status int, err error) {
	w.cfg.Logger.ErrorContext(r.Context(), "rejected an envelope", "status", status, "error", err)
	problem := &contract.Problem{Status: status, Detail: err.Error()}
	if field, ok := errors.AsType[*contract.FieldError](err); ok {
		problem.Field = field.Field
	}
	w.answer(rw, r, problem)
}

func (w *Worker) answer(rw http.ResponseWriter, r *http.Request, problem *contract.Problem) {
	if err := httpx.Problem(rw, *problem); err != nil {
		w.cfg.Logger.DebugContext(r.Context(), "could not write the response", "error", err)
	}
}

// join returns the attempt's job, and starts the job if this process has none. It returns nil if
// the worker is closing or full.
func (w *Worker) join(delivery context.Context, env *contract.Envelope) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j := w.jobs[env.AttemptID]; j != nil {
		return j
	}
	if w.closing || len(w.jobs) >= maxJobs {
		return nil
	}
	life := jobContext{w.life.ctx, context.WithoutCancel(delivery)}
	ctx, stop := context.WithCancelCause(life)
	j := &job{life: life, stop: stop, long: make(chan struct{}), live: make(chan struct{}), done: make(chan struct{})}
	w.jobs[env.AttemptID] = j
	w.life.running.Go(func() {
		defer stop(nil)
		w.take(ctx, j, env)
	})
	return j
}

// jobContext ends when the embedded context ends. It has the values of this context and of the context in the field
// values.
type jobContext struct {
	context.Context //nolint:containedctx // jobContext is a context

	values context.Context //nolint:containedctx // only its values are used
}

func (l jobContext) Value(key any) any {
	if v := l.values.Value(key); v != nil {
		return v
	}
	return l.Context.Value(key)
}

// take waits for a slot and for memory, and runs the attempt.
func (w *Worker) take(ctx context.Context, j *job, env *contract.Envelope) {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		w.finish(j, env, answer{status: http.StatusInternalServerError}) // the attempt has not started, so the queue redelivers it to another worker
		return
	}
	a := newAttempt(w, j, env)
	if err := a.reserve(ctx); err != nil {
		a.claim.free()
		w.finish(j, env, answer{status: http.StatusInternalServerError}) // the same response as when there is no slot
		return
	}
	w.finish(j, env, a.run(ctx))
	a.mergeInputs() // the deliveries have been answered already
	a.cleanUp(ctx)
}

// finish answers all deliveries of a job and removes the job. A later delivery starts a new job.
func (w *Worker) finish(j *job, env *contract.Envelope, end answer) {
	w.mu.Lock()
	delete(w.jobs, env.AttemptID)
	w.mu.Unlock()
	j.finish(end)
}

// await returns the response to a delivery: the response at the end of the job, or 202 Accepted if the job is executing
// and may take longer than a queue waits. If ctx ends first, because the client has disconnected, the status is 0.
func (w *Worker) await(ctx context.Context, j *job) answer {
	expired := make(chan struct{})
	stop := background(ctx, func(ctx context.Context) {
		if w.cfg.Clock.Sleep(ctx, w.cfg.HoldFor) == nil {
			close(expired)
		}
	})
	defer stop()
	for long := j.long; ; {
		select {
		case <-j.done:
			return j.end
		case <-long:
			if j.release() {
				return answer{status: http.StatusAccepted}
			}
			long = nil // another goroutine is reporting the end, so wait for the report
		case <-expired:
			if j.release() {
				return answer{status: http.StatusAccepted}
			}
			return answer{status: http.StatusInternalServerError} // the job waits for a slot or reports its end; a redelivery joins the job
		case <-ctx.Done():
			return answer{}
		}
	}
}

// release reports whether the queue may drop the delivery. The queue may drop it while the attempt executes: later,
// the worker reports the end, or missing heartbeats show that the attempt has died. The queue may not drop it while
// the end is being reported: if the report fails, only a redelivery repeats it.
func (j *job) release() bool {
	// Set the field released before the field executing is read. A report that begins between the two then sees that
	// released is set.
	j.released.Store(true)
	return j.executing.Load()
}
