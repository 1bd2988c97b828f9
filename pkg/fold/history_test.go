package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// The history contains the values that checks have measured in published outputs, in the order of the outputs' runs.
// A blocked output counts only after its approval. A run that only checks outputs does not count.
func TestHistoryOfPublishedOutputs(t *testing.T) {
	measured := func(p *event.TaskFinished, value int64) *event.TaskFinished {
		p.CheckResults[0].Measured = &value
		return p
	}
	w := foldtest.New(t)
	first := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.Pass(time.Second)
	second := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.Pass(time.Second)
	third := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.Pass(time.Second)
	checks := guarded("a", event.Quarantine{ExpiresSec: hour})
	checks.Kind = event.KindCheck
	fourth := w.Run(checks)
	of := published(w, second)
	of.CheckResults[0].Metric = "null_count of x" // measured before the metric of the check was changed
	w.MustFold(measured(of, 2))
	w.MustFold(measured(published(w, first), 1))
	w.MustFold(measured(blockedBy(w, third, "a"), 3))
	w.MustFold(measured(published(w, fourth), 4))
	row := func() *state.CheckHistory { return w.State.CheckHistory.Get(state.Key3{A: "test/a", B: "c"}) }
	require.JSONEq(t, `[{"run": "`+first+`", "value": 1}, {"run": "`+second+`", "metric": "null_count of x", "value": 2}]`, row().Values)
	decide(w, third, event.DecisionApprove)
	require.JSONEq(t, `[{"run": "`+first+`", "value": 1}, {"run": "`+second+`", "metric": "null_count of x", "value": 2}, {"run": "`+third+`", "value": 3}]`, row().Values)
}

// If a person marks an output as missing, the values that checks have measured in it are removed from the history,
// for every season (day of the week). If the mark is folded before the output, these values are never added.
func TestHistoryForgetsHiddenOutputs(t *testing.T) {
	results := func(p *event.TaskFinished, value int64) *event.TaskFinished {
		p.CheckResults[0].Measured = &value
		p.CheckResults = append(p.CheckResults, event.CheckResult{Name: "d", Phase: "POST", Passed: true, Season: "monday", Measured: &value})
		return p
	}
	missing := func(w *foldtest.World, run string) *event.PartitionsMarked {
		p := marking(w, run, event.MarkMissing)
		p.Partitions[0].RunID = run
		return p
	}
	w := foldtest.New(t)
	runs := make([]string, 3)
	for i := range runs {
		runs[i] = w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
		w.Pass(time.Second)
	}
	values := func(check, season string) string {
		return w.State.CheckHistory.Get(state.Key3{A: "test/a", B: check, C: season}).Values
	}
	w.MustFold(results(published(w, runs[0]), 1))
	w.MustFold(results(published(w, runs[1]), 2))
	w.MustFold(missing(w, runs[1]))
	want := `[{"run": "` + runs[0] + `", "value": 1}]`
	require.JSONEq(t, want, values("c", ""))
	require.JSONEq(t, want, values("d", "monday"))

	w.MustFold(missing(w, runs[2]))
	w.MustFold(results(published(w, runs[2]), 3))
	require.JSONEq(t, want, values("c", ""), "the mark was folded first")

	other := marking(w, runs[0], event.MarkStale)
	other.Partitions[0].RunID = runs[0]
	w.MustFold(other)
	require.JSONEq(t, want, values("c", ""), "a stale output still looks as it usually does")
	w.MustFold(missing(w, runs[0]))
	require.JSONEq(t, `[]`, values("c", ""))
	require.JSONEq(t, `[]`, values("d", "monday"))
}
