// Package trace makes spans of what happens to a run, wherever it happens, into one
// OpenTelemetry trace.
//
// Nobody carries the trace along. A run's id is the trace's id, and an attempt's id
// has that of its span (ADR 042): whoever knows of which run and attempt something is
// knows where its span belongs, after any number of queues, retries and restarts.
// What is of no run, such as a compaction of many, has a trace of its own.
//
// This package makes spans and log fields, and sends nothing: package otlp does. A
// nil [Tracer] makes none, starts nothing and reads no clock.
package trace

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Options say where spans are sent, and which.
type Options struct {
	// Endpoint takes OTLP over HTTP: http://localhost:4318. Without a path, /v1/traces.
	Endpoint string
	// Ratio is how many traces of all are sent, more than 0 and up to 1. Processes with
	// the same ratio send the same ones. Runs triggered in one millisecond by one process
	// are neighbours, and are all sent or none.
	Ratio float64
	// Service names the program, and Instance the process.
	Service, Instance string
}

// Tracer makes spans. It is safe for concurrent use. Nil makes none.
type Tracer struct {
	tracer oteltrace.Tracer
	close  func(context.Context) error
}

// New makes a tracer of a provider that makes its ids with [Generator]. Close ends the
// provider, and sends what is left.
func New(provider oteltrace.TracerProvider, end func(context.Context) error) *Tracer {
	return &Tracer{provider.Tracer("github.com/servo-orchestration/servo"), end}
}

// On reports whether there are spans at all: what is worth nothing but to them need not
// be made otherwise.
func (t *Tracer) On() bool { return t != nil }

// Close sends what is left, for as long as ctx lasts.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.close(ctx)
}

// About is what a span is about; what it is not about is empty.
type About struct {
	Tenant, Workspace, RunID, TaskKey string
	Attempt                           int32
	AttemptID                         string
}

func (a About) attributes() []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 6) //nolint:mnd // as many as there are fields
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

// Start begins a span. One about a run is in its trace: under what is active in ctx if
// that is, too, else under the run's own span, with a link to what is active. One about
// none is under what is active.
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

// StartAttempt begins the span that stands for an attempt, as of a time.
func (t *Tracer) StartAttempt(ctx context.Context, about About, at time.Time) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	_, span := t.Start(as(ctx, about.AttemptID), "attempt", about,
		oteltrace.WithTimestamp(at), oteltrace.WithSpanKind(oteltrace.SpanKindConsumer))
	return oteltrace.ContextWithSpan(ctx, span.span), span // none has that id, but of another execution of the attempt
}

// StartReport begins the span of what a worker reports of an attempt. It is under the
// attempt's, whatever the worker says.
func (t *Tracer) StartReport(ctx context.Context, verb string, about About) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	ctx = oteltrace.ContextWithRemoteSpanContext(ctx, spanContext(about.RunID, about.AttemptID))
	return t.Start(ctx, "callback "+verb, about, oteltrace.WithSpanKind(oteltrace.SpanKindServer))
}

// Run makes the span of a run that has ended: the one that all others of it are under.
func (t *Tracer) Run(ctx context.Context, about About, outcome string, began, ended time.Time) {
	if t == nil {
		return
	}
	_, span := t.tracer.Start(as(ctx, about.RunID), "run", oteltrace.WithNewRoot(), oteltrace.WithTimestamp(began),
		oteltrace.WithAttributes(append(about.attributes(), attribute.String("servo.outcome", outcome))...))
	span.End(oteltrace.WithTimestamp(ended))
}

// Span is one that has begun. Nil is one of a nil Tracer.
type Span struct{ span oteltrace.Span }

// Set adds attributes, a name and a value each: a string, an int or an int64.
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

// End ends the span; with an error, as one that failed.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// Link is a link to the span.
func (s *Span) Link() oteltrace.SpanStartOption {
	if s == nil {
		return oteltrace.WithLinks()
	}
	return oteltrace.WithLinks(oteltrace.Link{SpanContext: s.span.SpanContext()})
}

// LinkRun is a link to the span of a run.
func LinkRun(runID string) oteltrace.Link {
	return oteltrace.Link{SpanContext: spanContext(runID, runID)}
}
