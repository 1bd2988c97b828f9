package view_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
)

// rowsOf yields the rows of asset x/a.
func rowsOf(t *testing.T, w *foldtest.World) view.PartitionRows {
	t.Helper()
	return (&snapshot.Snapshot{State: w.State}).Partitions(t.Context(), "x/a", "")
}

func TestAssetCountsDeclaredPartitions(t *testing.T) {
	w := foldtest.New(t)
	day := func(date string) event.TaskDef {
		return event.TaskDef{TaskKey: "x/a[date=" + date + "]", AssetKey: "x/a", PartitionKey: ids.Partition{"date": date}.Key()}
	}
	run := w.Run(day("2025-01-01"), day("2025-01-02"), day("2025-02-01"))
	for _, date := range []string{"2025-01-01", "2025-01-02", "2025-02-01"} {
		w.MustFold(w.Finished(run, "x/a[date="+date+"]", 1, event.Succeeded))
	}
	asset := &plan.Asset{
		Key: ids.AssetKey{Namespace: "x", Name: "a"}, Partitions: space.Days("2025-01-01", "2025-01-31"),
	}
	a, err := view.AssetOf(rowsOf(t, w), asset, plan.Calendar{})
	require.NoError(t, err)
	require.Equal(t, 2, a.Stored, "the project no longer declares a day of February")
	require.EqualValues(t, 2, a.Rows)
	require.Equal(t, run, a.LastRun)
	require.Equal(t, "sql", a.Kind())
	require.Equal(t, "date 2025-01-01 to 2025-01-31", a.Partitioning())
	require.Equal(t, 31, view.PartitionCount(asset, plan.Calendar{Now: w.Now}))

	now := time.Date(2025, 1, 10, 23, 59, 0, 0, time.UTC)
	require.Equal(t, 9, view.PartitionCount(asset, plan.Calendar{Now: now, Zone: calendar.Zone}), "the tenth day has not ended")
	unpartitioned := &plan.Asset{Key: asset.Key, Deps: []ids.AssetKey{asset.Key}}
	a, err = view.AssetOf(rowsOf(t, w), unpartitioned, plan.Calendar{})
	require.NoError(t, err)
	require.Zero(t, a.Stored)
	require.Equal(t, []string{"x/a"}, a.DependsOn())
	require.Equal(t, 1, view.PartitionCount(unpartitioned, plan.Calendar{}))
}
