package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/metrics/prom"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/sweeper"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// recorded is the recorder of a process that serves every metric.
type recorded struct{ *prom.Recorder }

func newMetrics() recorded { return recorded{prom.NewRecorder(catalog)} }

// values returns the values of Servo's metrics. The keys are the series, as in the text format of Prometheus.
func (r recorded) values() map[string]float64 {
	w := httptest.NewRecorder()
	r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	values := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		if end := strings.LastIndexByte(line, ' '); strings.HasPrefix(line, "servo_") {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
			if err != nil {
				panic(err)
			}
			values[line[:end]] = n
		}
	}
	return values
}

func TestSeriesBeginAtZero(t *testing.T) {
	for service, series := range map[string][]string{
		"servo-compactor": {
			"servo_compaction_failures_total", "servo_publishes_total", `servo_handovers_total{result="error"}`, "servo_listing_lag_seconds",
			`servo_publish_duration_seconds_count{result="ok"}`, `servo_http_request_duration_seconds_count{route="POST /v1/compact"}`,
			`servo_http_requests_total{route="POST /v1/compact",status="500"}`, `servo_refused_callers_total{reason="not_allowed"}`,
		},
		"servo-dispatcher": {`servo_queue_tasks_total{kind="timer",result="error"}`, `servo_queue_tasks_total{kind="dispatch",result="created"}`, "servo_dispatches_waiting"},
		"servo-sweeper":    {`servo_sweeps_total{kind="full",result="ok"}`, `servo_sweeps_total{kind="due",result="error"}`, "servo_late_sweeps_total"},
	} {
		m := recorded{prom.NewRecorder(catalogOf(service))}
		begin(m, service)
		values := m.values()
		for _, name := range series {
			require.Contains(t, values, name, service)
		}
		for name, value := range values {
			require.Zero(t, value, name)
		}
	}
}

// The Terraform module's alerts read these fields.
func TestSweepsWithWorkAreLogged(t *testing.T) {
	var out strings.Builder
	s := &server{metrics: newMetrics(), logger: NewLogger(&out, slog.LevelInfo, true, "")}
	s.countSweep(sweeper.Result{}, nil)
	require.Empty(t, out.String(), "nothing was due")
	for _, tc := range []struct {
		result sweeper.Result
		err    error
		want   map[string]any
	}{
		{sweeper.Result{Full: true}, nil, map[string]any{"kind": "full", "result": "ok", "groups": 0.0}},
		{sweeper.Result{Domains: 2, Folded: 3, Late: 11 * time.Minute}, nil, map[string]any{"kind": "due", "groups": 3.0, "late_seconds": 660.0}},
		{sweeper.Result{}, errors.New("away"), map[string]any{"kind": "due", "result": "error"}},
	} {
		out.Reset()
		s.countSweep(tc.result, tc.err)
		line := map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(out.String()), &line))
		require.Equal(t, "swept", line["message"])
		require.Subset(t, line, tc.want)
	}
}

// The label kind has a value for every folder of the store that the services read or write.
func TestStoreKindsAreInTheCatalog(t *testing.T) {
	kinds := storeRequests.Labels[1].Values
	for _, key := range []string{
		ledger.Key(acme, "x"), manifest.Key(acme, 1), manifest.StateKey(acme, "runs", "l0", "x"), archive.Prefix(acme), wakeup.Prefix,
	} {
		kind, _, _ := strings.Cut(key, "/")
		require.Contains(t, kinds, kind, key)
	}
}

func TestUnknownLabelValuesCountAsOther(t *testing.T) {
	m := newMetrics()
	for _, route := range []string{"GET /a", "GET /b"} {
		m.Add(httpRequests, 1, route, "299")
	}
	require.Equal(t, 2.0, m.values()[`servo_http_requests_total{route="other",status="other"}`])
}

func TestMetricsNeedARecorder(t *testing.T) {
	var out strings.Builder
	code := RunSweeper(t.Context(), Process{
		Args:   []string{"--store", "/d", "--compactor-url", "http://c", "--dispatcher-url", "http://d", "--metrics-listen", "127.0.0.1:0"},
		Getenv: none, Stderr: &out, Clock: clock.System{},
	})
	require.Equal(t, exitUsage, code)
	require.Contains(t, out.String(), "this program cannot serve metrics")
}

func TestPhasesAreMeasured(t *testing.T) {
	s := &server{metrics: newMetrics()}
	s.measurePhase(compactor.PhaseFold, time.Millisecond, nil)
	s.measurePhase(compactor.PhasePublish, time.Second, nil)
	s.measurePhase(compactor.PhasePublish, time.Second, fmt.Errorf("publish: %w", manifest.ErrConflict))
	s.measurePhase(compactor.PhasePublish, time.Second, manifest.ErrNotCommitted)
	s.measurePhase(compactor.PhasePublish, -time.Second, errors.New("away"))
	values := s.metrics.(recorded).values()
	for series, want := range map[string]float64{
		"servo_publish_conflicts_total":                             2,
		"servo_fold_duration_seconds_sum":                           0.001,
		`servo_publish_duration_seconds_sum{result="ok"}`:           1,
		`servo_publish_duration_seconds_count{result="conflict"}`:   2,
		`servo_publish_duration_seconds_count{result="error"}`:      1,
		`servo_publish_duration_seconds_sum{result="error"}`:        0, // not negative, although the clock was set back
		`servo_publish_duration_seconds_bucket{result="ok",le="1"}`: 1,
	} {
		require.Equal(t, want, values[series], series)
	}
}

// When the gauges are read, they show the worst value among all open domains.
func TestBacklogsAreSampled(t *testing.T) {
	store := memblob.New(memblob.Options{})
	clk := &handClock{now: time.Unix(1_800_000_000, 0)}
	s := &server{metrics: newMetrics(), clock: clk, logger: silent}
	c := &compactors{store: store, codec: snapshot.NewMemoryCodec(), writer: "test", archiving: make(chan struct{}, 1), server: s}
	var open []*compactor.Compactor
	s.sampleBacklogs(func() []*compactor.Compactor { return open })
	require.Zero(t, s.metrics.(recorded).values()["servo_oldest_unfolded_entry_age_seconds"])
	for i, tenant := range []string{"a", "b"} {
		d := ids.Domain{Tenant: tenant, Workspace: "main"}
		entry := ids.AtTime(clk.now.Add(time.Duration(i-2) * time.Minute))
		_, err := store.Create(t.Context(), ledger.Key(d, entry), []byte("{}\n"))
		require.NoError(t, err)
		opened, err := c.open(t.Context(), d)
		require.NoError(t, err)
		opened.value.Announce(compactor.Request{Entries: []compactor.Entry{{ID: entry}}})
		open = append(open, opened.value)
	}
	values := s.metrics.(recorded).values()
	require.Equal(t, 120.0, values["servo_oldest_unfolded_entry_age_seconds"])
	require.Zero(t, values["servo_unreadable_entries"])
	require.Zero(t, values["servo_listing_lag_seconds"])
	clk.now = clk.now.Add(time.Minute)
	require.Equal(t, 180.0, s.metrics.(recorded).values()["servo_oldest_unfolded_entry_age_seconds"])
	open = open[1:]
	require.Equal(t, 120.0, s.metrics.(recorded).values()["servo_oldest_unfolded_entry_age_seconds"])
}
