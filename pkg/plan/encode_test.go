package plan_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

func build(t *testing.T, r plan.Request) *plan.Plan {
	t.Helper()
	p, err := plan.Build(r)
	require.NoError(t, err)
	return p
}

func TestDecodeReturnsEncodedPlan(t *testing.T) {
	p := build(t, plan.Request{Root: "/p", Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	data, sha, err := p.Encode()
	require.NoError(t, err)
	require.Len(t, sha, 64)
	require.True(t, strings.HasPrefix(string(data), `{"assets":{"analytics/monthly":{"sql":"SELECT 1"},`), "sorted, without spaces")
	again, err := plan.Decode(data)
	require.NoError(t, err)
	require.Equal(t, p, again)
	again, err = plan.Open("plans/"+sha+".json", data)
	require.NoError(t, err)
	require.Equal(t, p, again)
	_, err = plan.Open("plans/"+sha+".json", bytes.ReplaceAll(data, []byte("SELECT 1"), []byte("SELECT 2")))
	require.ErrorContains(t, err, "it is damaged")
	_, shaAgain, err := again.Encode()
	require.NoError(t, err)
	require.Equal(t, sha, shaAgain)
	require.Equal(t, "plans/tenant=acme/workspace=dev/"+sha+".json", plan.Ref(ids.Domain{Tenant: "acme", Workspace: "dev"}, sha))
}

func TestFingerprintIgnoresEarlierRuns(t *testing.T) {
	fingerprint := func(change func(*plan.Request)) string {
		r := plan.Request{
			Root: "/p", Assets: weather(), Select: keys("analytics/monthly", "analytics/records"),
			Materialized: made("clean/daily 2012-01-01"),
		}
		change(&r)
		f, err := build(t, r).Fingerprint()
		require.NoError(t, err)
		require.Len(t, f, 64)
		return f
	}
	same := fingerprint(func(*plan.Request) {})
	require.Equal(t, same, fingerprint(func(r *plan.Request) { r.Root = "/elsewhere" }))
	require.Equal(t, same, fingerprint(func(r *plan.Request) { r.Materialized = made("clean/daily 2012-01-01", "clean/daily 2012-01-02") }),
		"outputs of a crashed run do not change the fingerprint")
	require.NotEqual(t, same, fingerprint(func(r *plan.Request) { r.Select = keys("analytics/monthly") }))
	require.NotEqual(t, same, fingerprint(func(r *plan.Request) { r.Assets[3].Work.SQL = "SELECT 2" }))
	require.NotEqual(t, same, fingerprint(func(r *plan.Request) { r.Assets[3].Retries.MaxAttempts = 5 }))
}

func TestDecodeRejectsInvalidPlans(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*plan.Plan)
		want   string
	}{
		"another version":        {func(p *plan.Plan) { p.SchemaVersion = 2 }, "the plan's schema_version is 2; this build reads 1"},
		"no tasks":               {func(p *plan.Plan) { p.Tasks = nil }, "the plan has no tasks"},
		"a duplicate":            {func(p *plan.Plan) { p.Tasks[1] = p.Tasks[0] }, "duplicate task raw/weather: at 0 and at 1"},
		"an empty key":           {func(p *plan.Plan) { p.Tasks[0].TaskKey = "" }, "task 0: a task key is empty"},
		"an unknown dependency":  {func(p *plan.Plan) { p.Tasks[1].DependsOn = []string{"x/y"} }, "depends on x/y, which is not in the plan"},
		"itself":                 {func(p *plan.Plan) { p.Tasks[0].DependsOn = []string{"raw/weather"} }, "task raw/weather depends on itself"},
		"a cycle":                {func(p *plan.Plan) { p.Tasks[0].DependsOn = []string{"report/summary"} }, "comes after it: the plan is not in topological order, or has a cycle"},
		"a dependency twice":     {func(p *plan.Plan) { p.Tasks[1].DependsOn = []string{"raw/weather", "raw/weather"} }, "or contain raw/weather twice"},
		"another kind":           {func(p *plan.Plan) { p.Tasks[0].Kind = "dance" }, `has the kind "dance"`},
		"an empty group":         {func(p *plan.Plan) { p.Tasks[3].DependsOn = nil }, "group clean/daily[*] has no members"},
		"no such asset":          {func(p *plan.Plan) { delete(p.Assets, "raw/weather") }, `materializes the asset "raw/weather", which is not in the plan`},
		"no work":                {func(p *plan.Plan) { p.Assets["raw/weather"] = plan.Work{} }, "must have a query or a command, and not both"},
		"an input format":        {func(p *plan.Plan) { p.Assets["raw/weather"] = plan.Work{SQL: "x", InputFormat: "xls"} }, `has the input format "xls"`},
		"a bad partition":        {func(p *plan.Plan) { p.Tasks[1].PartitionKey = `{"date": "x"}` }, "is not canonical"},
		"no such group":          {func(p *plan.Plan) { delete(p.Groups, "clean/daily[*]") }, "reads the group clean/daily[*], which is not in the plan"},
		"an input of nothing":    {func(p *plan.Plan) { p.Groups["clean/daily[*]"][0].TaskKey = "" }, "must have a task of this run, or else a materialization"},
		"an input of two things": {func(p *plan.Plan) { p.Groups["clean/daily[*]"][0].URI = "u" }, "must have a task of this run, or else a materialization"},
		"an unknown input":       {func(p *plan.Plan) { p.Groups["clean/daily[*]"][0].TaskKey = "x/y" }, "reads the output of x/y, which is not in the plan"},
		"an input without items": {func(p *plan.Plan) { p.Tasks[1].Inputs["raw/weather"] = plan.InputSet{} }, "must read raw/weather either through a group or directly"},
	} {
		t.Run(name, func(t *testing.T) {
			p := build(t, plan.Request{Root: "/p", Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
			c.change(p)
			data, err := json.Marshal(p)
			require.NoError(t, err)
			_, err = plan.Decode(data)
			require.ErrorContains(t, err, "decode plan: ")
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := plan.Decode([]byte(`{"schema_version":`))
	require.ErrorContains(t, err, "decode plan: ")
}

func TestRetryRejectsMissingTasksAndOutputs(t *testing.T) {
	p := build(t, plan.Request{Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	_, err := plan.Retry(p, []string{"no/such"}, nil)
	require.EqualError(t, err, "the run has no task no/such")
	_, err = plan.Retry(p, nil, nil)
	require.EqualError(t, err, "nothing to retry: every task of the run succeeded")
	_, err = plan.Retry(p, []string{"report/summary"}, map[string]plan.Input{"analytics/records": {MaterializationID: "M", URI: "u"}})
	require.EqualError(t, err, "task report/summary reads analytics/monthly, which has no output: retry it too")
}

func TestRetryOfOneDayKeepsGroup(t *testing.T) {
	p := build(t, plan.Request{Assets: weather(), All: true, Partitions: selection(t, "date=2012-01-02..2012-01-03")})
	outputs := map[string]plan.Input{
		"raw/weather":                  {MaterializationID: "M1", URI: "u1"},
		"clean/daily[date=2012-01-02]": {MaterializationID: "M2", URI: "u2"},
	}
	again, err := plan.Retry(p, []string{"clean/daily[date=2012-01-03]", "clean/daily[*]", "analytics/monthly"}, outputs)
	require.NoError(t, err)
	require.NoError(t, again.Validate())
	require.Equal(t, `clean/daily[date=2012-01-03] ← 
clean/daily[*] ← clean/daily[date=2012-01-03]
analytics/monthly ← clean/daily[*]
analytics/records ← clean/daily[*]
clean/smooth[date=2012-01-03] ← clean/daily[date=2012-01-03]
report/summary ← analytics/monthly analytics/records
`, outline(again), "with everything that depends on the day")
	require.Equal(t, []plan.Input{
		{PartitionKey: day("2012-01-02"), MaterializationID: "M2", URI: "u2"},
		{PartitionKey: day("2012-01-03"), TaskKey: "clean/daily[date=2012-01-03]"},
	}, again.Groups["clean/daily[*]"])

	outputs["clean/daily[date=2012-01-03]"] = plan.Input{MaterializationID: "M3", URI: "u3"}
	outputs["analytics/records"] = plan.Input{MaterializationID: "M4", URI: "u4"}
	again, err = plan.Retry(p, []string{"analytics/monthly"}, outputs)
	require.NoError(t, err)
	require.NoError(t, again.Validate())
	require.Equal(t, "analytics/monthly ← \nreport/summary ← analytics/monthly\n", outline(again), "the group node is dropped; the shared inputs stay")
	require.Equal(t, event.KindTask, again.Tasks[0].Kind)
}

func BenchmarkBuildAndEncode(b *testing.B) {
	many := make([]plan.Asset, 0, 10_000)
	for i := range 10_000 {
		var deps []string
		for _, back := range []int{1, 7, 100} {
			if i >= back {
				deps = append(deps, fmt.Sprintf("n/a%d", i-back))
			}
		}
		many = append(many, asset(fmt.Sprintf("n/a%d", i), deps...))
	}
	year := []plan.Asset{asset("raw/raw"), daily("clean/daily", "2012-01-01", "", "raw/raw")}
	for i := range 20 {
		year = append(year, asset(fmt.Sprintf("down/d%d", i), "clean/daily"))
	}
	for name, r := range map[string]plan.Request{
		"10000_assets": {Assets: many, All: true},
		"366_days":     {Assets: year, All: true, Partitions: []plan.Selection{days("2012-01-01", "2012-12-31")}},
	} {
		b.Run("build/"+name, func(b *testing.B) {
			for b.Loop() {
				if _, err := plan.Build(r); err != nil {
					b.Fatal(err)
				}
			}
		})
		p, err := plan.Build(r)
		require.NoError(b, err)
		data, _, err := p.Encode()
		require.NoError(b, err)
		b.Run("encode/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, _, err := p.Encode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
