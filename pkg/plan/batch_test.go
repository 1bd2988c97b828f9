package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
	"github.com/servo-orchestration/servo/pkg/space"
)

// inBatches returns an asset whose tasks materialize at most the given number of partitions.
func inBatches(a plan.Asset, size int) plan.Asset {
	a.Batch, a.Work.Batch = size, true
	return a
}

// tasksOf returns, for each task of an asset, its key and its number of partitions.
func tasksOf(p *plan.Plan, key string) (tasks []string) {
	for i := range p.Tasks {
		if t := &p.Tasks[i]; t.AssetKey == key && t.Kind == "task" {
			tasks = append(tasks, fmt.Sprintf("%s %d", t.TaskKey, len(t.EachPartition())))
		}
	}
	return tasks
}

func TestBatchesDivideSelectedPartitions(t *testing.T) {
	t.Parallel()
	spans := inBatches(daily("a/spans", "2025-01-01", "2025-12-31"), 50)
	spans.Work.SQL = "SELECT getvariable('date_start')"
	two := inBatches(asset("a/two"), 5)
	two.Partitions = space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-12-31"},
		space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}})
	regions := inBatches(asset("a/regions"), 2)
	regions.Partitions = space.New(space.Dimension{Name: "region", Kind: space.Static, Values: []string{"ap", "eu", "us"}})
	assets := []plan.Asset{inBatches(daily("a/days", "2025-01-01", "2025-12-31"), 50), spans, two, regions}
	for _, c := range []struct {
		asset, selected string
		want            []string
	}{
		{"a/days", "date=2025-01-01..2025-03-01", []string{"a/days[date=2025-01-01..2025-02-19] 50", "a/days[date=2025-02-20..2025-03-01] 10"}},
		{"a/days", "date=2025-01-01,2025-01-03", []string{"a/days[date=2025-01-01..2025-01-03] 2"}},
		{"a/days", "date=2025-01-01", []string{"a/days[date=2025-01-01] 1"}},
		{"a/spans", "date=2025-01-01,2025-01-03..2025-01-04", []string{"a/spans[date=2025-01-01] 1", "a/spans[date=2025-01-03..2025-01-04] 2"}},
		{"a/two", "date=2025-01-01..2025-01-02;region=eu,us", []string{"a/two[date=2025-01-01..2025-01-02;region=eu,us] 4"}},
		{"a/two", "date=2025-01-01..2025-01-03;region=eu,us", []string{"a/two[date=2025-01-01..2025-01-03;region=eu] 3", "a/two[date=2025-01-01..2025-01-03;region=us] 3"}},
		{"a/regions", "region=*", []string{"a/regions[region=ap,eu] 2", "a/regions[region=us] 1"}},
	} {
		key, err := ids.ParseAssetKey(c.asset)
		require.NoError(t, err)
		p, err := plan.Build(plan.Request{Assets: assets, Select: []ids.AssetKey{key}, Partitions: selection(t, c.selected)})
		require.NoError(t, err)
		require.NoError(t, p.Validate())
		require.Equal(t, c.want, tasksOf(p, c.asset), c.selected)
		for i := range p.Tasks {
			require.NotEqual(t, 1, len(p.Tasks[i].Partitions), "a task of one partition is no batch")
		}
	}
}

// Readers of a partition wait for the task of its batch, and their inputs name only this partition. A batch reads each
// of its input partitions once.
func TestBatchesAreReadByPartition(t *testing.T) {
	t.Parallel()
	assets := []plan.Asset{
		inBatches(daily("a/days", "2025-01-01", "2025-01-04"), 3),
		daily("a/same", "2025-01-01", "2025-01-04", "a/days"),
		inBatches(daily("a/window", "2025-01-01", "2025-01-04", "a/days"), 4),
		available(asset("a/total", "a/days")), available(asset("a/other", "a/days")),
	}
	assets[2].Reads = []plan.Dep{{Asset: assets[0].Key, Map: space.Map{Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Window, From: -1}}}}}
	p, err := plan.Build(plan.Request{Assets: assets, All: true, Partitions: []plan.Selection{days("2025-01-01", "2025-01-04")}})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Equal(t, []string{"a/days[date=2025-01-01..2025-01-03] 3", "a/days[date=2025-01-04] 1"}, tasksOf(p, "a/days"))
	at := func(key string) *plan.Task {
		i := slices.IndexFunc(p.Tasks, func(t plan.Task) bool { return t.TaskKey == key })
		require.GreaterOrEqual(t, i, 0, key)
		return &p.Tasks[i]
	}
	same := at("a/same[date=2025-01-02]")
	require.Equal(t, []string{"a/days[date=2025-01-01..2025-01-03]"}, same.DependsOn)
	require.Equal(t, []plan.Input{{PartitionKey: day("2025-01-02"), TaskKey: "a/days[date=2025-01-01..2025-01-03]"}}, same.Inputs["a/days"].Items)
	window := at("a/window[date=2025-01-01..2025-01-04]")
	require.Len(t, window.Inputs["a/days"].Items, 4)
	require.Equal(t, []string{"a/days[date=2025-01-01..2025-01-03]", "a/days[date=2025-01-04]"}, window.DependsOn)

	// From the output of a batch, a retry of a reader reads only the folder of the partition that the reader needs.
	retried, err := plan.Retry(p, []string{"a/same[date=2025-01-02]"}, map[string]plan.Input{
		"a/days[date=2025-01-01..2025-01-03]": {MaterializationID: "m", URI: "x.cells/"},
	})
	require.NoError(t, err)
	require.Equal(t, []plan.Input{{PartitionKey: day("2025-01-02"), MaterializationID: "m", URI: "x.cells/date-2025-01-02/"}},
		retried.Tasks[0].Inputs["a/days"].Items)
	whole, err := plan.Retry(p, []string{"a/days[date=2025-01-01..2025-01-03]"}, map[string]plan.Input{"a/days[date=2025-01-04]": {MaterializationID: "n", URI: "y/"}})
	require.NoError(t, err)
	require.Equal(t, p.Tasks[0].Partitions, whole.Tasks[0].Partitions)
}

func TestBatchIsRefused(t *testing.T) {
	t.Parallel()
	good := inBatches(daily("a/days", "2025-01-01", "2025-01-04"), 3)
	require.NoError(t, good.CheckBatch())
	for want, change := range map[string]func(a *plan.Asset){
		"has no partitions":  func(a *plan.Asset) { a.Partitions = nil },
		"reads itself":       func(a *plan.Asset) { a.Deps = []ids.AssetKey{a.Key} },
		"text files":         func(a *plan.Asset) { a.Work.Text = &plan.TextOutput{Format: "csv"} },
		"is a command":       func(a *plan.Asset) { a.Work.Checks = []quality.Check{{Name: "c", Kind: quality.Command}} },
		"compares with earl": func(a *plan.Asset) { a.Work.Checks = []quality.Check{{Name: "c", Kind: quality.Anomaly}} },
	} {
		a := good
		change(&a)
		require.ErrorContains(t, a.CheckBatch(), want)
	}
}

// A stored plan with an impossible batch is refused, even if another program wrote it.
func TestPlanWithWrongBatchIsInvalid(t *testing.T) {
	t.Parallel()
	p, err := plan.Build(plan.Request{
		Assets: []plan.Asset{inBatches(daily("a/days", "2025-01-01", "2025-01-04"), 3)}, All: true, Partitions: []plan.Selection{days("2025-01-01", "2025-01-03")},
	})
	require.NoError(t, err)
	good := p.Tasks[0].Partitions
	for name, wrong := range map[string][]string{
		"one": good[:1], "twice": {good[0], good[0]}, "first": {good[1], good[0]}, "key": {good[0], "x"}, "long": {good[0], `{"date":"` + strings.Repeat("x", 65<<10) + `"}`},
	} {
		p.Tasks[0].Partitions = wrong
		require.Error(t, p.Validate(), name)
	}
	p.Tasks[0].Partitions = good
	work := p.Assets["a/days"]
	work.Batch = false
	p.Assets["a/days"] = work
	require.ErrorContains(t, p.Validate(), "its asset a/days has none")
}

// The keys of all partitions together are too long for one batch.
func TestBatchOfLongKeysHasAllCombinations(t *testing.T) {
	a := inBatches(asset("a/two"), 1000)
	var regions []string
	for i := range 50 {
		regions = append(regions, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 230)))
	}
	a.Partitions = space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-01-10"},
		space.Dimension{Name: "region", Kind: space.Static, Values: regions})
	p, err := plan.Build(plan.Request{Assets: []plan.Asset{a}, All: true, Partitions: selection(t, "date=2025-01-01..2025-01-10")})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	for i := range p.Tasks {
		days, of := map[string]bool{}, map[string]bool{}
		for _, key := range p.Tasks[i].EachPartition() {
			cell, err := ids.ParsePartition(key)
			require.NoError(t, err)
			days[cell["date"]], of[cell["region"]] = true, true
		}
		require.Equal(t, len(p.Tasks[i].EachPartition()), len(days)*len(of), "%.80s", p.Tasks[i].TaskKey)
	}
}
