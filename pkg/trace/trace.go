// Package trace collects the spans of a run, from all processes, in one OpenTelemetry trace. This
// package is not a stable API.
//
// Processes do not pass on the trace context of a run. Trace ids are derived from run ids, and span ids from attempt
// ids (ADR 042). So a process that knows the run and the attempt also knows the parent of a span, after any number of
// queues, retries and restarts. Work that does not belong to one run, for example a compaction, has a trace of its own.
//
// This package creates spans and log fields. Package otlp exports the spans. A nil [Tracer] creates no spans and reads
// no clock.
package trace

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Options are the settings of an exporter.
type Options struct {
	// Endpoint is the URL of an OTLP/HTTP collector, for example http://localhost:4318. The
	// default path is /v1/traces.
	Endpoint string
	// Ratio is the fraction of traces to send (0 < Ratio ≤ 1). Processes with the same ratio send the same traces. Runs
	// that one process triggers in the same millisecond have similar ids, so either all of their traces are sent or
	// none.
	Ratio float64
	// Service names the program, and Instance the process.
	Service, Instance string
}

// Tracer creates spans. It is safe for concurrent use. A nil Tracer creates no spans.
type Tracer struct {
	tracer oteltrace.Tracer
	close  func(context.Context) error
}

// New returns a tracer that creates its spans with the given provider. The provider must use [Generator].
// [Tracer.Close] calls the parameter end, which must send the queued spans and shut down the provider.
func New(provider oteltrace.TracerProvider, end func(context.Context) error) *Tracer {
	return &Tracer{provider.Tracer("github.com/servo-orchestration/servo"), end}
}

// On reports whether the tracer creates spans. If it creates none, callers can skip work that is done only for spans.
func (t *Tracer) On() bool { return t != nil }

// Close sends the queued spans and ends the tracer. It returns early when ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.close(ctx)
}

// About is the subject of a span. Fields that do not apply are empty.
type About struct {
	Tenant, Workspace, RunID, TaskKey string
	Attempt                           int32
	AttemptID                         string
}

func (a About) attributes() []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 6) //nolint:mnd // the number of fields
	for _, f := range []struct{ key, value string }{
		{"servo.tenant", a.Tenant},
		{"servo.workspace", a.Workspace},
		{"servo.run_id", a.RunID},
		{"servo.task_key", a.TaskKey},
		{"servo.attempt_id", a.AttemptID},
	} {
		if f.value != "" {
			attributes = append(attributes, attribute.String(f.key, f.value))
		}
	}
	if a.Attempt != 0 {
		attributes = append(attributes, attribute.Int("servo.attempt", int(a.Attempt)))
	}
	return attributes
}

// Start begins a span under the active span of ctx. A span about a run always belongs to the run's trace. If the
// active span belongs to another trace, the new span becomes a child of the run's span, and gets a link to the active
// span.
func (t *Tracer) Start(ctx context.Context, name string, about About, options ...oteltrace.SpanStartOption) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	options = append(options, oteltrace.WithAttributes(about.attributes()...))
	active := oteltrace.SpanContextFromContext(ctx)
	if about.RunID != "" && active.TraceID() != ID(about.RunID) {
		if active.IsValid() {
			options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: active}))
		}
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, spanContext(about.RunID, about.RunID))
	}
	ctx, span := t.tracer.Start(ctx, name, options...)
	return ctx, &Span{span}
}

// StartAttempt begins the span of an attempt. The parameter "at" is the time at which the attempt started.
func (t *Tracer) StartAttempt(ctx context.Context, about About, at time.Time) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	_, span := t.Start(withSpanSeed(ctx, about.AttemptID), "attempt", about,
		oteltrace.WithTimestamp(at), oteltrace.WithSpanKind(oteltrace.SpanKindConsumer))
	// Do not return the context from Start: child spans in that context would also get the attempt's id.
	return oteltrace.ContextWithSpan(ctx, span.span), span
}

// StartReport begins the span of a worker's callback. Its parent is always the attempt's span; the trace context that
// the worker sent is ignored.
func (t *Tracer) StartReport(ctx context.Context, verb string, about About) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	ctx = oteltrace.ContextWithRemoteSpanContext(ctx, spanContext(about.RunID, about.AttemptID))
	return t.Start(ctx, "callback "+verb, about, oteltrace.WithSpanKind(oteltrace.SpanKindServer))
}

// Run creates the span of a run that has ended: the root of the run's trace.
func (t *Tracer) Run(ctx context.Context, about About, outcome string, began, ended time.Time) {
	if t == nil {
		return
	}
	_, span := t.tracer.Start(withSpanSeed(ctx, about.RunID), "run", oteltrace.WithNewRoot(), oteltrace.WithTimestamp(began),
		oteltrace.WithAttributes(append(about.attributes(), attribute.String("servo.outcome", outcome))...))
	span.End(oteltrace.WithTimestamp(ended))
}

// Span is a span that has begun. A nil Tracer returns nil Spans, whose methods do nothing.
type Span struct{ span oteltrace.Span }

// Set adds an attribute. The value must be a string, an int or an int64.
func (s *Span) Set(name string, value any) {
	if s == nil {
		return
	}
	switch v := value.(type) {
	case string:
		s.span.SetAttributes(attribute.String(name, v))
	case int:
		s.span.SetAttributes(attribute.Int(name, v))
	case int64:
		s.span.SetAttributes(attribute.Int64(name, v))
	}
}

// End ends the span. An error marks it as failed.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// Link returns a link to the span.
func (s *Span) Link() oteltrace.SpanStartOption {
	if s == nil {
		return oteltrace.WithLinks()
	}
	return oteltrace.WithLinks(oteltrace.Link{SpanContext: s.span.SpanContext()})
}

// LinkRun returns a link to the span of a run.
func LinkRun(runID string) oteltrace.Link {
	return oteltrace.Link{SpanContext: spanContext(runID, runID)}
}
