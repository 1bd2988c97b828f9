package dispatcher

import (
	"context"
	"net/http"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// traceCallback starts the span of a verified callback, and returns a function that ends it. The
// span is in the trace of its run, below its attempt, even if the worker knows nothing of traces.
// Heartbeats have no spans: a task that runs for a day would have thousands.
func (d *Dispatcher) traceCallback(w http.ResponseWriter, r *http.Request, cb contract.Callback) (http.ResponseWriter, *http.Request, func()) {
	if !d.cfg.Traces.On() || cb.Verb == contract.VerbHeartbeat {
		return w, r, func() {}
	}
	ctx, span := d.startReport(r.Context(), cb)
	answer := &answer{ResponseWriter: w, status: http.StatusOK}
	return answer, r.WithContext(ctx), func() { span.Answered(answer.status) }
}

func (d *Dispatcher) startReport(ctx context.Context, cb contract.Callback) (context.Context, *trace.Span) {
	return d.cfg.Traces.StartReport(ctx, cb.Verb, trace.About{
		Tenant: d.cfg.Domain.Tenant, Workspace: d.cfg.Domain.Workspace, RunID: cb.RunID, TaskKey: cb.TaskKey,
		Attempt: cb.Attempt, AttemptID: cb.AttemptID,
	})
}

// answer is a response that remembers its status.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap implements the interface that [http.ResponseController] looks for.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
