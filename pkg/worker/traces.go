package worker

import (
	"context"
	"errors"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// trace starts the span of an attempt that was admitted, or whose start was accepted. A rejected delivery gets no span:
// all spans of an attempt have the same id, so its span would replace that of the execution whose result counts.
func (a *attempt) trace(ctx context.Context) (context.Context, *trace.Span) {
	return a.w.cfg.Traces.StartAttempt(ctx, a.about(), a.startedAt.Time())
}

func (a *attempt) about() trace.About {
	return trace.About{
		Tenant: a.env.Tenant, Workspace: a.env.Workspace, RunID: a.env.RunID, TaskKey: a.env.TaskKey,
		Attempt: a.env.Attempt, AttemptID: a.env.AttemptID,
	}
}

// endTrace ends the span of an attempt with its outcome. It omits the error message, because the message may contain
// the task's output.
func endTrace(span *trace.Span, f *contract.Finished) {
	span.Set("servo.outcome", string(f.Outcome))
	var err error
	if f.Outcome != event.Succeeded && f.Error != nil {
		err = errors.New(f.Error.Code)
	}
	span.End(err)
}

// phase calls the parameter "do" within a new span.
func phase[T any](ctx context.Context, a *attempt, name string, do func(context.Context) (T, error)) (T, error) {
	ctx, span := a.w.cfg.Traces.Start(ctx, name, trace.About{})
	done, err := do(ctx)
	if err != nil {
		span.End(errPhase)
		return done, err
	}
	span.End(nil)
	return done, nil
}

// errPhase replaces the error of a phase in traces, because the error may contain the task's output.
var errPhase = errors.New("failed")
