// Package traces_test checks the spans that Servo's programs send to a collector for a run.
package traces_test

import (
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
	"github.com/servo-orchestration/servo/pkg/worker"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

// span is a received span and the program that sent it.
type span struct {
	*tracepb.Span
	service string
}

// attribute returns the value of a text attribute.
func (s span) attribute(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// collector keeps the spans that it receives.
type collector struct {
	mu    sync.Mutex
	spans []span
}

// ServeHTTP implements [http.Handler].
func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request collectorpb.ExportTraceServiceRequest
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range request.ResourceSpans {
		service := ""
		for _, a := range from.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range from.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, span{s, service})
			}
		}
	}
}

// spansOf returns the spans of a trace.
func (c *collector) spansOf(id [16]byte) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var spans []span
	for _, s := range c.spans {
		if [16]byte(s.TraceId) == id {
			spans = append(spans, s)
		}
	}
	return spans
}

func open(t *testing.T, endpoint, service string) *trace.Tracer {
	t.Helper()
	tracer, err := otlp.Open(t.Context(), trace.Options{Endpoint: endpoint, Ratio: 1, Service: service}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { _ = tracer.Close(context.WithoutCancel(t.Context())) }) // the collector may be closed
	return tracer
}

func TestRunOnServicesIsOneTrace(t *testing.T) {
	var got collector
	server := httptest.NewServer(&got)
	t.Cleanup(server.Close)
	var handler http.Handler
	c := clustertest.Start(t, clustertest.Options{
		Traces: server.URL,
		Worker: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }),
	})
	w, err := worker.Open(worker.Config{
		Store: c.Store, Clock: clock.System{}, Nonce: ids.NewSource(clock.System{}.Now, nil).New, Keyring: c.WorkerKeys, WorkerID: "w",
		ScratchDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Traces: open(t, server.URL, "servo-worker"),
		Executor: func(context.Context, worker.Execution) error { return nil },
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close(context.WithoutCancel(t.Context())) })
	handler = w.Handler()

	asset := func(name string, deps ...ids.AssetKey) plan.Asset {
		return plan.Asset{Key: ids.AssetKey{Namespace: "raw", Name: name}, Deps: deps, Work: plan.Work{Command: []string{"true"}}}
	}
	acme := ids.Domain{Tenant: "acme", Workspace: "prod"}
	first := asset("a")
	handle, err := c.TracedEngine(acme, open(t, server.URL, "servo")).Run(t.Context(), engine.RunRequest{
		Plan: plan.Request{Root: t.TempDir(), All: true, Assets: []plan.Asset{first, asset("b", first.Key)}}, Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(t, err)

	want := []string{"servo trigger", "servo POST /v1/compact", "servo-compactor POST /v1/compact", "servo-compactor fold", "servo-compactor run"}
	for _, task := range []string{"raw/a", "raw/b"} {
		for _, name := range []string{"servo-dispatcher dispatch", "servo-worker attempt", "servo-dispatcher callback started", "servo-dispatcher callback finished"} {
			want = append(want, name+" "+task)
		}
	}
	want = append(want, "servo-worker stage", "servo-worker execute", "servo-worker commit")
	var missing []string
	c.Eventually("all spans of the run", func() bool {
		missing = slices.Clone(want)
		for _, s := range got.spansOf(trace.ID(handle.RunID)) {
			name := strings.TrimSpace(s.service + " " + s.Name + " " + s.attribute("servo.task_key"))
			missing = slices.DeleteFunc(missing, func(w string) bool { return w == name })
		}
		return len(missing) == 0
	})

	spans := got.spansOf(trace.ID(handle.RunID))
	byID, byName := map[string]span{}, map[string]span{}
	for _, s := range spans {
		byID[hex.EncodeToString(s.SpanId)], byName[s.Name+" "+s.attribute("servo.task_key")] = s, s
	}
	root := byName["run "]
	require.Empty(t, root.ParentSpanId)
	require.Equal(t, "SUCCEEDED", root.attribute("servo.outcome"))
	for _, s := range spans {
		up := s
		for range len(spans) {
			if len(up.ParentSpanId) == 0 {
				break
			}
			parent, ok := byID[hex.EncodeToString(up.ParentSpanId)]
			require.True(t, ok, "the parent of %s %s is missing", up.service, up.Name)
			up = parent
		}
		require.Equal(t, root.SpanId, up.SpanId, "%s %s belongs to the run's span", s.service, s.Name)
	}
	for _, task := range []string{"raw/a", "raw/b"} {
		attempt := byName["attempt "+task]
		id := trace.SpanID(ids.AttemptID(acme, handle.RunID, task, 1))
		require.Equal(t, id[:], attempt.SpanId)
		require.Equal(t, byName["dispatch "+task].SpanId, attempt.ParentSpanId)
		require.Equal(t, attempt.SpanId, byName["callback finished "+task].ParentSpanId)
	}
	require.Less(t, byName["trigger "].StartTimeUnixNano, byName["dispatch raw/a"].StartTimeUnixNano)
	require.Less(t, byName["callback finished raw/a"].StartTimeUnixNano, byName["dispatch raw/b"].StartTimeUnixNano)
	require.Less(t, byName["dispatch raw/b"].StartTimeUnixNano, byName["callback finished raw/b"].StartTimeUnixNano)
	require.Contains(t, c.Logs(), trace.ID(handle.RunID).String(), "log lines contain the trace id")
}
