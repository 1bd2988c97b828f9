package duckparse_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inZone is the header of a query with daily partitions in a time zone.
const inZone = "/* servo\npartitions: {daily: {start: 2025-01-01, timezone: CITY}}\nbatch: 50\n*/\n"

// loadInZone loads a project with an asset that consists of the header and the query, in which it replaces CITY by
// the time zone.
func loadInZone(t *testing.T, zone, header, query string) error {
	t.Helper()
	files := map[string]string{
		"servo.yaml":           "",
		"assets/raw/hours.sql": "/* servo\npartitions: {hourly: {start: 2025-01-01, timezone: CITY}}\n*/\nSELECT 1 AS id",
		"assets/raw/days.sql":  "/* servo\npartitions: {daily: {start: 2025-01-01, timezone: CITY}}\n*/\nSELECT 1 AS id",
		"assets/q/x.sql":       header + query,
	}
	for name := range files {
		files[name] = strings.ReplaceAll(files[name], "CITY", zone)
	}
	return loadFiles(t, files)
}

// zoneDay is a SQL expression for the day of an instant in the time zone of the partitions.
const zoneDay = "(hour AT TIME ZONE 'CITY')::DATE"

// separateInZones lists queries that must not be reported, for daily partitions in another time zone than UTC.
var separateInZones = []string{
	"SELECT date, v FROM raw.days",
	"SELECT date, row_number() OVER (PARTITION BY date ORDER BY v) AS n FROM raw.days WHERE date IN " + keys,
	"SELECT d::DATE AS date, count(*) AS n FROM unnest(" + keys + ") t(d) JOIN raw.days m ON m.date = d::DATE GROUP BY 1",
	"SELECT " + zoneDay + " AS date, count(*) AS n FROM raw.hours GROUP BY 1",
	"SELECT date_trunc('day', hour AT TIME ZONE 'CITY')::DATE AS date, count(*) AS n FROM raw.hours WHERE " + zoneDay + " IN " + keys + " GROUP BY ALL",
	"SELECT (ts::TIMESTAMPTZ AT TIME ZONE 'CITY')::DATE AS date, count(*) AS n FROM 'x.parquet' WHERE ts >= " + start + " AND ts < " + end + " GROUP BY 1",
	"SELECT (wall::TIMESTAMPTZ AT TIME ZONE 'CITY')::DATE AS date, count(*) AS n FROM 'x.parquet' WHERE wall >= " + start + " AND wall < " + end + " GROUP BY 1",
	"SELECT ts::DATE AS date, count(*) AS n FROM 'x.parquet' WHERE ts::DATE IN " + keys + " GROUP BY 1",
	"SELECT (d AT TIME ZONE 'CITY')::DATE AS date, count(*) AS n FROM range(" + start + ", " + end + ", INTERVAL 1 HOUR) AS t(d) GROUP BY 1",
	"SELECT date, m.v, count(*) AS n FROM raw.days m JOIN raw.hours ON date = " + zoneDay + " GROUP BY ALL",
	"SELECT date, m.v, count(hour) AS n FROM raw.days m LEFT JOIN raw.hours ON date = " + zoneDay + " GROUP BY ALL",
	"SELECT date, (SELECT count(*) FROM raw.hours WHERE " + zoneDay + " = m.date) AS n FROM raw.days m",
	"SELECT " + zoneDay + " AS date, count(*) AS n FROM raw.hours a JOIN raw.hours b USING (hour) GROUP BY hour",
}

// TestBatchesThatMixTimeZones contains queries with daily partitions in a time zone other than UTC, and the problem
// that Load must report for each query.
func TestBatchesThatMixTimeZones(t *testing.T) {
	const (
		column   = "the column date of the result may differ"
		filtered = "filtered by all partitions of the batch"
		join     = "a join combines rows of different partitions"
		series   = "the rows that generate_series returns depend"
	)
	for query, want := range map[string]string{
		"SELECT hour::DATE AS date, count(*) AS n FROM raw.hours WHERE hour::DATE IN " + keys + " GROUP BY 1":                                    filtered,
		"SELECT hour::DATE AS date, v FROM raw.hours":                                                                                            column,
		"SELECT (hour AT TIME ZONE 'Asia/Tokyo')::DATE AS date FROM raw.hours":                                                                   column,
		"SELECT ts::DATE AS date FROM 'x.parquet' WHERE ts >= " + start + " AND ts < " + end:                                                     column,
		"SELECT (ts AT TIME ZONE 'CITY')::DATE AS date FROM 'x.parquet' WHERE ts >= " + start + " AND ts < " + end:                               column,
		"SELECT ts::DATE AS date FROM 'x.parquet' WHERE ts >= " + start + " AND ts < " + end + " AND ts::DATE IN " + keys:                        filtered,
		"SELECT date, v FROM raw.days WHERE date >= " + start + " AND date < " + end:                                                             filtered,
		"SELECT date, m.v FROM raw.days m JOIN raw.hours ON date = hour":                                                                         join,
		"SELECT date, m.v FROM raw.days m LEFT JOIN raw.hours ON date = hour":                                                                    join,
		"SELECT date, (SELECT count(*) FROM raw.hours WHERE hour = m.date) AS n FROM raw.days m":                                                 "without GROUP BY",
		"SELECT (d AT TIME ZONE 'CITY')::DATE AS date FROM generate_series(" + start + ", " + end + " - INTERVAL 1 DAY, INTERVAL 1 DAY) AS t(d)": series,
		"SELECT d::DATE AS date FROM range(" + start + ", " + end + ", INTERVAL 1 HOUR) AS t(d)":                                                 column,
	} {
		for _, zone := range []string{"Europe/Paris", "America/New_York"} {
			assert.ErrorContains(t, loadInZone(t, zone, inZone, strings.ReplaceAll(query, "CITY", zone)), want, "%s: %s", zone, query)
		}
	}
	for query, want := range map[string]string{
		"SELECT (ts AT TIME ZONE 'Asia/Tokyo')::DATE AS date FROM 'x.parquet' WHERE ts >= " + start + " AND ts < " + end:                           column,
		"SELECT ts::DATE AS date FROM 'x.parquet' WHERE ts::TIMESTAMPTZ >= " + start + " AND ts::TIMESTAMPTZ < " + end:                             column,
		"SELECT ts::TIMESTAMP_S::DATE AS date FROM 'x.parquet' WHERE ts >= " + start + " AND ts < " + end:                                          column,
		"SELECT ts::DATE AS date FROM 'x.parquet' WHERE ts >= " + start + " AT TIME ZONE 'Asia/Tokyo' AND ts < " + end:                             "the same for all partitions",
		"SELECT (ts::TIMESTAMP AT TIME ZONE 'UTC')::DATE AS date FROM 'x.parquet' WHERE ts::TIMESTAMP >= " + start + " AND ts::TIMESTAMP < " + end: "",
		"SELECT ts::DATE AS date FROM 'x.parquet' WHERE ts::TIMESTAMP >= " + start + " AND ts::TIMESTAMP < " + end:                                 "",
	} {
		if err := loadInZone(t, "UTC", inZone, query); want == "" {
			assert.NoError(t, err, query)
		} else {
			assert.ErrorContains(t, err, want, query)
		}
	}
}

// TestBatchesOfHoursInTimeZones: the hours of a zone are hours of UTC, except in zones such as India, whose offset is
// not a whole number of hours.
func TestBatchesOfHoursInTimeZones(t *testing.T) {
	query := "SELECT date_trunc('hour', ts)::TIMESTAMPTZ AS hour FROM 'x.csv' WHERE ts >= getvariable('hour_start') AND ts < getvariable('hour_end')"
	hourly := strings.Replace(inZone, "daily", "hourly", 1)
	assert.NoError(t, loadInZone(t, "Europe/Paris", hourly, query))
	assert.ErrorContains(t, loadInZone(t, "Asia/Kolkata", hourly, query), "the column hour of the result may differ")
}

// TestBatchesOfMonthsInTimeZones: a month consists of the same dates in every time zone.
func TestBatchesOfMonthsInTimeZones(t *testing.T) {
	monthly := strings.Replace(inZone, "daily: {start: 2025-01-01", "monthly: {start: 2025-01", 1)
	assert.NoError(t, loadInZone(t, "Europe/Paris", monthly, "SELECT date_trunc('month', date)::DATE AS month, count(*) AS n FROM raw.days GROUP BY 1"))
	for query, want := range map[string]string{
		"SELECT date_trunc('month', date AT TIME ZONE 'Europe/Paris')::DATE AS month FROM raw.days":                            "the column month of the result may differ",
		"SELECT date_trunc('month', hour)::DATE AS month FROM raw.hours":                                                       "the column month of the result may differ",
		"SELECT date_trunc('month', date)::DATE AS month FROM raw.days d JOIN (SELECT DISTINCT hour FROM raw.hours) ON id = 1": "cannot examine dates together with instants",
	} {
		assert.ErrorContains(t, loadInZone(t, "Europe/Paris", monthly, query), want, query)
	}
}

// TestSeparateQueriesInZonesHaveTheSameRowsAlone executes each accepted query once for several days, and once for each
// of these days, and compares the rows. Some of the days have 23 or 25 hours.
func TestSeparateQueriesInZonesHaveTheSameRowsAlone(t *testing.T) {
	for zone, days := range map[string][]string{
		"Europe/Paris":     {"2025-03-29", "2025-03-30", "2025-03-31", "2025-04-01", "2025-10-25", "2025-10-26", "2025-10-27"},
		"America/New_York": {"2025-03-08", "2025-03-09", "2025-03-10", "2025-11-01", "2025-11-02", "2025-11-03"},
	} {
		z := openZone(t, zone)
		some := 0
		for _, query := range separateInZones {
			query = strings.ReplaceAll(query, "CITY", zone)
			require.NoError(t, loadInZone(t, zone, inZone, query), query)
			for i := 0; i+1 < len(days); i++ {
				together := z.rows(t, query, days[i], days[i+1])
				for _, day := range days[i : i+2] {
					assert.Equal(t, z.rows(t, query, day, day)[day], together[day], "%s: %s", query, day)
					some += len(together[day])
				}
			}
		}
		require.Greater(t, some, 2*len(separateInZones))
	}
}

// zoned is a database whose inputs have daily partitions in a time zone.
type zoned struct {
	db         *sql.DB
	zone, file string
}

func openZone(t *testing.T, zone string) *zoned {
	t.Helper()
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	db.SetMaxOpenConns(1)
	z := &zoned{db, zone, filepath.Join(t.TempDir(), "x.parquet")}
	z.exec(t, `SET TimeZone = 'UTC'; CREATE SCHEMA raw;
		CREATE TABLE many AS SELECT h AS hour, h AS ts, h::TIMESTAMP AS wall, hour(h) AS v
		FROM range(TIMESTAMPTZ '2025-03-01 00:00:00+00', TIMESTAMPTZ '2025-11-10 00:00:00+00', INTERVAL 1 HOUR) t(h);
		COPY many TO '`+z.file+`'`)
	return z
}

func (z *zoned) exec(t *testing.T, query string) {
	t.Helper()
	_, err := z.db.ExecContext(t.Context(), query)
	require.NoError(t, err, query)
}

// rows executes a query for a batch of the days from first to last, and returns its rows by date.
func (z *zoned) rows(t *testing.T, query, first, last string) map[string][]string {
	t.Helper()
	z.exec(t, "SET VARIABLE date_keys = (SELECT list(d::DATE) FROM generate_series(DATE '"+first+"', DATE '"+last+"', INTERVAL 1 DAY) t(d));"+
		"SET VARIABLE date_start = (TIMESTAMP '"+first+"' AT TIME ZONE '"+z.zone+"');"+
		"SET VARIABLE date_end = (TIMESTAMP '"+last+"' + INTERVAL 1 DAY) AT TIME ZONE '"+z.zone+"';"+
		"CREATE OR REPLACE VIEW raw.hours AS SELECT hour, v FROM many WHERE hour >= getvariable('date_start') AND hour < getvariable('date_end');"+
		"CREATE OR REPLACE VIEW raw.days AS SELECT d AS date, i AS v FROM unnest(getvariable('date_keys')) t(d), range(3) r(i)")
	found, err := z.db.QueryContext(t.Context(), "SELECT date, t::VARCHAR FROM ("+strings.ReplaceAll(query, "'x.parquet'", "'"+z.file+"'")+") AS t ORDER BY ALL")
	require.NoError(t, err, query)
	defer func() { assert.NoError(t, found.Close()) }()
	of := map[string][]string{}
	for found.Next() {
		var day time.Time
		var row string
		require.NoError(t, found.Scan(&day, &row))
		of[day.Format(time.DateOnly)] = append(of[day.Format(time.DateOnly)], row)
	}
	require.NoError(t, found.Err())
	return of
}
