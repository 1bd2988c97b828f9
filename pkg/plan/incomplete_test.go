package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
)

func TestFanInReportsMissingPartitions(t *testing.T) {
	request := plan.Request{
		Assets: weather(), Select: keys("clean/daily", "analytics/monthly", "analytics/records"),
		Partitions: selection(t, "date=2012-01-02"), Materialized: made("raw/weather", "clean/daily 2012-01-01"),
	}
	missing := func(asset string, expected int, days string) plan.Incomplete {
		return plan.Incomplete{Asset: asset, Upstream: "clean/daily", Expected: expected, Read: 2, Missing: days}
	}
	p, err := plan.Build(request)
	require.NoError(t, err)
	require.Equal(t, []plan.Incomplete{
		missing("analytics/monthly", 4, "2012-01-03..2012-01-04"), missing("analytics/records", 4, "2012-01-03..2012-01-04"),
	}, p.Incomplete)
	require.Equal(t, "analytics/monthly reads 2 of 4 partitions of clean/daily; missing 2012-01-03..2012-01-04", p.Incomplete[0].String())

	complete := request
	complete.Assets = weather()
	complete.Assets[3].Requires = "" // the default
	_, err = plan.Build(complete)
	require.EqualError(t, err, "plan analytics/monthly: MISSING_INPUT: reads 2 of 4 partitions of clean/daily; missing 2012-01-03..2012-01-04: "+
		"run them, too: select them with --upstream and -p, or accept the gap with --allow-incomplete")
	complete.Form = plan.Fields
	_, err = plan.Build(complete)
	require.ErrorContains(t, err, `select them with "upstream": true and partitions, or accept the gap with "allow_incomplete": true`)
	complete.Form = plan.Schedule
	_, err = plan.Build(complete)
	require.ErrorContains(t, err, "select them with upstream: all and partitions, or accept the gap with allow_incomplete: true")
	complete.Assets[3].Reads = []plan.Dep{{Asset: mustKey("clean/daily"), Requires: plan.RequiresAvailable}}
	_, err = plan.Build(complete)
	require.NoError(t, err, "the dependency overrides the asset")
	complete.Assets[3].Reads = nil
	complete.AllowIncomplete = true
	p, err = plan.Build(complete)
	require.NoError(t, err)
	require.Len(t, p.Incomplete, 2)

	request.Calendar = calendarAt("2012-01-04T00:00:00Z")
	p, err = plan.Build(request)
	require.NoError(t, err)
	require.Equal(t, missing("analytics/monthly", 3, "2012-01-03"), p.Incomplete[0], "the fourth day has not ended")

	request.Calendar = calendarAt("2012-01-03T23:59:59Z")
	p, err = plan.Build(request)
	require.NoError(t, err)
	require.Empty(t, p.Incomplete)
}
