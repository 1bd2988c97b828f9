package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync/atomic"

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
		case <-w.drain:
			rw.WriteHeader(http.StatusServiceUnavailable)
		default:
			rw.WriteHeader(http.StatusOK)
		}
	})
	mux.HandleFunc("/execute", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Allow", http.MethodPost)
		w.answer(rw, r, &contract.Problem{Status: http.StatusMethodNotAllowed, Detail: "tasks come by POST"})
	})
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		w.answer(rw, r, &contract.Problem{Status: http.StatusNotFound, Detail: "a worker serves POST /execute"})
	})
	return mux
}

// job is an attempt in this process: all deliveries of the attempt share it.
type job struct {
	// life lasts as long as the worker, with what the first delivery's context says.
	life context.Context //nolint:containedctx // for what must be done when the attempt is stopped
	stop func(cause error)
	// executing says that the attempt is started and not yet being reported:
	// from then on, heartbeats keep it.
	executing atomic.Bool
	// long is closed when the attempt executes and may take longer than a delivery
	// is held.
	long chan struct{}
	// letGo says that a queue may have let go of the attempt, because it was told
	// that it goes on.
	letGo atomic.Bool
	// live is closed once readers may follow the log, which is set before.
	live chan struct{}
	log  *liveLog
	done chan struct{}
	end  answer // set before done is closed
}

// answer is what a delivery is answered.
type answer struct {
	status int
	// report is the end of the attempt, where that is told of in this way.
	report []byte
}

func (j *job) settle(end answer) {
	j.end = end
	close(j.done)
}

func (w *Worker) execute(rw http.ResponseWriter, r *http.Request) {
	r = r.WithContext(trace.WithinRequest(r.Context(), r.Header))
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, contract.MaxEnvelopeBytes))
	if err != nil {
		w.refuse(rw, r, http.StatusBadRequest, err)
		return
	}
	env, err := contract.Open(body, w.cfg.Keyring, event.At(w.cfg.Clock.Now()))
	switch {
	case errors.Is(err, contract.ErrForged), errors.Is(err, contract.ErrExpired):
		w.refuse(rw, r, http.StatusUnauthorized, err)
		return
	case err != nil:
		w.refuse(rw, r, http.StatusBadRequest, err)
		return
	}
	j := w.join(trace.Within(r.Context(), env.Traceparent, env.Tracestate), env)
	if j == nil {
		rw.WriteHeader(http.StatusInternalServerError) // not 503: queues take that as "slow down everything"
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
	if _, err := rw.Write(end.report); err != nil { // the queue delivers again
		w.cfg.Logger.DebugContext(r.Context(), "could not answer", "error", err)
	}
}

// refuse answers a delivery that is no task for this worker. It is an error to
// the queue: what was not reported may not be taken off it.
func (w *Worker) refuse(rw http.ResponseWriter, r *http.Request, status int, err error) {
	w.cfg.Logger.ErrorContext(r.Context(), "refused an envelope", "status", status, "error", err)
	problem := &contract.Problem{Status: status, Detail: err.Error()}
	if field, ok := errors.AsType[*contract.FieldError](err); ok {
		problem.Field = field.Field
	}
	w.answer(rw, r, problem)
}

func (w *Worker) answer(rw http.ResponseWriter, r *http.Request, problem *contract.Problem) {
	problem.Title = http.StatusText(problem.Status)
	rw.Header().Set("Content-Type", "application/problem+json")
	rw.WriteHeader(problem.Status)
	if err := json.NewEncoder(rw).Encode(problem); err != nil {
		w.cfg.Logger.DebugContext(r.Context(), "could not answer", "error", err)
	}
}

// join gives the job of the attempt, beginning it if it is not here yet. It is
// nil when the worker takes no more.
func (w *Worker) join(delivery context.Context, env *contract.Envelope) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j := w.jobs[env.AttemptID]; j != nil {
		return j
	}
	if w.closing || len(w.jobs) >= maxJobs {
		return nil
	}
	life := lifeOf{w.ctx, context.WithoutCancel(delivery)}
	ctx, stop := context.WithCancelCause(life)
	j := &job{life: life, stop: stop, long: make(chan struct{}), live: make(chan struct{}), done: make(chan struct{})}
	w.jobs[env.AttemptID] = j
	w.running.Go(func() {
		defer stop(nil)
		w.take(ctx, j, env)
	})
	return j
}

// lifeOf ends as one context does, and says what another says.
type lifeOf struct {
	context.Context //nolint:containedctx // it is one

	values context.Context //nolint:containedctx // see above
}

func (l lifeOf) Value(key any) any {
	if v := l.values.Value(key); v != nil {
		return v
	}
	return l.Context.Value(key)
}

// take waits for a slot and runs the attempt in it.
func (w *Worker) take(ctx context.Context, j *job, env *contract.Envelope) {
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		w.settle(j, env, answer{status: http.StatusInternalServerError}) // nothing has begun: another worker will do it
		return
	}
	a := newAttempt(w, j, env)
	w.settle(j, env, a.run(ctx))
	a.tidy(ctx) // nobody waits for it
}

// settle answers all deliveries of a job. One more is of another job.
func (w *Worker) settle(j *job, env *contract.Envelope, end answer) {
	w.mu.Lock()
	delete(w.jobs, env.AttemptID)
	w.mu.Unlock()
	j.settle(end)
}

// await gives what to answer for a job: at its end or, if that may take longer than
// a queue waits, while heartbeats keep it. Without a status nobody waits for it.
func (w *Worker) await(ctx context.Context, j *job) answer {
	held := make(chan struct{})
	stop := background(ctx, func(ctx context.Context) {
		if w.cfg.Clock.Sleep(ctx, w.cfg.HoldFor) == nil {
			close(held)
		}
	})
	defer stop()
	for long := j.long; ; {
		select {
		case <-j.done:
			return j.end
		case <-long:
			if j.goesOn() {
				return answer{status: http.StatusAccepted}
			}
			long = nil // it is being reported: that is waited for
		case <-held:
			if j.goesOn() {
				return answer{status: http.StatusAccepted}
			}
			return answer{status: http.StatusInternalServerError} // waiting, or cannot report: a delivery more will join
		case <-ctx.Done():
			return answer{}
		}
	}
}

// goesOn reports whether a queue can let go of the attempt: its end will be
// reported, or is missed when the heartbeats end. An attempt that is being reported
// already is not one: if that fails, only a delivery more can repeat it.
func (j *job) goesOn() bool {
	j.letGo.Store(true) // before it is asked, so that the report knows
	return j.executing.Load()
}
