package compactor

import (
	"context"
	"errors"
	"slices"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// maxTraced limits the runs for which a publish creates spans.
const maxTraced = 32

// compaction is the span of a fold that is published. One fold serves many runs, so its span has a
// trace of its own. The trace of each run gets another span for the same time, which shows what the
// run's tasks waited for. A nil compaction creates no spans.
type compaction struct {
	tracer *trace.Tracer
	about  trace.About
	span   *trace.Span
	began  time.Time
	runs   []string
}

// traceFold starts the span of a fold.
func (c *Compactor) traceFold(ctx context.Context, groups []fold.Group) (context.Context, *compaction) {
	if !c.cfg.Traces.On() {
		return ctx, nil
	}
	f := &compaction{
		tracer: c.cfg.Traces, about: trace.About{Tenant: c.cfg.Domain.Tenant, Workspace: c.cfg.Domain.Workspace}, began: c.cfg.Clock.Now(),
	}
	for _, g := range groups {
		f.runs = append(f.runs, fold.Names(g)...)
	}
	slices.Sort(f.runs)
	f.runs = slices.Compact(f.runs)
	links := make([]oteltrace.Link, 0, maxTraced)
	for _, runID := range f.traced() {
		links = append(links, trace.LinkRun(runID))
	}
	ctx, f.span = c.cfg.Traces.Start(ctx, "compact", f.about, oteltrace.WithLinks(links...))
	f.span.Set("servo.groups", len(groups))
	f.span.Set("servo.runs", len(f.runs))
	return ctx, f
}

// traced returns the runs that get a span: the newest, which users are most likely waiting for.
func (f *compaction) traced() []string { return f.runs[max(0, len(f.runs)-maxTraced):] }

// end ends the span. If n > 0 groups were published, it creates the spans of the runs.
func (f *compaction) end(ctx context.Context, revision int64, n int, err error) {
	if f == nil {
		return
	}
	f.span.Set("servo.folded", n)
	switch {
	case errors.Is(err, errNeedBarrier), errors.Is(err, errStateChanged):
		f.span.Set("servo.again", err.Error()) // not a failure: the step tries again
		err = nil
	case err == nil && n > 0:
		f.span.Set("servo.revision", revision)
		for _, runID := range f.traced() {
			about := f.about
			about.RunID = runID
			_, span := f.tracer.Start(ctx, "fold", about, oteltrace.WithTimestamp(f.began))
			span.Set("servo.revision", revision)
			span.End(nil)
		}
	}
	f.span.End(err)
}

// traceEnded creates the spans of the runs that a publish has ended. Only the publisher of a
// revision creates them, so each is created once. c.state is still the previous state.
func (c *Compactor) traceEnded(ctx context.Context, changed []*state.Run) {
	if !c.cfg.Traces.On() {
		return
	}
	for _, run := range changed {
		if before := c.state.Runs.Get(run.RunID); !run.State.Terminal() || before != nil && before.State.Terminal() {
			continue
		}
		c.cfg.Traces.Run(ctx, trace.About{Tenant: c.cfg.Domain.Tenant, Workspace: c.cfg.Domain.Workspace, RunID: run.RunID},
			string(run.State), run.CreatedAt.Time(), run.CompletedAt.Time())
	}
}
