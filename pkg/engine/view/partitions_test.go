package view_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

func TestPartitionsOfDimensions(t *testing.T) {
	w := foldtest.New(t)
	task := func(date, region string) event.TaskDef {
		p := ids.Partition{"date": date, "region": region}
		return event.TaskDef{TaskKey: ids.TaskKey(ids.AssetKey{Namespace: "x", Name: "a"}, p), AssetKey: "x/a", PartitionKey: p.Key()}
	}
	tasks := []event.TaskDef{task("2025-01-01", "eu"), task("2025-01-01", "us"), task("2025-01-02", "eu")}
	run := w.Run(tasks...)
	for _, def := range tasks {
		w.MustFold(w.Finished(run, def.TaskKey, 1, event.Succeeded))
	}
	days := space.Days("2025-01-01", "2025-01-03").Dimensions[0]
	asset := &plan.Asset{
		Key:        ids.AssetKey{Namespace: "x", Name: "a"},
		Partitions: space.New(days, space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}}),
	}
	all, err := view.PartitionsOf(rowsOf(t, w), asset, plan.Calendar{}, true)
	require.NoError(t, err)
	require.Len(t, all, 6)
	require.Equal(t, "date=2025-01-01;region=eu", all[0].Name())
	require.Equal(t, "date=2025-01-01..2025-01-02;region=eu, date=2025-01-01;region=us", view.PartitionRanges(asset, all, view.PartitionMaterialized))
	require.Equal(t, "date=2025-01-02..2025-01-03;region=us, date=2025-01-03;region=eu", view.PartitionRanges(asset, all, view.PartitionMissing))
	require.Equal(t, "█▒·", view.Strip(asset, all))

	var paged []view.Partition
	keys, err := (plan.Calendar{}).Expected(asset.Partitions, 100)
	require.NoError(t, err)
	slices.Sort(keys)
	for i, key := range append([]string{""}, keys...) {
		for limit := range 8 {
			some, err := (plan.Calendar{}).ExpectedAfter(asset.Partitions, key, limit)
			require.NoError(t, err)
			require.Equal(t, keys[i:min(i+limit, len(keys))], append([]string{}, some...))
		}
	}
	for after := ""; ; after = paged[len(paged)-1].Key {
		page, err := view.PartitionPage(rowsOf(t, w), asset, plan.Calendar{}, after, 4)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		require.LessOrEqual(t, len(page), 4)
		paged = append(paged, page...)
	}
	require.Equal(t, all, paged)
}
