package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

var balance = ids.AssetKey{Namespace: "a", Name: "balance"}

// selfReader returns an asset that reads its own periods from..to, relative to the period of the reader. If the
// parameter "accounts" is not empty, the asset also has a dimension "account", and "accounts" is the operation that
// maps this dimension.
func selfReader(at space.Dimension, from, to int64, accounts space.Op) plan.Asset {
	a := plan.Asset{
		Key: balance, Work: plan.Work{SQL: "SELECT 1", Checks: []quality.Check{{
			Name: quality.ContractCheck, Kind: quality.Schema, Params: quality.Params{Types: []quality.ColumnType{{Name: "x", Type: "BIGINT"}}},
		}}},
		Partitions: &space.Space{Dimensions: []space.Dimension{at}}, Deps: []ids.AssetKey{balance},
		Reads: []plan.Dep{{Asset: balance, Map: space.Map{Dimensions: []space.DimensionMap{{Dimension: at.Name, Op: space.Window, From: from, To: to}}}}},
	}
	if accounts != "" {
		a.Partitions.Dimensions = append([]space.Dimension{{Name: "account", Kind: space.Static, Values: []string{"x", "y"}}}, a.Partitions.Dimensions...)
		a.Reads[0].Map.Dimensions = append(a.Reads[0].Map.Dimensions, space.DimensionMap{Dimension: "account", Op: accounts})
		slices.SortFunc(a.Reads[0].Map.Dimensions, func(a, b space.DimensionMap) int {
			return slices.Compare([]string{a.Dimension}, []string{b.Dimension})
		})
	}
	return a
}

// instantOf returns the start of the period of a partition.
func instantOf(t require.TestingT, c plan.Calendar, a *plan.Asset, key string) time.Time {
	partition, err := ids.ParsePartition(key)
	require.NoError(t, err)
	at := a.Partitions.Time()
	start, _, err := c.Interval(at, partition[at.Name])
	require.NoError(t, err)
	return start
}

// TestSelfReadingTasksFollowTime plans partitions of an asset that reads itself: days, and the hours around
// both changes of the clocks. The keys of these hours are not in the order of time.
func TestSelfReadingTasksFollowTime(t *testing.T) {
	dimensions := []space.Dimension{
		{Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-01-06"},
		{Name: "hour", Kind: space.Hourly, Start: "2025-10-26", End: "2025-10-26", Timezone: "Europe/Paris"},
		{Name: "hour", Kind: space.Hourly, Start: "2025-03-30", End: "2025-03-30", Timezone: "Europe/Paris"},
	}
	c := plan.Calendar{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Zone: calendar.Zone}
	rapid.Check(t, func(t *rapid.T) {
		to := -rapid.Int64Range(1, 3).Draw(t, "to")
		from := to - rapid.Int64Range(0, 2).Draw(t, "length")
		accounts := rapid.SampledFrom([]space.Op{"", space.Identity, space.All}).Draw(t, "accounts")
		a := selfReader(rapid.SampledFrom(dimensions).Draw(t, "time"), from, to, accounts)
		require.NoError(t, a.CheckItself())
		all, err := c.Expected(a.Partitions, 1000)
		require.NoError(t, err)
		var asked []string
		made := map[string]plan.Input{}
		for _, key := range all {
			if rapid.IntRange(0, 2).Draw(t, "runs") > 0 {
				asked = append(asked, key)
			}
			if rapid.Bool().Draw(t, "made") {
				made[key] = plan.Input{PartitionKey: key, MaterializationID: "m" + key, URI: "u/"}
			}
		}
		if len(asked) == 0 {
			return
		}
		built, err := plan.Build(plan.Request{
			Assets: []plan.Asset{a}, Select: []ids.AssetKey{balance}, Only: map[ids.AssetKey][]string{balance: asked}, AllowIncomplete: true, Calendar: c,
			Materialized: func(ids.AssetKey) (inputs []plan.Input) {
				for _, in := range made {
					inputs = append(inputs, in)
				}
				return inputs
			},
		})
		require.NoError(t, err)
		require.NoError(t, built.Validate())
		before := map[string]bool{}
		for i := range built.Tasks {
			task := &built.Tasks[i]
			set, has := task.Inputs[balance.String()]
			require.True(t, has, "the worker needs to know that there is nothing to read")
			require.Equal(t, wanted(t, c, &a, task.PartitionKey, all, asked, made, from, to, accounts), itemsOf(set.Items))
			for _, in := range set.Items {
				require.True(t, in.TaskKey == "" || before[in.TaskKey] && slices.Contains(task.DependsOn, in.TaskKey), "%s reads %s before it is made", task.TaskKey, in.TaskKey)
			}
			before[task.TaskKey] = true
		}
		require.Len(t, built.Tasks, len(asked))
	})
}

// itemsOf describes inputs.
func itemsOf(items []plan.Input) (texts []string) {
	for _, in := range items {
		texts = append(texts, fmt.Sprintf("%s %t", in.PartitionKey, in.TaskKey != ""))
	}
	slices.Sort(texts)
	return texts
}

// wanted returns what a partition must read: the partitions of the window that exist or that the run materializes. It
// sorts periods by the instants at which they start, not by their keys.
func wanted(
	t require.TestingT, c plan.Calendar, a *plan.Asset, key string, all, asked []string, made map[string]plan.Input, from, to int64, accounts space.Op,
) (texts []string) {
	var periods []time.Time
	for _, k := range all {
		periods = append(periods, instantOf(t, c, a, k))
	}
	slices.SortFunc(periods, time.Time.Compare)
	periods = slices.Compact(periods)
	position := func(k string) int64 { return int64(slices.Index(periods, instantOf(t, c, a, k))) }
	account := func(k string) string {
		partition, err := ids.ParsePartition(k)
		require.NoError(t, err)
		return partition["account"]
	}
	for _, k := range all {
		distance := position(k) - position(key)
		if distance < from || distance > to || accounts == space.Identity && account(k) != account(key) {
			continue
		}
		if _, exists := made[k]; exists || slices.Contains(asked, k) {
			texts = append(texts, fmt.Sprintf("%s %t", k, slices.Contains(asked, k)))
		}
	}
	slices.Sort(texts)
	return texts
}

func TestSelfReadingGraphHasNoCycle(t *testing.T) {
	day := space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01"}
	for to, want := range map[int64]string{-1: "", 0: "the window must end at -1 or before", 1: "the window must end at -1 or before"} {
		a := selfReader(day, -2, to, "")
		g, err := plan.NewGraph([]plan.Asset{a})
		require.NoError(t, err)
		if want == "" {
			require.NoError(t, a.CheckItself())
			require.Empty(t, g.Cycles())
			continue
		}
		require.ErrorContains(t, a.CheckItself(), want)
		require.Len(t, g.Cycles(), 1)
	}
	for name, c := range map[string]struct {
		change func(a *plan.Asset)
		want   string
	}{
		"no mapping":   {func(a *plan.Asset) { a.Reads = nil }, "add deps: [{asset: a/balance, map: {date: {window: [-1, -1]}}}]"},
		"all":          {func(a *plan.Asset) { a.Reads[0].Map = space.Map{Op: space.All} }, "the window must end at -1 or before"},
		"latest":       {func(a *plan.Asset) { a.Reads[0].Map = space.Map{Op: space.Latest} }, "the window must end at -1 or before"},
		"no time":      {func(a *plan.Asset) { a.Partitions = nil }, "an asset can read itself only if it is partitioned by time"},
		"no output":    {func(a *plan.Asset) { a.Work.Output = plan.OutputNone }, "no output to read"},
		"no columns":   {func(a *plan.Asset) { a.Work.Checks = nil }, "add columns"},
		"requirements": {func(a *plan.Asset) { a.Reads[0].RequireQuality = true }, "require_quality has no effect"},
	} {
		a := selfReader(day, -1, -1, "")
		c.change(&a)
		require.ErrorContains(t, a.CheckItself(), c.want, name)
	}
}

// If the asset in the gap of a selection reads its own earlier partitions, the order node of the gap must have no edge
// to itself.
func TestSelfReadingGap(t *testing.T) {
	day := space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-01-02"}
	gap := selfReader(day, -1, -1, "")
	first := plan.Asset{Key: ids.AssetKey{Namespace: "a", Name: "first"}, Work: plan.Work{SQL: "SELECT 1"}}
	last := plan.Asset{Key: ids.AssetKey{Namespace: "z", Name: "last"}, Work: plan.Work{SQL: "SELECT 1"}, Deps: []ids.AssetKey{balance}, Requires: plan.RequiresAvailable}
	gap.Deps = []ids.AssetKey{balance, first.Key}
	built, err := plan.Build(plan.Request{
		Assets: []plan.Asset{first, gap, last}, Select: []ids.AssetKey{first.Key, last.Key},
		Materialized: func(key ids.AssetKey) []plan.Input {
			if key != balance {
				return nil
			}
			return []plan.Input{{PartitionKey: ids.Partition{"date": "2025-01-01"}.Key(), MaterializationID: "m", URI: "u/"}}
		},
	})
	require.NoError(t, err)
	require.NoError(t, built.Validate())
	require.Len(t, built.Tasks, 3)
}
