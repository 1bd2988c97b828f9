package trace

import (
	"context"
	"log/slog"
	"slices"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// Log has records that are logged within a trace say so, by the names that Cloud Logging
// looks for. With a project, one of Google Cloud, the trace is named as Cloud Trace
// names it there.
func Log(h slog.Handler, project string) slog.Handler {
	prefix := ""
	if project != "" {
		prefix = "projects/" + project + "/traces/"
	}
	return &logHandler{Handler: h, top: h, prefix: prefix}
}

// logHandler adds the fields at the top of a record, whichever groups are open.
type logHandler struct {
	slog.Handler // as it is without a trace

	top    slog.Handler                      // before the first group
	groups []func(slog.Handler) slog.Handler // from there on
	prefix string
}

// Handle implements [slog.Handler].
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	active := oteltrace.SpanContextFromContext(ctx)
	if !active.IsValid() {
		return h.Handler.Handle(ctx, r)
	}
	within := h.top.WithAttrs([]slog.Attr{
		slog.String("logging.googleapis.com/trace", h.prefix+active.TraceID().String()), //nolint:sloglint // as Cloud Logging has it
		slog.String("logging.googleapis.com/spanId", active.SpanID().String()),          //nolint:sloglint // as Cloud Logging has it
		slog.Bool("logging.googleapis.com/trace_sampled", active.IsSampled()),           //nolint:sloglint // as Cloud Logging has it
	})
	for _, open := range h.groups {
		within = open(within)
	}
	return within.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(h.groups) == 0 {
		with := h.top.WithAttrs(attrs)
		return &logHandler{Handler: with, top: with, prefix: h.prefix}
	}
	return h.then(func(inner slog.Handler) slog.Handler { return inner.WithAttrs(attrs) })
}

// WithGroup implements [slog.Handler].
func (h *logHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.then(func(inner slog.Handler) slog.Handler { return inner.WithGroup(name) })
}

func (h *logHandler) then(open func(slog.Handler) slog.Handler) slog.Handler {
	return &logHandler{
		Handler: open(h.Handler), top: h.top, prefix: h.prefix,
		groups: append(slices.Clip(h.groups), open),
	}
}
