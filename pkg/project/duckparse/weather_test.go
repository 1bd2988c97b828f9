package duckparse_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

const weatherDir = "../../../examples/weather"

// weatherPlan returns a plan that runs all assets of the weather example.
func weatherPlan(t *testing.T) *plan.Plan {
	t.Helper()
	loaded, err := project.Load(t.Context(), weatherDir, project.Options{ParseSQL: open(t).Parse})
	require.NoError(t, err)
	s, err := plan.ParseSelection("date=2012-01-01..2015-12-31")
	require.NoError(t, err)
	p, err := plan.Build(plan.Request{Root: loaded.Root, Assets: loaded.Assets, All: true, Partitions: []plan.Selection{s}})
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	return p
}

// execute runs the queries of a plan in order, in an in-memory DuckDB. All partitions of an asset are in one table.
func execute(t *testing.T, p *plan.Plan) *sql.DB {
	t.Helper()
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(1)
	t.Chdir(weatherDir)
	made := map[string]bool{}
	for _, task := range p.Tasks {
		work := p.Assets[task.AssetKey]
		if task.Kind == event.KindGroup || work.SQL == "" {
			continue
		}
		key, err := ids.ParseAssetKey(task.AssetKey)
		require.NoError(t, err)
		partition, err := ids.ParsePartition(task.PartitionKey)
		require.NoError(t, err)
		statement := "INSERT INTO " + key.SQL() + " " + work.SQL
		if !made[task.AssetKey] {
			made[task.AssetKey] = true
			statement = "CREATE SCHEMA IF NOT EXISTS " + key.Namespace + "; CREATE TABLE " + key.SQL() + " AS " + work.SQL
		}
		for dimension, value := range partition {
			_, err = db.ExecContext(t.Context(), fmt.Sprintf("SET VARIABLE %s = %s '%s'", dimension, work.Dimensions[dimension], value))
			require.NoError(t, err)
		}
		_, err = db.ExecContext(t.Context(), statement)
		require.NoError(t, err, task.TaskKey)
	}
	return db
}

// rows returns the rows of a query, with values joined by spaces.
func rows(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	var all string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT coalesce(string_agg(line, chr(10)), '') FROM ("+query+") AS t(line)").Scan(&all))
	return strings.Split(all, "\n")
}

func TestWeatherExamplePlan(t *testing.T) {
	p := weatherPlan(t)
	const days = 1461
	require.Len(t, p.Tasks, days+1+7, "one task per day, one group node, and seven more assets")
	waits := map[string][]string{}
	for _, task := range p.Tasks {
		waits[task.TaskKey] = task.DependsOn
	}
	require.Equal(t, []string{"raw/observations"}, waits["clean/daily[date=2012-02-29]"])
	require.Len(t, waits["clean/daily[*]"], days)
	require.Equal(t, []string{"clean/daily[*]"}, waits["analytics/monthly"])
	require.Equal(t, []string{"clean/daily[*]"}, waits["analytics/spells"])
	require.Equal(t, []string{"analytics/monthly"}, waits["analytics/records"])
	require.Equal(t, []string{"analytics/monthly"}, waits["analytics/anomalies"])
	require.Equal(t, []string{"analytics/anomalies", "analytics/records"}, waits["report/climate"])
	require.Equal(t, []string{"analytics/anomalies", "analytics/monthly", "report/climate"}, waits["report/chart"])
	require.Equal(t, "charts", p.Tasks[len(p.Tasks)-1].Pool)
	chart := p.Assets["report/chart"]
	require.Len(t, chart.Files["scripts/chart.py"], 32, "the worker compares the file with this hash")
	chart.Files = nil
	require.Equal(t, plan.Work{Command: []string{"python3", "scripts/chart.py"}, InputFormat: plan.FormatCSV}, chart)
}

func TestWeatherExampleResults(t *testing.T) {
	db := execute(t, weatherPlan(t))
	require.Equal(t, []string{"2922"}, rows(t, db, "SELECT count(*)::VARCHAR FROM clean.daily"))
	require.Equal(t, []string{"96 96"}, rows(t, db, "SELECT format('{} {}', count(*), count_if(complete)) FROM analytics.monthly"))
	require.Equal(t, []string{
		"February 2015 was the coldest month in New York: -4.08 °C, -4.4 °C from what is usual",
		"October 2013 was the driest month in New York: 8.5 mm, -57.9 mm from what is usual",
		"July 2013 was the warmest month in New York: 26.38 °C, +0.9 °C from what is usual",
		"June 2013 was the wettest month in New York: 202.1 mm, +59.7 mm from what is usual",
		"January 2013 was the coldest month in Seattle: 3.45 °C, -2.0 °C from what is usual",
		"August 2012 was the driest month in Seattle: 0.0 mm, -40.9 mm from what is usual",
		"July 2015 was the warmest month in Seattle: 21.8 °C, +1.7 °C from what is usual",
		"December 2015 was the wettest month in Seattle: 284.5 mm, +128.8 mm from what is usual",
	}, rows(t, db, "SELECT sentence FROM report.climate ORDER BY city, record"))
	require.Equal(t, []string{"Seattle dry 2012-07-23 2012-10-11 81"},
		rows(t, db, "SELECT format('{} {} {} {} {}', city, kind, first_day, last_day, days) FROM analytics.spells ORDER BY days DESC LIMIT 1"))
	// Compare with a query that computes the same figures directly from the file.
	require.Equal(t, rows(t, db, "SELECT round(sum(precipitation), 1)::VARCHAR FROM 'data/weather.csv' WHERE location = 'Seattle'"),
		rows(t, db, "SELECT round(sum(precipitation_mm), 1)::VARCHAR FROM analytics.monthly WHERE city = 'Seattle'"))
	require.Equal(t, []string{"0"}, rows(t, db, "SELECT count(*)::VARCHAR FROM "+
		"(SELECT sum(temp_anomaly_c) AS total FROM analytics.anomalies GROUP BY city, month(month)) WHERE abs(total) > 0.05"),
		"the anomalies of a calendar month cancel out")
}
