package duckparse_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/project"
)

const daily = "/* servo\npartitions: {daily: {start: 2025-01-01, end: 2025-01-31}}\n*/\n"

// loadQuery loads a project with some daily assets and a daily query that reads them.
func loadQuery(t *testing.T, parse project.SQLParser, query string) error {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"servo.yaml":            "",
		"assets/raw/made.sql":   daily + "SELECT getvariable('date') AS d, 1 AS v, 2 AS id, now() AS seen",
		"assets/raw/cast.sql":   daily + "SELECT CAST(getvariable('date') AS TIMESTAMP) AS d, * FROM range(3)",
		"assets/raw/file.sql":   daily + "SELECT * FROM read_csv('data/x.csv') WHERE d = getvariable('date')",
		"assets/raw/seen.sql":   daily + "SELECT seen::DATE AS d, seen, v FROM read_csv('data/x.csv') WHERE seen::DATE = getvariable('date')",
		"assets/raw/open.sql":   daily + "SELECT * FROM read_csv('data/' || getvariable('date') || '.csv')",
		"assets/raw/call.yaml":  "run: {command: [x], input_format: csv}\npartitions: {daily: {start: 2025-01-01, end: 2025-01-31}}",
		"assets/raw/once.sql":   "SELECT DATE '2025-01-01' AS d, 1 AS v, 2 AS id",
		"assets/raw/names.sql":  "SELECT 2 AS id, 'x' AS name",
		"assets/clean/pass.sql": daily + "WITH w AS (SELECT v, d AS \"Day\" FROM raw.made) SELECT * FROM w",
		"assets/clean/star.sql": daily + "SELECT m.*, n.name FROM raw.made AS m JOIN raw.names AS n ON m.id = n.id",
		"assets/clean/all.sql":  "SELECT * FROM raw.made",
		"assets/q/x.sql":        daily + query,
	} {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o750))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	_, err := project.Load(t.Context(), root, project.Options{ParseSQL: parse})
	return err
}

// TestLoadRejectsLookbacks maps queries of a daily asset to the problem that Load must report.
func TestLoadRejectsLookbacks(t *testing.T) {
	const date = "getvariable('date')"
	before := func(column string) string {
		return "the filter on " + column + " needs days before getvariable('date'), but a task of a daily asset reads only the same day of "
	}
	other := func(column string) string {
		return "the filter on " + column + " needs days other than getvariable('date'), but a task of a daily asset reads only the same day of "
	}
	window := func(column string) string {
		return "the window over " + column + " needs several days, but a task of a daily asset reads only the same day of "
	}
	parse := open(t).Parse
	for query, want := range map[string]string{
		"FROM raw.made WHERE d + 7 > " + date:                                                            before("d") + "raw/made",
		"FROM raw.made WHERE " + date + " - d < 7":                                                       before("d") + "raw/made",
		"FROM raw.made WHERE d IN (" + date + ", " + date + " - 1)":                                      before("d") + "raw/made",
		"FROM raw.made WHERE date_trunc('month', d) = date_trunc('month', " + date + ")":                 before("d") + "raw/made",
		"FROM raw.call WHERE strftime(d, '%Y-%m') = strftime(" + date + ", '%Y-%m')":                     before("d") + "raw/call",
		"FROM raw.open WHERE d::VARCHAR LIKE strftime(" + date + ", '%Y-%m') || '%'":                     before("d") + "raw/open",
		"WITH p AS (SELECT " + date + " - 7 AS lo) SELECT v FROM raw.made, p WHERE d >= p.lo":            before("d") + "raw/made",
		"WITH p AS MATERIALIZED (SELECT " + date + " - 7 AS lo) SELECT v FROM raw.made, p WHERE d >= lo": before("d") + "raw/made",
		"SELECT 1 UNION ALL SELECT lag(v) OVER (ORDER BY d) FROM raw.made":                               window("d") + "raw/made",
		"FROM raw.made JOIN raw.names USING (id) WHERE d >= " + date + " - 7":                            before("d") + "raw/made",
		"FROM raw.made AS t JOIN raw.made AS y ON y.d = t.d - 1":                                         other("y.d") + "raw/made",
		"FROM raw.cast AS t JOIN raw.file AS y ON y.d = t.d - 1":                                         other("y.d") + "raw/cast, raw/file",
		"FROM raw.made AS t JOIN raw.made AS y ON y.d BETWEEN t.d - 6 AND t.d":                           other("y.d") + "raw/made",
		"FROM raw.made WHERE d < " + date:                                                                other("d") + "raw/made",
		"SELECT sum(v) FILTER (WHERE d = " + date + " - 1) FROM clean.pass, raw.made":                    other("d") + "raw/made",
		"SELECT lag(v) OVER (ORDER BY d) FROM raw.made":                                                  window("d") + "raw/made",
		"SELECT lag(v) OVER (ORDER BY day) FROM clean.pass":                                              window("day") + "clean/pass",
		"SELECT lag(v) OVER (PARTITION BY id ORDER BY d) FROM clean.star":                                window("d") + "clean/star",
		"SELECT sum(v) OVER (ORDER BY d ROWS 6 PRECEDING) FROM raw.seen":                                 window("d") + "raw/seen",
		"SELECT sum(v) OVER (ORDER BY d) FROM raw.made JOIN raw.names USING (id)":                        window("d") + "raw/made",

		// Load accepts each of the queries below for one of these reasons: the query needs only one day, it reads no daily
		// asset, or Load cannot determine which days it needs.
		"FROM raw.made WHERE d = " + date:                                                   "",
		"FROM raw.open WHERE y = year(" + date + ")":                                        "",
		"FROM raw.call WHERE m = strftime(" + date + ", '%Y-%m')":                           "",
		"FROM raw.call WHERE m = date_trunc('month', " + date + ")":                         "",
		"FROM raw.made WHERE d <= " + date:                                                  "",
		"FROM raw.made WHERE d > " + date + " - 1 AND d < " + date + " + 1":                 "",
		"FROM raw.made WHERE date_diff('day', d, " + date + ") <= 7":                        "",
		"FROM raw.once WHERE d + 7 > " + date:                                               "",
		"FROM clean.all WHERE " + date + " - d < 7":                                         "",
		"FROM raw.made AS t JOIN raw.once AS y ON y.d = t.d - 1":                            "",
		"FROM raw.made AS t JOIN clean.all AS y ON y.d = t.d - 1":                           "",
		"FROM raw.made AS t JOIN raw.made AS y ON y.d = t.d":                                "",
		"SELECT lag(v) OVER (ORDER BY d) FROM clean.all":                                    "",
		"SELECT lag(v) OVER (ORDER BY d) FROM raw.open":                                     "",
		"SELECT lag(v) OVER (ORDER BY d) FROM raw.call":                                     "",
		"SELECT lag(v) OVER (ORDER BY d, seen) FROM raw.made":                               "",
		"SELECT lag(v) OVER (ORDER BY seen) FROM raw.seen":                                  "",
		"FROM raw.made QUALIFY row_number() OVER (PARTITION BY id ORDER BY d DESC) = 1":     "",
		"SELECT sum(v) FILTER (WHERE d >= " + date + " - 7) FROM raw.open":                  "",
		"FROM raw.made WHERE month(d) = month(" + date + ") AND day(d) = day(" + date + ")": "",
	} {
		err := loadQuery(t, parse, query)
		if want == "" {
			assert.NoError(t, err, query)
		} else {
			assert.ErrorContains(t, err, want, query)
		}
	}
}

// TestLoadRejectsUnknownVariables: DuckDB would not report an unknown variable: its value is NULL.
func TestLoadRejectsUnknownVariables(t *testing.T) {
	parse := open(t).Parse
	for query, want := range map[string]string{
		"SELECT getvariable('dat') AS x":        `unknown variable "dat", which would be NULL: did you mean date?`,
		"SELECT getvariable('date_stat') AS x":  `unknown variable "date_stat", which would be NULL: did you mean date_start?`,
		"SELECT getvariable('month') AS x":      `unknown variable "month", which would be NULL: the asset has date, date_start, date_end; a variable of servo.yaml is var_NAME`,
		"SELECT getvariable('var_month') AS x":  `unknown variable "month"`,
		"SELECT getvariable('da' || 'te') AS x": "the name of a variable must be a literal",
		"SELECT * FROM query('SELECT 1 AS x')":  "query() hides the tables that it reads",
		"SELECT 1 AS x FROM enable_logging()":   "a query may not call enable_logging(): remove the call",
	} {
		assert.ErrorContains(t, loadQuery(t, parse, query), want, query)
	}
	assert.NoError(t, loadQuery(t, parse, "SELECT getvariable('DATE') AS d, getvariable('date_start') AS s, getvariable('date_end') AS e, getvariable('servo_root') AS r"))
}
