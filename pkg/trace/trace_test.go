package trace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/trace"
)

var acme = ids.Domain{Tenant: "acme", Workspace: "prod"}

// recorded returns a tracer, and a function that returns the spans that have ended, by name.
func recorded(t *testing.T, ratio float64) (*trace.Tracer, func() map[string]tracetest.SpanStub) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithIDGenerator(trace.Generator{}),
		sdktrace.WithSampler(sdktrace.TraceIDRatioBased(ratio)))
	return trace.New(provider, provider.Shutdown), func() map[string]tracetest.SpanStub {
		spans := map[string]tracetest.SpanStub{}
		for _, span := range exporter.GetSpans() {
			spans[span.Name] = span
		}
		return spans
	}
}

func about(runID string) trace.About {
	return trace.About{
		Tenant: acme.Tenant, Workspace: acme.Workspace, RunID: runID, TaskKey: "raw/a",
		Attempt: 1, AttemptID: ids.AttemptID(acme, runID, "raw/a", 1),
	}
}

func TestIDsAreDerivedAndNeverZero(t *testing.T) {
	source := ids.NewSource(clock.System{}.Now, nil)
	traces, spans := map[oteltrace.TraceID]bool{}, map[oteltrace.SpanID]bool{}
	const runs, attempts = 100, 5
	for range runs {
		run := source.New()
		require.Equal(t, trace.ID(run), trace.ID(run), "a run has one trace")
		require.True(t, trace.ID(run).IsValid())
		traces[trace.ID(run)], spans[trace.SpanID(run)] = true, true
		for attempt := range int32(attempts) {
			spans[trace.SpanID(ids.AttemptID(acme, run, "raw/a", attempt+1))] = true
		}
	}
	require.Len(t, traces, runs, "one trace per run")
	require.Len(t, spans, runs*(attempts+1), "one span per run and per attempt")
	require.Equal(t, "0198a3c5d2f06c2b7e1f3a9d5b8c4e21", trace.ID("01K2HWBMQGDGNQW7STKNDRRKH1").String(), "the bytes of the ULID")
	require.Equal(t, "7e1f3a9d5b8c4e21", trace.SpanID("01K2HWBMQGDGNQW7STKNDRRKH1").String())
	for _, id := range []string{strings.Repeat("0", 26), "", "no ULID", "01K2HWBMQG0000000000000000"} {
		require.True(t, trace.ID(id).IsValid(), id)
		require.True(t, trace.SpanID(id).IsValid(), id)
	}
}

func TestSpansOfTaskFormOneTrace(t *testing.T) {
	tracer, spans := recorded(t, 1)
	run := ids.NewSource(clock.System{}.Now, nil).New()
	a := about(run)
	began := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	for _, name := range []string{"trigger", "dispatch"} {
		_, span := tracer.Start(t.Context(), name, a)
		span.End(nil)
	}
	ctx, attempt := tracer.StartAttempt(t.Context(), a, began)
	_, phase := tracer.Start(ctx, "execute", trace.About{})
	phase.End(errors.New("broken"))
	attempt.End(nil)
	_, report := tracer.StartReport(t.Context(), "finished", a)
	report.Answered(http.StatusOK)
	tracer.Run(t.Context(), trace.About{RunID: run}, "SUCCEEDED", began, began.Add(time.Minute))

	got := spans()
	require.Len(t, got, 6)
	for name, span := range got {
		require.Equal(t, trace.ID(run), span.SpanContext.TraceID(), name)
	}
	root := got["run"]
	require.False(t, root.Parent.IsValid())
	require.Equal(t, trace.SpanID(run), root.SpanContext.SpanID())
	require.Equal(t, time.Minute, root.EndTime.Sub(root.StartTime))
	require.Equal(t, trace.SpanID(a.AttemptID), got["attempt"].SpanContext.SpanID())
	require.Equal(t, began, got["attempt"].StartTime)
	for child, parent := range map[string]string{
		"trigger": "run", "dispatch": "run", "attempt": "run", "execute": "attempt", "callback finished": "attempt",
	} {
		require.Equal(t, got[parent].SpanContext.SpanID(), got[child].Parent.SpanID(), child)
	}
	require.NotEqual(t, got["attempt"].SpanContext.SpanID(), got["execute"].SpanContext.SpanID(), "no other span has the attempt's id")
	require.Equal(t, "broken", got["execute"].Status.Description)
}

func TestStartLinksRunSpanToRequest(t *testing.T) {
	tracer, spans := recorded(t, 1)
	run := ids.NewSource(clock.System{}.Now, nil).New()
	ctx, request := tracer.Start(t.Context(), "request", trace.About{})
	inside, dispatch := tracer.Start(ctx, "dispatch", about(run))
	_, again := tracer.Start(inside, "attempt under it", about(run))
	again.End(nil)
	dispatch.End(nil)
	request.End(nil)
	got := spans()
	require.Equal(t, trace.ID(run), got["dispatch"].SpanContext.TraceID())
	require.Equal(t, got["request"].SpanContext.SpanID(), got["dispatch"].Links[0].SpanContext.SpanID())
	require.NotEqual(t, trace.ID(run), got["request"].SpanContext.TraceID())
	require.Equal(t, got["dispatch"].SpanContext.SpanID(), got["attempt under it"].Parent.SpanID(), "the parent in the run's trace is kept")
	require.Empty(t, got["attempt under it"].Links)
}

func TestProcessesSampleTheSameRuns(t *testing.T) {
	one, ofOne := recorded(t, 0.5)
	other, ofOther := recorded(t, 0.5)
	now := clock.System{}.Now()
	source := ids.NewSource(func() time.Time { // the ids are from different milliseconds
		now = now.Add(time.Millisecond)
		return now
	}, nil)
	const runs = 200
	for range runs {
		run := source.New()
		_, span := one.Start(t.Context(), run, trace.About{RunID: run})
		span.End(nil)
		_, span = other.StartAttempt(t.Context(), about(run), time.Unix(0, 0))
		span.End(nil)
		_, sent := ofOne()[run]
		require.Equal(t, sent, ofOther()["attempt"].SpanContext.TraceID() == trace.ID(run))
	}
	require.InDelta(t, runs/2, len(ofOne()), runs/4)
}

func TestNilTracerDoesNothing(t *testing.T) {
	var none *trace.Tracer
	ctx := t.Context()
	got, span := none.Start(ctx, "x", about("r"))
	require.Equal(t, ctx, got)
	span.Set("x", 1)
	span.End(nil)
	span.Answered(http.StatusOK)
	_, span = none.StartAttempt(ctx, about("r"), time.Time{})
	require.Nil(t, span)
	_, span = none.StartReport(ctx, "started", about("r"))
	require.Nil(t, span)
	none.Run(ctx, about("r"), "SUCCEEDED", time.Time{}, time.Time{})
	require.NoError(t, none.Close(ctx))
	client := &http.Client{}
	require.Same(t, client, none.Client(client))
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
	served, end := none.Serve(request, "GET /")
	end(http.StatusOK)
	require.Same(t, request, served)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, span := none.Start(ctx, "x", trace.About{RunID: "r"})
		span.End(nil)
	}))
}

func TestClientAndServerSpansShareTrace(t *testing.T) {
	caller, ofCaller := recorded(t, 1)
	served, ofServed := recorded(t, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.WithContext(trace.WithinRequest(r.Context(), r.Header))
		_, end := served.Serve(r, "POST /v1/compact")
		w.WriteHeader(http.StatusInternalServerError)
		end(http.StatusInternalServerError)
	}))
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/compact", http.NoBody)
	require.NoError(t, err)
	res, err := caller.Client(server.Client()).Do(request)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	call, answer := ofCaller()["POST /v1/compact"], ofServed()["POST /v1/compact"]
	require.True(t, call.SpanContext.IsValid())
	require.Equal(t, call.SpanContext.TraceID(), answer.SpanContext.TraceID())
	require.Equal(t, call.SpanContext.SpanID(), answer.Parent.SpanID())
	require.Equal(t, "500 Internal Server Error", answer.Status.Description)
	require.Equal(t, "500 Internal Server Error", call.Status.Description)
	require.Empty(t, request.Header.Get(trace.Header), "the caller's request is unchanged")
}

const (
	outer = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	other = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"
)

func TestWithinRequestIgnoresTwoTraceparents(t *testing.T) {
	for _, c := range []struct {
		parents, states []string
		trace, state    string
	}{
		{[]string{outer}, nil, "4bf92f3577b34da6a3ce929d0e0e4736", ""},
		{[]string{outer}, []string{"a=1", "b=2"}, "4bf92f3577b34da6a3ce929d0e0e4736", "a=1,b=2"},
		{[]string{outer}, []string{"not a state"}, "4bf92f3577b34da6a3ce929d0e0e4736", ""},
		{[]string{outer, other}, []string{"a=1"}, "", ""},
		{[]string{outer, outer}, nil, "", ""},
		{nil, []string{"a=1"}, "", ""},
	} {
		ctx := trace.WithinRequest(t.Context(), http.Header{"Traceparent": c.parents, "Tracestate": c.states})
		span := oteltrace.SpanContextFromContext(ctx)
		require.Equal(t, c.state, span.TraceState().String())
		if c.trace == "" {
			require.False(t, span.IsValid())
			continue
		}
		require.Equal(t, c.trace, span.TraceID().String())
	}
}

func TestClientSendsTracestateOfSameTraceOnly(t *testing.T) {
	tracer, _ := recorded(t, 1)
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	t.Cleanup(server.Close)
	ask := func(ctx context.Context) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, http.NoBody)
		require.NoError(t, err)
		request.Header.Set("Tracestate", "stale=1")
		res, err := tracer.Client(server.Client()).Do(request)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	ctx := trace.WithinRequest(t.Context(), http.Header{"Traceparent": {outer}, "Tracestate": {"vendor=1"}})
	ask(ctx)
	require.Equal(t, []string{"vendor=1"}, got["Tracestate"])
	require.Contains(t, got.Get("Traceparent"), "4bf92f3577b34da6a3ce929d0e0e4736")
	parent, state := trace.Active(ctx)
	require.Equal(t, outer, parent)
	require.Equal(t, "vendor=1", state)

	ofRun, span := tracer.Start(ctx, "dispatch", about("01K2HWBMQGDGNQW7STKNDRRKH1"))
	defer span.End(nil)
	ask(ofRun)
	require.Empty(t, got["Tracestate"], "a run has a trace of its own")
}

// line contains the trace fields of a log line.
type line struct {
	Trace   string         `json:"logging.googleapis.com/trace"`         //nolint:tagliatelle // Cloud Logging's name
	Span    string         `json:"logging.googleapis.com/spanId"`        //nolint:tagliatelle // Cloud Logging's name
	Sampled *bool          `json:"logging.googleapis.com/trace_sampled"` //nolint:tagliatelle // Cloud Logging's name
	With    string         `json:"with"`
	Group   map[string]any `json:"group"`
}

func logged(t *testing.T, ctx context.Context, project string, log func(*slog.Logger) *slog.Logger) line { //nolint:revive // t comes first in tests
	t.Helper()
	var out bytes.Buffer
	log(slog.New(trace.Log(slog.NewJSONHandler(&out, nil), project))).InfoContext(ctx, "well", slog.String("own", "x"))
	var l line
	require.NoError(t, json.Unmarshal(out.Bytes(), &l), out.String())
	require.Equal(t, 1, strings.Count(out.String(), "\n"))
	return l
}

func plain(l *slog.Logger) *slog.Logger { return l }

func TestLogAddsTraceFields(t *testing.T) {
	tracer, _ := recorded(t, 1)
	ctx, span := tracer.Start(t.Context(), "x", about("01K2HWBMQGDGNQW7STKNDRRKH1"))
	defer span.End(nil)
	got := logged(t, ctx, "my-project", plain)
	require.Equal(t, "projects/my-project/traces/0198a3c5d2f06c2b7e1f3a9d5b8c4e21", got.Trace)
	require.Equal(t, oteltrace.SpanContextFromContext(ctx).SpanID().String(), got.Span)
	require.True(t, *got.Sampled)
	require.Equal(t, "0198a3c5d2f06c2b7e1f3a9d5b8c4e21", logged(t, ctx, "", plain).Trace, "without a project")

	// Log lines name the trace of a caller even if the trace is not sampled.
	brought := trace.Within(t.Context(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "")
	got = logged(t, brought, "my-project", plain)
	require.Equal(t, "projects/my-project/traces/4bf92f3577b34da6a3ce929d0e0e4736", got.Trace)
	require.Equal(t, "00f067aa0ba902b7", got.Span)
	require.False(t, *got.Sampled)

	for _, none := range []string{"", "00-0-0-00", "x", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"} {
		got = logged(t, trace.Within(t.Context(), none, ""), "my-project", plain)
		require.Empty(t, got.Trace, none)
		require.Nil(t, got.Sampled, none)
	}
}

func TestLogAddsTraceFieldsOutsideGroups(t *testing.T) {
	ctx := trace.Within(t.Context(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "")
	grouped := func(l *slog.Logger) *slog.Logger { return l.With("with", "1").WithGroup("group").With("inner", "2") }
	got := logged(t, ctx, "", grouped)
	require.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", got.Trace)
	require.Equal(t, "1", got.With)
	require.Equal(t, map[string]any{"inner": "2", "own": "x"}, got.Group)
	require.Equal(t, map[string]any{"inner": "2", "own": "x"}, logged(t, t.Context(), "", grouped).Group)
}
