package duckparse_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/project"
)

// batchProject contains the files of a project, by name. A query with a batch can read the assets of the project.
var batchProject = map[string]string{
	"servo.yaml":          "",
	"assets/raw/made.sql": daily + "SELECT getvariable('date') AS date, 1 AS id, 2 AS v",
	"assets/raw/bare.sql": daily + "SELECT 1 AS id, 2 AS v",
	"assets/raw/pass.sql": daily + "SELECT * FROM raw.made",
	"assets/raw/open.sql": daily + "SELECT * FROM 'data/x.csv'",
	"assets/raw/call.yaml": "run: {command: [x]}\ncolumns: {id: INTEGER}\n" +
		"partitions: {daily: {start: 2025-01-01, end: 2025-01-31}}",
	"assets/raw/hours.sql": "/* servo\npartitions: {hourly: {start: 2025-01-01, end: 2025-01-31}}\n*/\nSELECT 1 AS id",
	"assets/raw/names.sql": "SELECT 2 AS id, DATE '2025-01-01' AS d",
	"assets/raw/many.sql":  "/* servo\npartitions: {date: {daily: {start: 2025-01-01, end: 2025-01-31}}, region: {static: [eu, us]}}\n*/\nSELECT 1 AS id",
}

// loadBatch loads the project with an additional asset that consists of the header and the query.
func loadBatch(t *testing.T, header, query string) (*project.Project, error) {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	for name, content := range batchProject {
		write(name, content)
	}
	write("assets/q/x.sql", header+query)
	p := open(t)
	return project.Load(t.Context(), root, project.Options{ParseSQL: p.Parse, CheckBatches: p.Mixings})
}

const (
	inDays = "/* servo\npartitions: {daily: {start: 2025-01-01, end: 2025-01-31}}\nbatch: 50\n*/\n"
	inBoth = "/* servo\npartitions: {date: {daily: {start: 2025-01-01, end: 2025-01-31}}, region: {static: [eu, us]}}\nbatch: 50\n*/\n"
)

const (
	keys  = "getvariable('date_keys')"
	start = "getvariable('date_start')"
	end   = "getvariable('date_end')"
)

// TestBatchesThatMix maps queries that may mix the partitions of a batch to the problem that Load must report.
func TestBatchesThatMix(t *testing.T) {
	const (
		window   = "a window function sees rows of several partitions"
		limit    = "LIMIT chooses among the rows of all partitions"
		distinct = "DISTINCT ON keeps only one of several rows that belong to different partitions"
		group    = "a group has rows of several partitions"
		groupAll = "GROUP BY ALL puts rows of several partitions into one group"
		without  = "without GROUP BY computes one row from several partitions"
		sub      = "a subquery reads several partitions for each row"
		join     = "a join combines rows of different partitions"
		column   = "the column date of the result may differ"
		filtered = "filtered by all partitions of the batch"
		same     = "is the same for all partitions of the batch"
		zip      = "SELECT has a second function that returns several rows, and DuckDB pairs the rows of both functions by position"
		ordinal  = "the ordinal of a row depends on the other partitions in the batch"
		function = "Servo does not know which rows the function "
	)
	for query, want := range map[string]string{
		"SELECT date, id, row_number() OVER (ORDER BY v) AS n FROM raw.made":                       window,
		"SELECT date, sum(v) OVER (PARTITION BY id) AS n FROM raw.made":                            window,
		"SELECT date, v FROM raw.made QUALIFY row_number() OVER (PARTITION BY id ORDER BY v) = 1":  window,
		"SELECT date, rank() OVER w AS n FROM raw.made WINDOW w AS (ORDER BY v)":                   window,
		"SELECT date, v FROM raw.made ORDER BY v LIMIT 10":                                         limit,
		"SELECT date, v FROM raw.made ORDER BY v LIMIT 10%":                                        limit,
		"SELECT date, v FROM raw.made OFFSET 1":                                                    limit,
		"WITH t AS (SELECT * FROM raw.made LIMIT 5) SELECT date, v FROM t":                         limit,
		"SELECT DISTINCT ON (id) date, v FROM raw.made ORDER BY v":                                 distinct,
		"SELECT max(date) AS date, sum(v) AS v FROM raw.made GROUP BY id":                          group,
		"SELECT date, sum(v) AS v FROM raw.made GROUP BY ROLLUP (date)":                            group,
		"SELECT max(date) AS date, id, sum(v) AS v FROM raw.made GROUP BY ALL":                     groupAll,
		"SELECT max(date) AS date, sum(v) AS v FROM raw.made":                                      without,
		"SELECT date, v - (SELECT avg(v) FROM raw.made) AS d FROM raw.made":                        without,
		"SELECT date, v FROM raw.made WHERE v > (SELECT v FROM raw.bare)":                          sub,
		"SELECT date, v FROM raw.made m WHERE EXISTS (SELECT 1 FROM raw.bare b WHERE b.id = m.id)": sub,
		"SELECT date, v FROM raw.made WHERE id IN (SELECT id FROM raw.bare)":                       sub,
		"SELECT m.date, b.v FROM raw.made m JOIN raw.bare b ON m.id = b.id":                        join,
		"SELECT m.date, b.v FROM raw.made m, raw.bare b":                                           join,
		"SELECT m.date, b.v FROM raw.made m LEFT JOIN raw.bare b USING (id)":                       join,
		"SELECT m.date, m.v FROM raw.made m ANTI JOIN raw.bare b USING (id)":                       join,
		"SELECT m.date, n.id FROM raw.made m FULL JOIN raw.names n USING (id)":                     join,
		"SELECT date + 1 AS date, v FROM raw.made":                                                 column,
		"SELECT d AS date, m.v FROM raw.made m JOIN raw.names n USING (id)":                        column,
		"SELECT * FROM raw.open": "raw/open may have a column date of its own",
		"SELECT d::DATE AS date FROM range(getvariable('date_start'), getvariable('date_end'), INTERVAL 36 HOUR) AS t(d)":  "the rows that range returns depend",
		"SELECT date, len(" + keys + ") AS n FROM raw.made":                                                                same,
		"SELECT " + keys + "[1] AS date, 1 AS n":                                                                           same,
		"SELECT date, v FROM raw.made WHERE d IN " + keys:                                                                  filtered,
		"SELECT a.d AS date FROM 'x.csv' a, 'y.csv' b WHERE a.d IN " + keys + " AND b.d IN " + keys:                        filtered,
		"SELECT ts::DATE AS date FROM 'x.csv' WHERE ts < getvariable('date_end')":                                          "only one end of the span",
		"SELECT ts::DATE AS date FROM 'x.csv' WHERE ts > getvariable('date_start') AND ts < getvariable('date_end')":       "write >= instead of >",
		"SELECT date, v FROM raw.made WHERE getvariable('date_start') < date":                                              "write >= instead of >",
		"SELECT d AS date FROM 'x.csv' WHERE d IN " + keys + " LIMIT 3":                                                    limit,
		"SELECT d AS date, sum(v) OVER (ORDER BY d) AS v FROM 'x.csv' WHERE d IN " + keys:                                  window,
		"SELECT * FROM read_csv(list_transform(" + keys + ", lambda d: d || '.csv'))":                                      "the rows that read_csv returns depend on all partitions",
		"SELECT * FROM raw.made USING SAMPLE 10":                                                                           "a random sample of a batch",
		"SELECT k.d AS date, m.v FROM raw.made m, unnest(" + keys + ") AS k(d)":                                            join,
		"SELECT * FROM raw.made UNION ALL SELECT * FROM raw.bare":                                                          "the position of date is unknown",
		"SELECT date, v FROM raw.made UNION ALL SELECT current_date, v FROM raw.bare":                                      column,
		"SELECT year(hour)::VARCHAR::DATE AS date, count(*) AS n FROM raw.hours GROUP BY 1":                                group,
		"SELECT date, v FROM (PIVOT raw.made ON id IN (1, 2) USING sum(v))":                                                "cannot examine pivot",
		"WITH RECURSIVE t AS (SELECT date, v FROM raw.made UNION ALL SELECT date, v FROM t WHERE v < 0) FROM t":            "a recursive query reads several partitions",
		"SELECT date, (SELECT count(*) FROM raw.bare b, raw.names n WHERE b.date = n.d) AS n FROM raw.made":                without,
		"SELECT c.date, m.v FROM raw.names c POSITIONAL JOIN raw.made m":                                                   "a positional join",
		"SELECT date, v FROM raw.made m WHERE v > ALL (SELECT v FROM raw.bare)":                                            sub,
		"SELECT m.date, m.v FROM raw.made m ASOF JOIN raw.bare b ON m.id = b.id AND m.v >= b.v":                            join,
		"SELECT date, CASE WHEN v IN " + keys + " THEN 1 END AS n FROM raw.made":                                           same,
		"SELECT n.d AS date, (SELECT max(v) FROM raw.made m WHERE m.id = n.id) AS v FROM raw.names n WHERE n.d IN " + keys: without,

		// Functions that return several rows, or that read tables.
		"SELECT unnest(" + keys + ") AS date, unnest([7]) AS n":                                                       zip,
		"SELECT unnest(" + keys + ") AS date, 1 + generate_subscripts([7], 1) AS n":                                   zip,
		"SELECT d AS date, n FROM unnest(" + keys + ") WITH ORDINALITY AS t(d, n)":                                    ordinal,
		"SELECT d::DATE AS date, n FROM range(" + start + ", " + end + ", INTERVAL 1 DAY) WITH ORDINALITY AS t(d, n)": ordinal,
		"SELECT m.date, s.n FROM generate_series(0, (SELECT max(v) FROM raw.made)) AS s(n), raw.made m":               without,
		"SELECT m.date, s.n FROM raw.made m, generate_series(0, (SELECT max(v) FROM raw.made)) AS s(n)":               without,
		"SELECT m.date, s.n FROM unnest((SELECT list(v) FROM raw.made)) AS s(n), raw.made m":                          without,
		"SELECT date, (SELECT max(v) FROM query_table('raw.made')) AS n FROM raw.made":                                function + "query_table reads",
		"SELECT m.date, h.bin FROM raw.made m, histogram_values(raw.made, v) h":                                       function + "histogram_values reads",
		"SELECT date, (SELECT count(*) FROM duckdb_variables()) AS n FROM raw.made":                                   function + "duckdb_variables reads",
		"SELECT d::DATE AS date FROM range(" + start + ", " + end + " - INTERVAL 1 DAY, INTERVAL 1 HOUR) AS t(d)":     "the rows that range returns depend",

		// The list of columns after an alias renames columns.
		"SELECT m.date, b.w FROM raw.made m JOIN (SELECT id, v, date FROM raw.bare) b(id, w, day) ON m.id = b.id":                                join,
		"WITH t(day, date) AS (SELECT date, id FROM raw.made) SELECT date FROM t":                                                                column,
		"WITH t(date) AS (SELECT id, date FROM raw.made) SELECT date FROM t":                                                                     column,
		"WITH t(date, date) AS (SELECT id, date FROM raw.made) SELECT date FROM t":                                                               column,
		"WITH t(day, id, v) AS (SELECT date, id, v FROM raw.made) SELECT day AS date, count(*) OVER (PARTITION BY id) AS n FROM t":               "PARTITION BY",
		"WITH t(day, id, v) AS (SELECT date, id, v FROM raw.made) SELECT a.day AS date, b.v FROM t a JOIN t b ON a.id = b.id":                    join,
		"SELECT day AS date, v FROM (SELECT date, id, v FROM raw.made) t(day, id, v) QUALIFY row_number() OVER (PARTITION BY id ORDER BY v) = 1": "PARTITION BY",
		"SELECT DISTINCT ON (id) day AS date, v FROM (SELECT date, id, v FROM raw.made) t(day, id, v) ORDER BY v":                                "DISTINCT ON",

		// Clauses that choose rows.
		"SELECT m.date, t.x FROM raw.made m, (SELECT 1 AS x UNION ALL SELECT 2 LIMIT len(" + keys + ")) t":                           same,
		"SELECT m.date, t.x FROM raw.made m, (SELECT 1 AS x UNION ALL SELECT 2 ORDER BY x * len(" + keys + ") LIMIT 1) t":            same,
		"SELECT m.date, t.x FROM raw.made m, (SELECT DISTINCT ON (d) d, v AS x FROM 'x.csv' ORDER BY v * (2 - len(" + keys + "))) t": same,
		"SELECT m.date, t.x FROM raw.made m, (SELECT DISTINCT ON (v % len(" + keys + ")) v AS x FROM 'x.csv') t":                     same,
		"SELECT DISTINCT ON (date, v % len(" + keys + ")) date, v FROM raw.made":                                                     same,
		"SELECT date, sum(v) AS v FROM raw.made GROUP BY date, v % len(" + keys + ")":                                                same,
		"SELECT m.date, t.v FROM raw.made m, (SELECT sum(v) AS v FROM raw.names GROUP BY id % len(" + keys + ")) t":                  same,
		"SELECT * EXCLUDE (m.date) FROM raw.made m JOIN (SELECT id, d AS date FROM raw.names) n USING (id)":                          column,
		"SELECT COLUMNS(c -> c IN ('date', 'v') OR len(" + keys + ") > 1) FROM raw.made":                                             same,
	} {
		_, err := loadBatch(t, inDays, query)
		if assert.ErrorContains(t, err, want, query) {
			assert.Contains(t, err.Error(), "batch: {size: 50, independent: true}", query)
			assert.Contains(t, err.Error(), "assets/q/x.sql:5:", query)
		}
	}
}

// separate lists queries that must not be reported.
var separate = []string{
	"SELECT date, id, v FROM raw.made",
	"SELECT * FROM raw.made",
	"FROM raw.pass",
	"SELECT * FROM raw.bare ORDER BY v",
	"SELECT date, count(*) AS n FROM raw.call GROUP BY date",
	"SELECT d AS date, sum(v) AS v FROM 'x.csv' WHERE d IN " + keys + " GROUP BY d",
	"SELECT day AS date, sum(v) AS v FROM 'x.csv' WHERE day IN " + keys + " GROUP BY date",
	"SELECT day AS date, sum(v) AS v FROM 'x.csv' WHERE day = ANY(" + keys + ") GROUP BY ALL",
	"SELECT seen::DATE AS date, v FROM 'x.csv' WHERE seen::DATE IN " + keys,
	"SELECT seen::DATE AS date, v FROM 'x.csv' WHERE list_contains(" + keys + ", seen::DATE)",
	"SELECT ts::DATE AS date, count(*) AS n FROM 'x.csv' WHERE ts >= getvariable('date_start') AND ts < getvariable('date_end') GROUP BY 1",
	"SELECT date_trunc('day', ts)::DATE AS date FROM 'x.csv' WHERE ts >= getvariable('date_start') AND ts < getvariable('date_end')",
	"SELECT CAST(d AS DATE) AS date, i AS n FROM unnest(" + keys + ") AS t(d), range(2) AS r(i)",
	"SELECT unnest(" + keys + ") AS date, 1 AS n",
	"SELECT CAST(d AS DATE) AS date FROM generate_series(getvariable('date_start'), getvariable('date_end') - INTERVAL 1 DAY, INTERVAL 1 DAY) AS t(d)",
	"SELECT date, id, row_number() OVER (PARTITION BY date ORDER BY v) AS n FROM raw.made",
	"SELECT date, lag(v) OVER w AS n FROM raw.made WINDOW w AS (PARTITION BY date, id ORDER BY v)",
	"SELECT * FROM raw.made QUALIFY row_number() OVER (PARTITION BY date, id ORDER BY v) = 1",
	"SELECT DISTINCT date, id FROM raw.made",
	"SELECT DISTINCT ON (date, id) date, id, v FROM raw.made ORDER BY v",
	"SELECT date, id, sum(v) AS v FROM raw.made GROUP BY GROUPING SETS ((date), (date, id))",
	"SELECT date, id, sum(v) AS v FROM raw.made GROUP BY ALL HAVING sum(v) > 1",
	"SELECT *, v * 2 AS w FROM raw.made GROUP BY ALL",
	"SELECT m.date, b.v FROM raw.made m JOIN raw.bare b ON m.id = b.id AND m.date = b.date",
	"SELECT m.date, b.v FROM raw.made m, raw.bare b WHERE m.id = b.id AND b.date = m.date",
	"SELECT date, b.v FROM raw.made m JOIN raw.bare b USING (date, id)",
	"SELECT m.date, b.v FROM raw.made m LEFT JOIN raw.bare b ON m.id = b.id AND m.date = b.date",
	"SELECT date, b.v FROM raw.made m FULL JOIN raw.bare b USING (date)",
	"SELECT coalesce(m.date, b.date) AS date, b.v FROM raw.made m FULL JOIN raw.bare b ON m.date = b.date",
	"SELECT m.* FROM raw.made m ANTI JOIN raw.bare b USING (date, id)",
	"SELECT m.date, m.v FROM raw.made m ASOF JOIN raw.bare b ON m.date = b.date AND m.v >= b.v",
	"SELECT m.date, n.d FROM raw.made m LEFT JOIN raw.names n USING (id)",
	"SELECT m.date, n.d FROM raw.names n RIGHT JOIN raw.made m USING (id)",
	"SELECT k.d AS date, count(m.v) AS n FROM unnest(" + keys + ") AS k(d) LEFT JOIN raw.made m ON m.date = k.d GROUP BY ALL",
	"SELECT date, v - (SELECT avg(v) FROM raw.made b WHERE b.date = m.date) AS d FROM raw.made m",
	"SELECT date, (SELECT v FROM raw.bare b WHERE b.date = m.date LIMIT 1) AS d FROM raw.made m",
	"SELECT date, v FROM raw.made WHERE v > (SELECT max(id) FROM raw.names)",
	"SELECT date, v FROM raw.made m WHERE NOT EXISTS (SELECT 1 FROM raw.bare b WHERE b.id = m.id AND b.date = m.date)",
	"SELECT date, v FROM raw.made WHERE date IN (SELECT date FROM raw.bare)",
	"SELECT d AS date, id FROM raw.names WHERE d IN (SELECT date FROM raw.bare)",
	"WITH a AS (SELECT date, id, v FROM raw.made), b(day, w) AS (SELECT date, sum(v) FROM a GROUP BY date) SELECT a.date, w FROM a JOIN b ON a.date = b.day",
	"WITH c AS (SELECT * FROM raw.names ORDER BY id LIMIT 1) SELECT m.date, c.d FROM raw.made m JOIN c USING (id)",
	"SELECT date, v FROM raw.made UNION ALL SELECT date, v FROM raw.bare",
	"SELECT v, date FROM raw.made UNION ALL BY NAME SELECT * FROM raw.bare",
	"SELECT date, id FROM raw.made EXCEPT SELECT d, id FROM raw.names",
	"SELECT hour::DATE AS date, count(*) AS n FROM raw.hours GROUP BY 1",
	"SELECT date, region, count(*) AS n FROM raw.many GROUP BY ALL",
	"SELECT date, v FROM raw.made ORDER BY v * len(" + keys + ")",
	"SELECT day AS date, * FROM 'x.csv' WHERE day IN " + keys,
	"SELECT m.date, x.* FROM raw.made m JOIN 'x.csv' x ON m.date = x.d",
	"SELECT unnest([id, v]) AS n, date FROM raw.made",
	"SELECT m.date, t.d, t.n FROM raw.made m, unnest([m.id, m.v]) WITH ORDINALITY AS t(d, n)",
	"SELECT date, unnest([v, id]) AS v, unnest([id, v]) AS id FROM raw.made",
	"SELECT m.date, n.id FROM raw.made m, range((SELECT max(id) FROM raw.names)) AS n(id)",
	"SELECT d::DATE AS date, d FROM range(" + start + ", " + end + " - INTERVAL 1 HOUR, INTERVAL 2 HOUR) AS t(d)",
	"SELECT d::DATE AS date, d FROM generate_series(" + start + ", " + end + " - INTERVAL 2 HOUR, INTERVAL 2 HOUR) AS t(d)",
	"SELECT m.date, t.n FROM raw.made m, LATERAL (SELECT count(*) AS n FROM raw.bare b WHERE b.date = m.date) t",
	"SELECT day AS date, n FROM (SELECT date, id FROM raw.made) t(day, n)",
	"WITH t(n, day) AS (SELECT id, date FROM raw.made) SELECT day AS date, count(*) AS n FROM t GROUP BY day",
}

func TestBatchesThatKeepPartitionsSeparate(t *testing.T) {
	for _, query := range separate {
		_, err := loadBatch(t, inDays, query)
		assert.NoError(t, err, query)
	}
}

// TestSeparateQueriesHaveTheSameRowsAlone executes each accepted query for three days together, and for each day alone.
// A day must have the same rows in both cases.
func TestSeparateQueriesHaveTheSameRowsAlone(t *testing.T) {
	db, err := sql.Open("duckdb", "")
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	exec := func(query string) {
		_, err := db.ExecContext(t.Context(), query)
		require.NoError(t, err, query)
	}
	file := filepath.Join(t.TempDir(), "x.csv")
	exec(`SET TimeZone = 'UTC'; CREATE SCHEMA raw;
		CREATE TABLE days AS SELECT DATE '2025-01-01' + i::INTEGER AS date, (j * 7 + i) % 3 AS id, (i * 5 + j * 3) % 7 AS v FROM range(3) t(i), range(9) u(j);
		CREATE TABLE raw.names AS SELECT i AS id, DATE '2025-01-01' + i::INTEGER AS d FROM range(3) t(i);
		COPY (SELECT date AS d, date AS day, v, date + to_hours(v) AS seen, date + to_hours(v) AS ts FROM days) TO '` + file + `'`)
	rows := func(query string, days ...string) map[string][]string {
		list := "['" + strings.Join(days, "', '") + "']::DATE[]"
		exec("SET VARIABLE date_keys = " + list + "; SET VARIABLE date_start = TIMESTAMPTZ '" + days[0] + "'; SET VARIABLE date_end = TIMESTAMPTZ '" +
			days[len(days)-1] + "' + INTERVAL 1 DAY")
		const some = " FROM days WHERE contains(getvariable('date_keys'), date)"
		for table, columns := range map[string]string{
			"made": "date, id, v", "pass": "date, id, v", "bare": "id, (v + 1) % 5 AS v, date", "call": "id, date",
			"hours": "id, (date + to_hours(v))::TIMESTAMPTZ AS hour", "many": "id, date, CASE WHEN v > 3 THEN 'eu' ELSE 'us' END AS region",
		} {
			exec("CREATE OR REPLACE TABLE raw." + table + " AS SELECT " + columns + some + " ORDER BY hash(id, v, date)")
		}
		found, err := db.QueryContext(t.Context(), "SELECT date::VARCHAR, t::VARCHAR FROM ("+strings.ReplaceAll(query, "'x.csv'", "'"+file+"'")+") AS t ORDER BY ALL")
		require.NoError(t, err, query)
		defer found.Close()
		of := map[string][]string{}
		for found.Next() {
			var day, row string
			require.NoError(t, found.Scan(&day, &row), query)
			of[day] = append(of[day], row)
		}
		require.NoError(t, found.Err())
		return of
	}
	days, some := []string{"2025-01-01", "2025-01-02", "2025-01-03"}, 0
	for _, query := range separate {
		together := rows(query, days...)
		for _, day := range days {
			assert.Equal(t, rows(query, day)[day], together[day], "%s: %s", query, day)
			some += len(together[day])
		}
	}
	require.Greater(t, some, 3*len(separate))
}

// TestBatchesOfSeveralDimensions checks that a query is accepted for batches only if it keeps the partitions of each
// dimension separate.
func TestBatchesOfSeveralDimensions(t *testing.T) {
	for query, want := range map[string]string{
		"SELECT date, region, sum(id) OVER (PARTITION BY date) AS n FROM raw.many":                            "add the column of the partition to PARTITION BY: region",
		"SELECT date, region, count(*) AS n FROM raw.many GROUP BY ALL":                                       "",
		"SELECT date, unnest(getvariable('region_keys')) AS region, v FROM raw.made":                          "",
		"SELECT date, r.k AS region, m.v FROM raw.made m, unnest(getvariable('region_keys')) AS r(k)":         "",
		"SELECT date, r.k AS region, m.v FROM raw.made m, unnest(getvariable('region_keys')) AS r(k) LIMIT 1": "LIMIT",
		"SELECT unnest(" + keys + ") AS date, unnest(getvariable('region_keys')) AS region":                   "pairs the rows of both functions by position",
	} {
		_, err := loadBatch(t, inBoth, query)
		if want == "" {
			assert.NoError(t, err, query)
		} else {
			assert.ErrorContains(t, err, want, query)
		}
	}
}

// TestBatchesOfHoursKeepTheirKeys: a query may convert the list of hours only to types in which the hours still
// differ.
func TestBatchesOfHoursKeepTheirKeys(t *testing.T) {
	for cast, want := range map[string]string{
		"":                "",
		"::TIMESTAMP[]":   "",
		"::TIMESTAMPTZ[]": "",
		"::VARCHAR[]":     "",
		"::DATE[]":        "is the same for all partitions of the batch",
	} {
		_, err := loadBatch(t, strings.Replace(inDays, "daily", "hourly", 1), "SELECT unnest(getvariable('hour_keys')"+cast+") AS hour")
		if want == "" {
			assert.NoError(t, err, cast)
		} else {
			assert.ErrorContains(t, err, want, cast)
		}
	}
}

// TestBatchStatedAsIndependent: if the author of a query declares that its partitions are independent, Load accepts
// the query although Servo cannot prove this.
func TestBatchStatedAsIndependent(t *testing.T) {
	header := strings.Replace(inDays, "batch: 50", "batch: {size: all, independent: true}", 1)
	p, err := loadBatch(t, header, "SELECT date, v FROM raw.made LIMIT 10")
	require.NoError(t, err)
	for i := range p.Assets {
		if p.Assets[i].Key.String() == "q/x" {
			require.Equal(t, 1000, p.Assets[i].Batch)
			return
		}
	}
	t.Fatal("the asset is missing")
}

// An outer join after or around a USING clause, or after a join with a problem, must not cause a panic.
func TestUsingBesideOuterJoinIsExamined(t *testing.T) {
	for query, reports := range map[string]bool{
		"SELECT date, b.v FROM raw.made m JOIN raw.bare b USING (date) LEFT JOIN raw.names n ON n.id = m.id":        false,
		"SELECT m.date, b.v FROM raw.made m LEFT JOIN (raw.bare b JOIN raw.many c USING (date)) ON b.date = m.date": false,
		"SELECT m.date, b.v FROM raw.made m JOIN raw.bare b ON m.id = b.id LEFT JOIN raw.call c ON c.date = m.date": true,
	} {
		_, err := loadBatch(t, inDays, query)
		if reports {
			require.ErrorContains(t, err, "a join combines rows of different partitions", query)
		} else {
			require.NoError(t, err, query)
		}
	}
}
