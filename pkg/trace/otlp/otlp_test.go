package otlp_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

const runID = "01K2HWBMQGDGNQW7STKNDRRKH1"

func open(t *testing.T, endpoint string, log io.Writer) *trace.Tracer {
	t.Helper()
	tracer, err := otlp.Open(t.Context(), trace.Options{Endpoint: endpoint, Ratio: 1, Service: "servo-x", Instance: "1"},
		slog.New(slog.NewTextHandler(log, nil)))
	require.NoError(t, err)
	return tracer
}

func spans(ctx context.Context, tracer *trace.Tracer, n int) {
	for range n {
		_, span := tracer.Start(ctx, "x", trace.About{RunID: runID})
		span.End(nil)
	}
}

func TestOpenExportsSpansWithResource(t *testing.T) {
	var got collector.ExportTraceServiceRequest
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		path = r.URL.Path
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, &got)
		}
		if err != nil {
			t.Errorf("read: %v", err)
		}
	}))
	t.Cleanup(server.Close)
	tracer := open(t, server.URL, io.Discard)
	spans(t.Context(), tracer, 1)
	require.NoError(t, tracer.Close(t.Context()), "Close exports queued spans")
	require.Equal(t, "/v1/traces", path)
	require.Len(t, got.ResourceSpans, 1)
	of := map[string]string{}
	for _, attribute := range got.ResourceSpans[0].Resource.Attributes {
		of[attribute.Key] = attribute.Value.GetStringValue()
	}
	require.Equal(t, map[string]string{"service.name": "servo-x", "service.instance.id": "1"}, of)
	span := got.ResourceSpans[0].ScopeSpans[0].Spans[0]
	id := trace.ID(runID)
	require.Equal(t, id[:], span.TraceId)
}

// hanging starts a collector that accepts requests but does not respond until the test ends.
func hanging(t *testing.T) (endpoint string, asked <-chan struct{}) {
	t.Helper()
	requests, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices a disconnect only after it has read the body
		once.Do(func() { close(requests) })
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(ended); server.Close() })
	return server.URL, requests
}

func TestHangingCollectorDoesNotBlock(t *testing.T) {
	endpoint, asked := hanging(t)
	tracer := open(t, endpoint, io.Discard)
	spans(t.Context(), tracer, 1)
	<-asked // now the request to the collector hangs
	const more = 50_000
	began := time.Now() //nolint:forbidigo // the test measures real time
	spans(t.Context(), tracer, more)
	require.Less(t, time.Since(began), 5*time.Second, "%d spans, few of which fit the queue", more) //nolint:forbidigo // see above
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, tracer.Close(ctx), context.DeadlineExceeded, "Close waits until its context ends")
}

func TestFailingCollectorLogsOnce(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(server.Close)
	var log bytes.Buffer
	tracer := open(t, server.URL, &log)
	spans(t.Context(), tracer, 1500)
	require.NoError(t, tracer.Close(t.Context()))
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("trace export failed")), log.String())
	require.Contains(t, log.String(), "403")
}
