package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// weather returns a small project: raw → daily (four days) → two assets that read all days →
// one asset that reads both.
func weather() []plan.Asset {
	return []plan.Asset{
		asset("raw/weather"),
		daily("clean/daily", "2012-01-01", "2012-01-04", "raw/weather"),
		daily("clean/smooth", "2012-01-01", "2012-01-04", "clean/daily"),
		available(asset("analytics/monthly", "clean/daily")),
		available(asset("analytics/records", "clean/daily")),
		asset("report/summary", "analytics/monthly", "analytics/records"),
	}
}

// available returns the asset with the setting `requires: available`. Such an asset reads the partitions that exist.
func available(a plan.Asset) plan.Asset {
	a.Requires = plan.RequiresAvailable
	return a
}

func selection(t *testing.T, texts ...string) []plan.Selection {
	t.Helper()
	var all []plan.Selection
	for _, text := range texts {
		s, err := plan.ParseSelection(text)
		require.NoError(t, err)
		all = append(all, s)
	}
	return all
}

// days selects a range of days.
func days(first, last string) plan.Selection {
	s, err := plan.ParseSelection("date=" + first + ".." + last)
	if err != nil {
		panic(err)
	}
	return s
}

func day(d string) string { return ids.Partition{"date": d}.Key() }

// made returns a Materialized function from entries of the form "asset" or "asset date".
func made(entries ...string) func(ids.AssetKey) []plan.Input {
	return func(key ids.AssetKey) []plan.Input {
		var inputs []plan.Input
		for _, e := range entries {
			name, date, partitioned := strings.Cut(e, " ")
			if name != key.String() {
				continue
			}
			in := plan.Input{MaterializationID: "M-" + e, URI: "assets/" + name + "/" + date + "/"}
			if partitioned {
				in.PartitionKey = day(date)
			}
			inputs = append(inputs, in)
		}
		return inputs
	}
}

// outline formats a plan, one task per line, with its dependencies and inputs.
func outline(p *plan.Plan) string {
	var b strings.Builder
	for _, task := range p.Tasks {
		fmt.Fprintf(&b, "%s ← %s\n", task.TaskKey, strings.Join(task.DependsOn, " "))
	}
	return b.String()
}

func TestBuildSharesOneGroupNode(t *testing.T) {
	p, err := plan.Build(plan.Request{Root: "/p", Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Equal(t, `raw/weather ← 
clean/daily[date=2012-01-02] ← raw/weather
clean/daily[date=2012-01-03] ← raw/weather
clean/daily[*] ← clean/daily[date=2012-01-02] clean/daily[date=2012-01-03]
analytics/monthly ← clean/daily[*]
analytics/records ← clean/daily[*]
clean/smooth[date=2012-01-02] ← clean/daily[date=2012-01-02]
clean/smooth[date=2012-01-03] ← clean/daily[date=2012-01-03]
report/summary ← analytics/monthly analytics/records
`, outline(p))
	group := p.Tasks[3]
	require.Equal(t, event.KindGroup, group.Kind)
	require.Equal(t, "clean/daily[*]", group.TaskKey)
	require.Equal(t, map[string]plan.InputSet{"clean/daily": {Group: "clean/daily[*]"}}, p.Tasks[4].Inputs)
	require.Equal(t, []plan.Input{
		{PartitionKey: day("2012-01-02"), TaskKey: "clean/daily[date=2012-01-02]"},
		{PartitionKey: day("2012-01-03"), TaskKey: "clean/daily[date=2012-01-03]"},
	}, p.Groups["clean/daily[*]"])
	require.Equal(t, plan.InputSet{Items: []plan.Input{{PartitionKey: day("2012-01-02"), TaskKey: "clean/daily[date=2012-01-02]"}}},
		p.Tasks[6].Inputs["clean/daily"])
}

func TestBuildNeedsNoGroupForOneReader(t *testing.T) {
	p, err := plan.Build(plan.Request{
		Assets: weather(), Select: keys("clean/daily", "analytics/monthly"), Partitions: selection(t, "date=2012-01-02..2012-01-03"),
		Materialized: made("raw/weather", "clean/daily 2012-01-01", "clean/daily 2012-01-03", "clean/daily 2011-01-01"),
	})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Equal(t, `clean/daily[date=2012-01-02] ← 
clean/daily[date=2012-01-03] ← 
analytics/monthly ← clean/daily[date=2012-01-02] clean/daily[date=2012-01-03]
`, outline(p))
	require.Empty(t, p.Groups)
	require.Equal(t, []plan.Input{{MaterializationID: "M-raw/weather", URI: "assets/raw/weather//"}}, p.Tasks[0].Inputs["raw/weather"].Items)
	require.Equal(t, []plan.Input{
		{PartitionKey: day("2012-01-01"), MaterializationID: "M-clean/daily 2012-01-01", URI: "assets/clean/daily/2012-01-01/"},
		{PartitionKey: day("2012-01-02"), TaskKey: "clean/daily[date=2012-01-02]"},
		{PartitionKey: day("2012-01-03"), TaskKey: "clean/daily[date=2012-01-03]"},
	}, p.Tasks[2].Inputs["clean/daily"].Items, "this run's outputs replace earlier ones; undeclared days are ignored")
}

func TestBuildNeedsNoGroupNodeForEarlierRuns(t *testing.T) {
	p, err := plan.Build(plan.Request{
		Assets: weather(), Select: keys("analytics/monthly", "analytics/records"),
		Materialized: made("clean/daily 2012-01-01", "clean/daily 2012-01-02"),
	})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Equal(t, "analytics/monthly ← \nanalytics/records ← \n", outline(p))
	require.Len(t, p.Groups["clean/daily[*]"], 2)
	require.Equal(t, plan.InputSet{Group: "clean/daily[*]"}, p.Tasks[1].Inputs["clean/daily"])
}

// An asset with output: none has no files, so no task may read files of it. If the asset gets an output later, its
// earlier partitions still have no files, so they must not count as materialized.
func TestOutputNoneIsWaitedForAndNotRead(t *testing.T) {
	assets := weather()
	assets[1].Work = plan.Work{Command: []string{"load"}, Output: plan.OutputNone, Dimensions: assets[1].Work.Dimensions}
	p, err := plan.Build(plan.Request{Assets: assets, All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Contains(t, outline(p), "analytics/monthly ← clean/daily[*]\n")
	require.Contains(t, outline(p), "clean/smooth[date=2012-01-02] ← clean/daily[date=2012-01-02]\n")
	require.Empty(t, p.Groups)
	for _, task := range p.Tasks {
		require.NotContains(t, task.Inputs, "clean/daily", task.TaskKey)
	}

	nothing := func(ids.AssetKey) []plan.Input {
		return []plan.Input{{PartitionKey: day("2012-01-02"), MaterializationID: "M"}}
	}
	alone := plan.Request{Assets: assets, Select: keys("analytics/monthly"), Materialized: nothing}
	p, err = plan.Build(alone)
	require.NoError(t, err, "an earlier materialization suffices")
	require.NoError(t, p.Validate())
	alone.Assets = weather()
	_, err = plan.Build(alone)
	require.ErrorContains(t, err, "analytics/monthly needs clean/daily, which has never been materialized")
	alone.Assets, alone.Materialized = assets, nil
	_, err = plan.Build(alone)
	require.ErrorContains(t, err, "analytics/monthly needs clean/daily, which has never been materialized")

	p.Assets["raw/weather"] = plan.Work{SQL: "SELECT 1", Output: plan.OutputNone}
	require.ErrorContains(t, p.Validate(), `asset raw/weather has the setting output: "none"; the only valid setting is none, and only for a command`)
}

func TestOtherTriggerRulesWaitForEveryPartition(t *testing.T) {
	assets := weather()
	assets[4].TriggerRule = event.RuleAllDone
	extra := available(asset("analytics/yearly", "clean/daily"))
	p, err := plan.Build(plan.Request{Assets: append(assets, extra), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Contains(t, outline(p), "analytics/monthly ← clean/daily[*]\n")
	require.Contains(t, outline(p), "analytics/yearly ← clean/daily[*]\n")
	require.Contains(t, outline(p), "analytics/records ← clean/daily[date=2012-01-02] clean/daily[date=2012-01-03]\n")
}

func TestBuildFillsInTaskDefaults(t *testing.T) {
	a := asset("a/a")
	b := asset("b/b", "a/a")
	b.Retries = plan.Retries{MaxAttempts: 3, InitialDelayMS: 1000, MaxDelayMS: 60_000, MultiplierPermille: 2000, JitterPermille: 100}
	b.Pool, b.Priority, b.TimeoutSec, b.HeartbeatTimeoutSec, b.WorkerQueue = "heavy", 7, 600, 30, "big"
	b.TriggerRule = event.RuleNoneFailed
	p, err := plan.Build(plan.Request{Assets: []plan.Asset{b, a}, All: true})
	require.NoError(t, err)
	require.Equal(t, event.TaskDef{
		TaskKey: "a/a", Kind: "task", AssetKey: "a/a", TriggerRule: "all_success", WorkerQueue: "default", MaxAttempts: 1,
	}, p.Tasks[0].TaskDef)
	require.Equal(t, event.TaskDef{
		TaskKey: "b/b", Kind: "task", AssetKey: "b/b", TriggerRule: "none_failed", WorkerQueue: "big", Pool: "heavy", Priority: 7,
		DependsOn: []string{"a/a"}, MaxAttempts: 3, RetryInitialDelayMS: 1000, RetryMaxDelayMS: 60_000,
		RetryMultiplierPermille: 2000, RetryJitterPermille: 100, TimeoutSec: 600, HeartbeatTimeoutSec: 30,
	}, p.Tasks[1].TaskDef)
}

// If an attempt is lost to infrastructure, even a task with max_attempts 1 gets another attempt, unless its policy
// excludes this error.
func TestNeverAppliesToTaskWithOneAttempt(t *testing.T) {
	a := asset("a/charge")
	a.Retries = plan.Retries{MaxAttempts: 1, Never: []string{"infrastructure"}}
	p, err := plan.Build(plan.Request{Assets: []plan.Asset{a}, All: true})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Equal(t, []string{"infrastructure"}, p.Tasks[0].RetryNever)
}

func TestUpstreamAddsOnlyDeclaredDays(t *testing.T) {
	assets := append(weather(), daily("late/starter", "2012-01-03", "", "raw/weather"), available(asset("late/report", "late/starter", "clean/daily")))
	p, err := plan.Build(plan.Request{
		Assets: assets, Select: keys("late/report"), Upstream: true, Partitions: selection(t, "date=2012-01-02", "date=2012-01-02..2012-01-03"),
	})
	require.NoError(t, err)
	require.Equal(t, `raw/weather ← 
clean/daily[date=2012-01-02] ← raw/weather
clean/daily[date=2012-01-03] ← raw/weather
late/starter[date=2012-01-03] ← raw/weather
late/report ← clean/daily[date=2012-01-02] clean/daily[date=2012-01-03] late/starter[date=2012-01-03]
`, outline(p))
}

func TestBuildErrors(t *testing.T) {
	for name, c := range map[string]struct {
		request plan.Request
		want    string
	}{
		"nothing selected": {plan.Request{}, "no assets are selected: name some, or select all with --all"},
		"an unknown asset": {
			plan.Request{Select: keys("clean/dialy", "x/y")},
			"unknown asset clean/dialy: did you mean clean/daily?\nunknown asset x/y",
		},
		"an upstream that was never made": {
			plan.Request{Select: keys("report/summary")},
			"asset report/summary needs analytics/monthly, which has never been materialized: add --upstream\n" +
				"asset report/summary needs analytics/records, which has never been materialized: add --upstream",
		},
		"a partitioned asset without a selection": {
			plan.Request{All: true},
			"2 selected assets are partitioned (clean/daily, clean/smooth): select partitions with -p, for example -p all, or run what is stale or missing with --stale",
		},
		"days that a named asset lacks": {
			plan.Request{Select: keys("clean/daily"), Partitions: selection(t, "date=2012-01-04..2012-01-05")},
			"asset clean/daily has no partition date=2012-01-05: it has 2012-01-01 to 2012-01-04",
		},
		"days that no asset has": {
			plan.Request{All: true, Partitions: selection(t, "date=2012-01-04..2012-01-06")},
			"no selected asset has partition date=2012-01-05, date=2012-01-06: select other partitions",
		},
		"only days that no asset has": {
			plan.Request{All: true, Partitions: selection(t, "date=2012-01-05")},
			"no selected asset has partition date=2012-01-05: select other partitions",
		},
		"a selection for nothing partitioned": {
			plan.Request{Select: keys("raw/weather"), Partitions: selection(t, "date=2012-01-04")},
			"no selected asset is partitioned, but partitions are selected (date=2012-01-04): remove -p, or select a partitioned asset",
		},
		"another dimension": {
			plan.Request{Select: keys("clean/daily"), Partitions: selection(t, "region=eu")},
			"asset clean/daily is partitioned by date, not by region: select -p date=2012-01-01..2012-01-04",
		},
		"days of an upstream that were never made": {
			plan.Request{Select: keys("clean/smooth"), Partitions: selection(t, "date=2012-01-01..2012-01-03"), Materialized: made("clean/daily 2012-01-02")},
			`asset clean/smooth needs partitions of clean/daily that have never been materialized: 2012-01-01, 2012-01-03: add --upstream`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.request.Assets = weather()
			_, err := plan.Build(c.request)
			require.EqualError(t, err, c.want)
		})
	}
}

func TestBuildRejectsDayMissingUpstream(t *testing.T) {
	assets := []plan.Asset{daily("a/a", "2012-01-02", ""), daily("b/b", "2012-01-01", "", "a/a")}
	_, err := plan.Build(plan.Request{Assets: assets, All: true, Partitions: selection(t, "date=2012-01-01..2012-01-02")})
	require.EqualError(t, err, `asset b/b reads no partition of a/a for 2012-01-01, because a/a has from 2012-01-02 on: select fewer partitions`)
}

func TestBuildRejectsCycles(t *testing.T) {
	_, err := plan.Build(plan.Request{Assets: []plan.Asset{asset("a/a", "b/b"), asset("b/b", "a/a")}, All: true})
	require.EqualError(t, err, "dependency cycle: a/a → b/b → a/a")
}

func TestBuildRejectsTooManyTasksAndEdges(t *testing.T) {
	assets := []plan.Asset{daily("up/up", "1900-01-01", "")}
	for i := range 1_000 {
		a := asset(fmt.Sprintf("down/d%d", i), "up/up")
		a.TriggerRule = event.RuleAllDone
		assets = append(assets, a)
	}
	_, err := plan.Build(plan.Request{Assets: assets, All: true, Partitions: selection(t, "date=2000-01-01..2009-12-31")})
	require.EqualError(t, err, "the run has more than 1000000 dependencies between tasks: select fewer partitions")

	assets = assets[:1]
	for i := range 3 {
		assets = append(assets, daily(fmt.Sprintf("more/d%d", i), "1900-01-01", "", "up/up"))
	}
	_, err = plan.Build(plan.Request{Assets: assets, All: true, Partitions: selection(t, "date=1900-01-01..2099-12-31")})
	require.EqualError(t, err, "the run has more than 200000 tasks: select fewer assets or partitions, or run them in chunks with `servo backfill create`")
}

func TestBuildMatchedAssetsUseTheirDays(t *testing.T) {
	assets := append(weather(), daily("clean/late", "2012-01-03", "2012-01-04", "raw/weather"))
	key := func(namespace, name string) ids.AssetKey { return ids.AssetKey{Namespace: namespace, Name: name} }
	r := plan.Request{
		Root: "/p", Assets: assets, Select: []ids.AssetKey{key("clean", "daily")}, Matched: []ids.AssetKey{key("clean", "late")},
		Partitions: selection(t, "date=2012-01-02..2012-01-03"), Materialized: made("raw/weather"),
	}
	p, err := plan.Build(r)
	require.NoError(t, err)
	require.Equal(t, `clean/daily[date=2012-01-02] ← 
clean/daily[date=2012-01-03] ← 
clean/late[date=2012-01-03] ← 
`, outline(p))
	r.Select, r.Matched = r.Matched, r.Select
	_, err = plan.Build(r)
	require.EqualError(t, err, "asset clean/late has no partition date=2012-01-02: it has 2012-01-03 to 2012-01-04")
}
