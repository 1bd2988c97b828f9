package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// TestHistoryOfPublishedOutputs records what checks have measured in published outputs, in the order of
// their runs: not in a blocked output before its approval, and not in a run that only checks.
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
	w.MustFold(measured(published(w, second), 2))
	w.MustFold(measured(published(w, first), 1))
	w.MustFold(measured(blockedBy(w, third, "a"), 3))
	w.MustFold(measured(published(w, fourth), 4))
	row := func() *state.CheckHistory { return w.State.CheckHistory.Get(state.Key3{A: "test/a", B: "c"}) }
	require.JSONEq(t, `[{"run": "`+first+`", "value": 1}, {"run": "`+second+`", "value": 2}]`, row().Values)
	decide(w, third, event.DecisionApprove)
	require.JSONEq(t, `[{"run": "`+first+`", "value": 1}, {"run": "`+second+`", "value": 2}, {"run": "`+third+`", "value": 3}]`, row().Values)
}
