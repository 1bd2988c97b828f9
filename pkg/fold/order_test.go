package fold_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// gapPlan returns the tasks of a run that selects A and C of the chain A → B → C. A has several partitions.
func gapPlan(t *testing.T, days int) []event.TaskDef {
	t.Helper()
	a, b, c := ids.AssetKey{Namespace: "n", Name: "a"}, ids.AssetKey{Namespace: "n", Name: "b"}, ids.AssetKey{Namespace: "n", Name: "c"}
	last := fmt.Sprintf("2025-01-%02d", days)
	work := plan.Work{SQL: "SELECT 1"}
	p, err := plan.Build(plan.Request{
		Assets: []plan.Asset{
			{Key: a, Work: work, Partitions: space.Days("2025-01-01", last)},
			{Key: b, Work: work, Deps: []ids.AssetKey{a}},
			{Key: c, Work: work, Deps: []ids.AssetKey{b}},
		},
		Select:     []ids.AssetKey{a, c},
		Partitions: []plan.Selection{{Clauses: []space.Clause{{Dimension: "date", Items: []space.Item{{First: "2025-01-01", Last: last}}}}}},
		Materialized: func(key ids.AssetKey) []plan.Input {
			return []plan.Input{{MaterializationID: "M-" + key.String(), URI: "assets/" + key.String() + "/"}}
		},
	})
	require.NoError(t, err)
	defs := make([]event.TaskDef, len(p.Tasks))
	for i := range p.Tasks {
		defs[i] = p.Tasks[i].TaskDef
	}
	return defs
}

// The tasks of A end in a random order with random outcomes. C must be blocked until all of them have ended, and must
// then become ready, whatever the outcomes are.
func TestOrderNodeHoldsTasksUntilAllHaveEnded(t *testing.T) {
	const runs = 1000
	rng := rand.New(rand.NewPCG(1, 2))
	outcomes := []event.Outcome{event.Succeeded, event.Failed, event.Skipped, event.TimedOut}
	for i := range runs {
		w := foldtest.New(t)
		defs := gapPlan(t, 1+i%3)
		run := w.Run(defs...)
		var open []string
		for _, def := range defs {
			if def.AssetKey == "n/a" && def.Kind == event.KindTask {
				open = append(open, def.TaskKey)
			}
		}
		rng.Shuffle(len(open), func(i, j int) { open[i], open[j] = open[j], open[i] })
		for _, key := range open {
			require.Equal(t, state.TaskBlocked, w.Task(run, "n/c").State, "%s has not ended", key)
			w.MustFold(w.Finished(run, key, 1, outcomes[rng.IntN(len(outcomes))]))
		}
		require.Equal(t, state.TaskReady, w.Task(run, "n/c").State)
		w.MustFold(w.Finished(run, "n/c", 1, event.Succeeded))
		require.True(t, w.State.Runs.Get(run).State.Terminal())
	}
}
