package service

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

// brought is the traceparent header of a caller that is already in a trace.
const brought = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTracesConfiguration(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no URL":  {[]string{"--traces", "localhost:4318"}, `--traces "localhost:4318" is not a URL`},
		"zero":    {[]string{"--traces", "http://c:4318", "--trace-ratio", "0"}, "--trace-ratio is 0"},
		"above 1": {[]string{"--traces", "http://c:4318", "--trace-ratio", "2"}, "--trace-ratio is 2"},
		"NaN":     {[]string{"--traces", "http://c:4318", "--trace-ratio", "NaN"}, "--trace-ratio is NaN"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(compactorKind, append([]string{"--store", "/d"}, tc.args...), none, os.Stderr)
			require.ErrorContains(t, err, tc.want)
		})
	}
	env := map[string]string{"SERVO_STORE": "/d", "SERVO_TRACES": "http://c:4318", "SERVO_TRACE_RATIO": "0.25", "SERVO_TRACE_PROJECT": "p"}
	c, err := parse(compactorKind, nil, func(name string) string { return env[name] }, os.Stderr)
	require.NoError(t, err)
	require.Equal(t, Traces{URL: "http://c:4318", Ratio: 0.25, Project: "p"}, c.Traces)
	_, err = c.Traces.Open(t.Context(), nil, "x", "1", silent)
	require.ErrorContains(t, err, "cannot send spans")
}

func TestLogNamesTheCallersTrace(t *testing.T) {
	var log bytes.Buffer
	s := newServer(t)
	defer s.endpoint.Close()
	s.logger = NewLogger(&log, slog.LevelDebug, true, "my-project")
	s.mux.HandleFunc("POST /v1/things", func(_ http.ResponseWriter, r *http.Request) { s.logger.InfoContext(r.Context(), "inside") })
	request := httptest.NewRequest(http.MethodPost, "/v1/things", http.NoBody)
	request.Header.Set("traceparent", brought)
	s.handler().ServeHTTP(httptest.NewRecorder(), request)
	s.handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/things", http.NoBody))
	lines := bytes.Split(bytes.TrimSpace(log.Bytes()), []byte("\n"))
	require.Len(t, lines, 4)
	for i, text := range lines {
		var line map[string]any
		require.NoError(t, json.Unmarshal(text, &line))
		if i < 2 {
			require.Equal(t, "projects/my-project/traces/4bf92f3577b34da6a3ce929d0e0e4736", line["logging.googleapis.com/trace"])
			require.Equal(t, "00f067aa0ba902b7", line["logging.googleapis.com/spanId"])
			require.Equal(t, true, line["logging.googleapis.com/trace_sampled"])
		} else {
			require.NotContains(t, line, "logging.googleapis.com/trace")
		}
	}
}

func TestOnlyAuthenticatedRequestsGetSpans(t *testing.T) {
	s := newServer(t)
	defer s.endpoint.Close()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithIDGenerator(trace.Generator{}))
	s.traces = trace.New(provider, provider.Shutdown)
	s.mux.HandleFunc("POST /v1/things", func(http.ResponseWriter, *http.Request) {})
	ask := func(method, path string) {
		request := httptest.NewRequest(method, path, http.NoBody)
		request.Header.Set("traceparent", brought)
		s.handler().ServeHTTP(httptest.NewRecorder(), request)
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/nowhere"} {
		ask(http.MethodGet, path)
	}
	require.Empty(t, exporter.GetSpans())
	ask(http.MethodPost, "/v1/things")
	require.Len(t, exporter.GetSpans(), 1)
	span := exporter.GetSpans()[0]
	require.Equal(t, "POST /v1/things", span.Name)
	require.Equal(t, oteltrace.SpanKindServer, span.SpanKind)
	require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", span.SpanContext.TraceID().String())
	require.Equal(t, "00f067aa0ba902b7", span.Parent.SpanID().String())

	twice := httptest.NewRequest(http.MethodPost, "/v1/things", http.NoBody)
	twice.Header["Traceparent"] = []string{brought, brought}
	s.handler().ServeHTTP(httptest.NewRecorder(), twice)
	span = exporter.GetSpans()[1]
	require.NotEqual(t, "4bf92f3577b34da6a3ce929d0e0e4736", span.SpanContext.TraceID().String(), "two headers start a new trace")
	require.False(t, span.Parent.IsValid())
}

// telling is a TCP network. When a service begins to listen, telling sends the service's URL to the channel in the
// field url.
type telling struct {
	tcp
	url chan string
}

// Listen implements [Network].
func (n telling) Listen(ctx context.Context, address string, logger *slog.Logger) (Endpoint, error) {
	endpoint, err := n.tcp.Listen(ctx, address, logger)
	if err == nil {
		n.url <- endpoint.URL()
	}
	return endpoint, err
}

// sweeping runs a sweeper that sends its spans to collector, requests one sweep, and returns the log of the sweeper.
func sweeping(t *testing.T, collector http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(collector)
	t.Cleanup(server.Close)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	network := telling{url: make(chan string, 1)}
	var log bytes.Buffer
	ended := make(chan int, 1)
	go func() {
		ended <- RunSweeper(ctx, Process{
			Args:   []string{"--store", "mem", "--listen", "127.0.0.1:0", "--compactor-url", "http://c:1", "--dispatcher-url", "http://d:1", "--traces", server.URL},
			Getenv: none, Stderr: &log, Clock: clock.System{}, Network: network, OpenTraces: otlp.Open,
			OpenStore: func(context.Context, string) (blob.Store, io.Closer, error) {
				return memblob.New(memblob.Options{}), io.NopCloser(nil), nil
			},
		})
	}()
	res, err := http.Post(<-network.url+"/v1/sweep", "application/json", nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	stop()
	require.Equal(t, exitDone, <-ended)
	return log.String()
}

func TestHangingCollectorDelaysNothing(t *testing.T) {
	ended := make(chan struct{})
	var end sync.Once
	t.Cleanup(func() { end.Do(func() { close(ended) }) })
	log := sweeping(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices a closed connection only after the body has been read
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	})
	end.Do(func() { close(ended) })
	require.Contains(t, log, "could not send the last spans")
}

func TestLastSpansAreSentAtShutdown(t *testing.T) {
	taken := make(chan int64, 10)
	log := sweeping(t, func(_ http.ResponseWriter, r *http.Request) { taken <- r.ContentLength })
	require.NotContains(t, log, "could not send")
	require.NotContains(t, log, "trace export failed")
	require.NotEmpty(t, taken)
}
