package view_test

import (
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
	all, err := view.PartitionsOf(w.State, asset, plan.Calendar{})
	require.NoError(t, err)
	require.Len(t, all, 6)
	require.Equal(t, "date=2025-01-01,region=eu", all[0].Name())
	require.Equal(t, "date=2025-01-01..2025-01-02;region=eu, date=2025-01-01;region=us", view.PartitionRanges(asset, all, view.PartitionMaterialized))
	require.Equal(t, "date=2025-01-02..2025-01-03;region=us, date=2025-01-03;region=eu", view.PartitionRanges(asset, all, view.PartitionMissing))
	require.Equal(t, "█▒·", view.Strip(asset, all))
}
