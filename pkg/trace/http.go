package trace

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// The headers of W3C Trace Context.
const (
	Header      = "Traceparent"
	StateHeader = "Tracestate"
)

// Within returns a context within the trace that traceparent and tracestate name. It works without a tracer, because
// log records name the trace even then. It ignores a malformed traceparent or tracestate.
func Within(ctx context.Context, traceparent, tracestate string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent, "tracestate": tracestate})
}

// WithinRequest returns a context within the trace that a request's headers name. If a request has several
// traceparents, WithinRequest ignores the headers, because it cannot know which one is right.
func WithinRequest(ctx context.Context, header http.Header) context.Context {
	parents := header.Values(Header)
	if len(parents) != 1 {
		return ctx
	}
	return Within(ctx, parents[0], strings.Join(header.Values(StateHeader), ","))
}

// Active returns the traceparent and tracestate of the span in ctx. Both are "" if ctx has no span.
func Active(ctx context.Context) (traceparent, tracestate string) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"], carrier["tracestate"]
}

// Serve begins the span of a served request and returns the function that ends it.
func (t *Tracer) Serve(r *http.Request, route string) (*http.Request, func(status int)) {
	if t == nil {
		return r, func(int) {}
	}
	ctx, span := t.Start(r.Context(), route, About{}, oteltrace.WithSpanKind(oteltrace.SpanKindServer), oteltrace.WithAttributes(
		attribute.String("http.request.method", r.Method), attribute.String("http.route", route)))
	return r.WithContext(ctx), span.Answered
}

// Client returns a copy of c that creates a span for each request and sends the span's trace context.
func (t *Tracer) Client(c *http.Client) *http.Client {
	if t == nil {
		return c
	}
	traced := *c
	traced.Transport = transport{t, c.Transport}
	return &traced
}

type transport struct {
	tracer *Tracer
	inner  http.RoundTripper
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t transport) CloseIdleConnections() {
	if c, ok := t.inner.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, span := t.tracer.Start(r.Context(), r.Method+" "+r.URL.Path, About{}, oteltrace.WithSpanKind(oteltrace.SpanKindClient),
		oteltrace.WithAttributes(attribute.String("http.request.method", r.Method), attribute.String("server.address", r.URL.Host)))
	r = r.Clone(ctx)
	r.Header.Del(StateHeader) // an existing tracestate may belong to another trace
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	res, err := t.inner.RoundTrip(r)
	if err != nil {
		span.End(err)
		return nil, err
	}
	span.Answered(res.StatusCode)
	return res, nil
}

// Answered ends the span of a request. A status of 500 or more marks the span as failed.
func (s *Span) Answered(status int) {
	s.Set("http.response.status_code", status)
	var err error
	if status >= http.StatusInternalServerError {
		err = fmt.Errorf("%d %s", status, http.StatusText(status))
	}
	s.End(err)
}
