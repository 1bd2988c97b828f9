package staleness_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// windowed returns two assets: raw, which begins on a given day, and week, whose partitions read their own day and
// the day before.
func windowed(start string) []plan.Asset {
	return []plan.Asset{
		{Key: key("raw"), Code: "1111111111111111", Partitions: space.Days(start, "2025-01-04")},
		{
			Key: key("week"), Code: "2222222222222222", Partitions: space.Days("2025-01-01", "2025-01-04"), Deps: []ids.AssetKey{key("raw")},
			Reads: []plan.Dep{{Asset: key("raw"), Map: space.Map{Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Window, From: -1, To: 0}}}}},
		},
	}
}

// weekRows plans partitions of week with the given batch size, and returns their rows.
func weekRows(t *testing.T, list []plan.Asset, batch int, days ...int) []*state.Partition {
	t.Helper()
	assets := append([]plan.Asset(nil), list...)
	assets[1].Batch, assets[1].Work.Batch = batch, batch > 1
	var keys []string
	for _, n := range days {
		keys = append(keys, day(n))
	}
	built, err := plan.Build(plan.Request{
		Root: "/project", Assets: assets, Select: []ids.AssetKey{key("week")}, Only: map[ids.AssetKey][]string{key("week"): keys}, AllowIncomplete: true,
		Materialized: func(ids.AssetKey) (inputs []plan.Input) {
			for n := range 4 {
				inputs = append(inputs, plan.Input{PartitionKey: day(n), MaterializationID: "m", URI: "u"})
			}
			return inputs
		},
	})
	require.NoError(t, err)
	var rows []*state.Partition
	for i := range built.Tasks {
		for _, partition := range built.Tasks[i].EachPartition() {
			rows = append(rows, &state.Partition{AssetKey: "a/week", PartitionKey: partition, RunID: "run1", VersionSeq: 30, InputsSeq: 20, Code: built.Tasks[i].Code})
		}
	}
	return rows
}

// A release moves the start of raw. A partition becomes stale only if its window contains days on both sides of the old
// start or on both sides of the new start. After a rollback, the outputs that were made with the old start are fresh
// again.
func TestI21WindowAcrossMovedStartIsStale(t *testing.T) {
	wide, narrow := windowed("2024-01-01"), windowed("2025-01-02")
	statuses := func(list []plan.Asset, rows []*state.Partition) (found []staleness.Status) {
		e := evaluation(t, list, map[ids.AssetKey][]*state.Partition{key("week"): rows}, nil)
		for _, row := range rows {
			of, err := e.Statuses(key("week"), []string{row.PartitionKey})
			require.NoError(t, err)
			found = append(found, of...)
		}
		return found
	}
	const fresh, stale = staleness.Fresh, staleness.Stale
	made := weekRows(t, wide, 1, 0, 1, 2)
	require.Equal(t, []staleness.Status{fresh, fresh, fresh}, statuses(wide, made))
	require.Equal(t, []staleness.Status{stale, stale, fresh}, statuses(narrow, made))

	made = weekRows(t, narrow, 1, 1, 2)
	require.Equal(t, []staleness.Status{fresh, fresh}, statuses(narrow, made))
	require.Equal(t, []staleness.Status{stale, fresh}, statuses(wide, made))

	made = weekRows(t, narrow, 3, 1, 2, 3)
	require.Equal(t, []staleness.Status{fresh, fresh, fresh}, statuses(narrow, made), "in one batch")
	require.Equal(t, []staleness.Status{stale, stale, stale}, statuses(wide, made), "in one batch")
}

// If the window of a partition is cut off, the explanation of the partition contains the code that a run would record
// now.
func TestExplainNamesCodeOfCutOffWindow(t *testing.T) {
	wide, narrow := windowed("2024-01-01"), windowed("2025-01-02")
	made := weekRows(t, narrow, 1, 1)
	for _, c := range []struct {
		list []plan.Asset
		code string
	}{{wide, wide[1].Code}, {narrow, made[0].Code}} {
		x, err := evaluation(t, c.list, map[ids.AssetKey][]*state.Partition{key("week"): made}, nil).Explain(key("week"), day(1))
		require.NoError(t, err)
		require.Equal(t, c.code, x.Current)
		require.Equal(t, c.code != made[0].Code, x.Changed)
		require.True(t, x.Windowed)
	}
}

// If a change of the code is accepted, it is also accepted for partitions whose windows are cut off.
func TestAcceptedCodeIsAcceptedForCutOffWindows(t *testing.T) {
	narrow := windowed("2025-01-02")
	made := weekRows(t, narrow, 1, 1)
	narrow[1].Code = "3333333333333333"
	for _, accepted := range []map[string][]string{nil, {"3333333333333333": {"2222222222222222"}}} {
		x, err := evaluation(t, narrow, map[ids.AssetKey][]*state.Partition{key("week"): made}, accepted).Explain(key("week"), day(1))
		require.NoError(t, err)
		require.Equal(t, accepted != nil, x.Status == staleness.Fresh)
		require.Equal(t, accepted != nil, x.Accepted)
	}
}
