package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// If a request selects partitions and names a status, Servo considers the selected partitions and the partitions that
// they read. The request runs the considered partitions that have this status.
func TestChooseCombinesPartitionsAndStatus(t *testing.T) {
	raw, clean := ids.AssetKey{Namespace: "raw", Name: "events"}, ids.AssetKey{Namespace: "clean", Name: "daily"}
	window := space.Map{Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Window, From: -1, To: 0}}}
	assets := []plan.Asset{
		{Key: clean, Deps: []ids.AssetKey{raw}, Partitions: space.Days("2025-01-01", "2025-01-05"), Reads: []plan.Dep{{Asset: raw, Map: window}}},
		{Key: raw, Partitions: space.Days("2025-01-01", "2025-01-05")},
	}
	st := state.New(ids.Domain{Tenant: "acme", Workspace: "prod"})
	choose := func(need engine.Need, partitions ...string) map[ids.AssetKey][]string {
		r := engine.RunRequest{Need: need, Roots: []ids.AssetKey{clean}, Plan: plan.Request{Assets: assets, Select: []ids.AssetKey{clean, raw}}}
		for _, text := range partitions {
			selection, err := plan.ParseSelection(text)
			require.NoError(t, err)
			r.Plan.Partitions = append(r.Plan.Partitions, selection)
		}
		_, err := engine.Choose(t.Context(), &snapshot.Snapshot{State: st}, &r, time.Date(2025, 2, 1, 0, 0, 0, 0, time.UTC))
		if err != nil {
			require.ErrorIs(t, err, engine.ErrNothing)
		}
		return r.Plan.Only
	}
	all := choose(engine.NeedMissing)
	require.Len(t, all[clean], 5)
	require.Len(t, all[raw], 5)
	only, day := "date=2025-01-03", `{"date":"2025-01-03"}`
	require.Equal(t, []string{day}, choose(engine.NeedMissing, only)[clean])
	made := choose(engine.NeedMissing, only)[raw]
	require.ElementsMatch(t, []string{`{"date":"2025-01-02"}`, day}, made, "what the day reads")
	st.Partitions.Put(&state.Partition{AssetKey: raw.String(), PartitionKey: day, RunID: "r", TaskKey: raw.String() + "[" + only + "]", MaterializationID: "m"})
	require.NotContains(t, choose(engine.NeedMissing, only)[raw], day)
	require.Equal(t, []string{day}, choose(engine.NeedStale, only)[clean])
}
