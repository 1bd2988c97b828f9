// Package otlp sends spans to a collector, by OTLP over HTTP.
//
// Spans are sent in batches, beside the work. A collector that refuses them, hangs or is
// away costs the spans that do not fit a bounded queue, a line in the log, and nothing else.
package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/servo-orchestration/servo/pkg/trace"
)

const (
	// batchDelay is how long spans wait for company. It is short because a process in a
	// cloud may be given no time once its requests are answered.
	batchDelay = time.Second
	// exportTimeout bounds the sending of a batch, with all tries.
	exportTimeout = 10 * time.Second
	// maxQueued bounds the spans that wait; further ones are dropped.
	maxQueued = 4096
	// maxBatch is how many spans are sent at once.
	maxBatch = 512
)

// Open gives a tracer whose spans are sent. It does not wait for the collector.
func Open(ctx context.Context, o trace.Options, logger *slog.Logger) (*trace.Tracer, error) {
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	if strings.Trim(endpoint.Path, "/") == "" {
		endpoint.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint.String()), otlptracehttp.WithTimeout(exportTimeout))
	if err != nil {
		return nil, fmt.Errorf("send traces to %s: %w", o.Endpoint, err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithIDGenerator(trace.Generator{}),
		// The id alone decides, not the parent: so all processes decide alike, of a run's
		// trace too, whose id none of them was told.
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(o.Ratio)),
		sdktrace.WithBatcher(&logged{SpanExporter: exporter, logger: logger}, sdktrace.WithBatchTimeout(batchDelay),
			sdktrace.WithExportTimeout(exportTimeout), sdktrace.WithMaxQueueSize(maxQueued), sdktrace.WithMaxExportBatchSize(maxBatch)),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", o.Service), attribute.String("service.instance.id", o.Instance))),
	)
	return trace.New(provider, provider.Shutdown), nil
}

// logged says in the log when spans are no longer taken, and when they are again. That
// they are not is nobody else's failure.
type logged struct {
	sdktrace.SpanExporter
	logger *slog.Logger
	failed atomic.Bool
}

// ExportSpans implements [sdktrace.SpanExporter].
func (l *logged) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := l.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err == nil && l.failed.Swap(false):
		l.logger.InfoContext(ctx, "traces are taken again")
	case err != nil && !l.failed.Swap(true):
		l.logger.WarnContext(ctx, "traces are not taken, and dropped", slog.Int("spans", len(spans)), slog.Any("error", err))
	}
	return nil
}
