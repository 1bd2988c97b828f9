package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/quality"
)

// withChecks adds a check of the given kind to assets of the weather project.
func withChecks(kind string, names ...string) []plan.Asset {
	assets := weather()
	for i := range assets {
		for _, name := range names {
			if assets[i].Key.String() != name {
				continue
			}
			c := quality.Check{Name: "c", Kind: kind, Columns: []string{"x"}}
			if kind == quality.SQL {
				c.SQL, c.Columns = "SELECT 1", nil
			}
			assets[i].Work.Checks, assets[i].Code = []quality.Check{c}, "00112233445566778899aabbccddeeff"
			assets[i].Work.Quarantine = &event.Quarantine{ExpiresSec: 60}
		}
	}
	return assets
}

func TestChecksOnlyPlansOutputsOfEarlierRuns(t *testing.T) {
	p := build(t, plan.Request{
		Assets: withChecks(quality.SQL, "clean/daily", "clean/smooth", "report/summary"), All: true, ChecksOnly: true,
		Materialized: made("raw/weather", "clean/daily 2012-01-01", "clean/daily 2012-01-03", "clean/smooth 2012-01-01"),
	})
	require.NoError(t, p.Validate())
	require.True(t, p.OnlyChecks())
	var tasks []string
	for _, task := range p.Tasks {
		tasks = append(tasks, task.TaskKey)
		require.Equal(t, event.KindCheck, task.Kind)
		require.Equal(t, event.OutputNone, task.Output)
		require.Empty(t, task.DependsOn)
		require.Empty(t, task.Code, "a check never makes the code of a partition current")
		require.Nil(t, task.Quarantine)
		require.Equal(t, []string{"c"}, task.Checks)
		require.NotEmpty(t, task.Checked.URI)
	}
	require.Equal(t, []string{"clean/daily[date=2012-01-01]", "clean/daily[date=2012-01-03]", "clean/smooth[date=2012-01-01]"}, tasks)
	require.Equal(t, []plan.Input{{PartitionKey: day("2012-01-01"), MaterializationID: "M-clean/daily 2012-01-01", URI: "assets/clean/daily/2012-01-01/"}},
		p.Tasks[2].Inputs["clean/daily"].Items, "a task never reads an output of the run, which makes none")
	require.Equal(t, []string{"skipped report/summary: it has no output"}, p.Warnings)
	_, err := plan.Retry(p, []string{"clean/smooth[date=2012-01-01]"}, nil)
	require.ErrorContains(t, err, "only checked outputs")
}

// TestChecksOnlyReadsWhatChecksRead: a check of one column needs no other asset.
func TestChecksOnlyReadsWhatChecksRead(t *testing.T) {
	r := plan.Request{
		Assets: withChecks(quality.NotNull, "report/summary"), Select: keys("report/summary"), ChecksOnly: true, Materialized: made("report/summary"),
	}
	require.Empty(t, build(t, r).Tasks[0].Inputs)
	r.Assets = withChecks(quality.SQL, "report/summary")
	_, err := plan.Build(r)
	require.ErrorContains(t, err, "asset report/summary needs analytics/monthly, which has never been materialized: run it first")
}

func TestChecksOnlyRejectsWhatHasNothingToCheck(t *testing.T) {
	r := plan.Request{Assets: withChecks(quality.NotNull, "clean/daily"), ChecksOnly: true, Materialized: made("clean/daily 2012-01-01")}
	for name, c := range map[string]struct {
		change func(*plan.Request)
		want   string
	}{
		"no checks": {func(r *plan.Request) { r.Select = keys("raw/weather") }, "asset raw/weather declares no checks: add `checks` or `columns` to it"},
		"no output": {func(r *plan.Request) { r.Select, r.Materialized = keys("clean/daily"), nil }, "asset clean/daily has no output to check: run it first"},
		"other day": {func(r *plan.Request) { r.Select, r.Partitions = keys("clean/daily"), selection(t, "date=2012-01-02") }, "has no output to check"},
		"nothing":   {func(r *plan.Request) { r.Matched, r.Materialized = keys("clean/daily"), nil }, "nothing to check: no selected asset has checks and an output"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := r
			c.change(&changed)
			_, err := plan.Build(changed)
			require.ErrorContains(t, err, c.want)
		})
	}
	some := r
	some.Select, some.Partitions = keys("clean/daily"), selection(t, "date=2012-01-01..2012-01-02")
	p := build(t, some)
	require.Len(t, p.Tasks, 1)
	require.Equal(t, []string{"skipped partitions of clean/daily that have no output: 2012-01-02"}, p.Warnings)
}
