package api_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A project can change the metric of a check without changing its name, for example from the number of distinct
// values to the number of NULLs. The check must not compare the number of NULLs with earlier numbers of distinct
// values.
func TestAnomalyOfOtherMetricHasNoHistory(t *testing.T) {
	watched := func(script, metric string) plan.Asset {
		a := asset("raw/a", script)
		a.Work.Checks = []quality.Check{{
			Name: "anomaly_x", Kind: quality.Anomaly, Columns: []string{"x"}, Severity: quality.Critical,
			Params: quality.Params{Watch: &quality.Watch{Metric: metric, Window: 30, Threshold: 6000}},
		}}
		return a
	}
	f := serve(t, watched(`(echo x,y; seq 100 | sed 's/$/,1/') > $SERVO_OUTPUT/data.csv`, quality.MetricDistinct))
	message := func() (text string) {
		run := f.run(t)
		snap, err := f.stack.Current(t.Context())
		require.NoError(t, err)
		snap.State.CheckResults.Ascend(state.Key3{A: run}, func(r *state.CheckResult) bool {
			if r.RunID == run {
				text = r.Message
			}
			return r.RunID == run
		})
		return text
	}
	for range quality.LeastHistory {
		require.Contains(t, message(), "learning")
	}
	require.Empty(t, message())
	f.project.Assets = []plan.Asset{watched(`(echo x,y; seq 100 | sed 's/.*/,1/') > $SERVO_OUTPUT/data.csv`, quality.MetricNulls)}
	require.Equal(t, "learning: 0 of 7 values", message(), "all values are NULL, and no earlier NULLs were counted")
}
