package service

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/sweeper"
)

func TestSeriesBeginAtZero(t *testing.T) {
	for service, series := range map[string][]string{
		"servo-compactor": {
			"servo_compaction_failures_total", "servo_publishes_total", `servo_handovers_total{result="error"}`,
			`servo_http_requests_total{route="POST /v1/compact",status="500"}`, `servo_refused_callers_total{reason="not_allowed"}`,
		},
		"servo-dispatcher": {`servo_queue_tasks_total{kind="timer",result="error"}`, `servo_queue_tasks_total{kind="dispatch",result="created"}`, "servo_dispatches_waiting"},
		"servo-sweeper":    {`servo_sweeps_total{kind="full",result="ok"}`, `servo_sweeps_total{kind="due",result="error"}`, "servo_late_sweeps_total"},
	} {
		m := newMetrics()
		m.begin(service)
		for _, name := range series {
			require.Contains(t, m.values, name, service)
		}
		for name, value := range m.values {
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
