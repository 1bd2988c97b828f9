// Package otlp exports spans to a collector by OTLP over HTTP. This package is not a stable API.
//
// A background goroutine sends spans in batches. If the collector fails, hangs or is unreachable, spans are dropped
// when a queue of limited size is full, and one line is logged. The program is not affected.
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
	// batchDelay is how long a batch waits for more spans. It is short, because a serverless process may get no CPU time
	// after it has answered its requests.
	batchDelay = time.Second
	// exportTimeout is the timeout for the export of a batch, including retries.
	exportTimeout = 10 * time.Second
	// maxQueued is the maximum number of queued spans. When the queue is full, spans are dropped.
	maxQueued = 4096
	// maxBatch is the maximum number of spans in a batch.
	maxBatch = 512
)

// Open returns a tracer that exports its spans. It does not wait for the collector.
func Open(ctx context.Context, o trace.Options, logger *slog.Logger) (*trace.Tracer, error) {
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	if strings.Trim(endpoint.Path, "/") == "" {
		endpoint.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint.String()), otlptracehttp.WithTimeout(exportTimeout))
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", o.Endpoint, err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithIDGenerator(trace.Generator{}),
		// Sampling by trace id, and not by parent, lets every process make the same decision, because every process derives
		// the trace id from the run id.
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(o.Ratio)),
		sdktrace.WithBatcher(&logged{SpanExporter: exporter, logger: logger}, sdktrace.WithBatchTimeout(batchDelay),
			sdktrace.WithExportTimeout(exportTimeout), sdktrace.WithMaxQueueSize(maxQueued), sdktrace.WithMaxExportBatchSize(maxBatch)),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", o.Service), attribute.String("service.instance.id", o.Instance))),
	)
	return trace.New(provider, provider.Shutdown), nil
}

// logged logs the first failed export, and the first successful one after it. It hides the
// error from the SDK, which would log every failure.
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
		l.logger.InfoContext(ctx, "trace export works again")
	case err != nil && !l.failed.Swap(true):
		l.logger.WarnContext(ctx, "trace export failed, dropping spans", slog.Int("spans", len(spans)), slog.Any("error", err))
	}
	return nil
}
