package worker

import (
	"context"
	"errors"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// trace begins the span of an attempt whose start was taken. A delivery that comes late
// and is turned away has none: it would take the place of the one that counts.
func (a *attempt) trace(ctx context.Context) (context.Context, *trace.Span) {
	return a.w.cfg.Traces.StartAttempt(ctx, a.about(), a.startedAt.Time())
}

func (a *attempt) about() trace.About {
	return trace.About{
		Tenant: a.env.Tenant, Workspace: a.env.Workspace, RunID: a.env.RunID, TaskKey: a.env.TaskKey,
		Attempt: a.env.Attempt, AttemptID: a.env.AttemptID,
	}
}

// endTrace ends the span of an attempt with what it came to. What a task says of its
// failure is its own, and stays out.
func endTrace(span *trace.Span, f *contract.Finished) {
	span.Set("servo.outcome", string(f.Outcome))
	var err error
	if f.Outcome != event.Succeeded && f.Error != nil {
		err = errors.New(f.Error.Code)
	}
	span.End(err)
}

// phase does a part of an attempt, with a span of its own.
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

// errPhase stands in a trace for an error that may say what a task has printed.
var errPhase = errors.New("failed")
