package trace

import (
	"context"
	"log/slog"
	"slices"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// Log returns a handler that adds the active trace to records, in the fields that Cloud Logging reads. The parameter
// project is the id of a Google Cloud project. If it is set, the trace field contains the name of the trace in Cloud
// Trace. If it is empty, the trace field contains only the trace id.
func Log(h slog.Handler, project string) slog.Handler {
	prefix := ""
	if project != "" {
		prefix = "projects/" + project + "/traces/"
	}
	return &logHandler{Handler: h, top: h, prefix: prefix}
}

// logHandler adds the fields of the trace at the top level of a record, even if groups are open.
type logHandler struct {
	slog.Handler // used for records without a trace

	top    slog.Handler                      // a handler without the open groups
	groups []func(slog.Handler) slog.Handler // functions that open the groups; applied to the field top in this order
	prefix string
}

// Handle implements [slog.Handler].
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	active := oteltrace.SpanContextFromContext(ctx)
	if !active.IsValid() {
		return h.Handler.Handle(ctx, r)
	}
	within := h.top.WithAttrs([]slog.Attr{
		slog.String("logging.googleapis.com/trace", h.prefix+active.TraceID().String()), //nolint:sloglint // Cloud Logging's name
		slog.String("logging.googleapis.com/spanId", active.SpanID().String()),          //nolint:sloglint // Cloud Logging's name
		slog.Bool("logging.googleapis.com/trace_sampled", active.IsSampled()),           //nolint:sloglint // Cloud Logging's name
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
