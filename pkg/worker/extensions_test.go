package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// A query has network access only if its asset has the setting `uses`. Otherwise, the error of the query says what to
// add to this setting.
func TestQueryWithoutUsesSaysWhatToAdd(t *testing.T) {
	for text, want := range map[string]string{
		"FROM read_xlsx('data/x.xlsx')":                      "excel",
		"FROM read_parquet('s3://landing/x.parquet')":        "httpfs",
		"FROM 'https://data.example.com/x.csv'":              "httpfs",
		"FROM read_csv('gs://landing/' || 'x' || '.csv.gz')": "httpfs",
	} {
		w := newFixture(t, nil, map[string]plan.Work{"a/b": query(text)}, task("a/b", "", nil))
		e := w.failed("a/b")
		require.Equal(t, worker.CodeSourceDenied, e.Code, text)
		require.False(t, e.Retryable, text)
		require.Contains(t, e.Message, ": the asset does not use "+want+": add uses: ["+want+"]", text)
		require.NotContains(t, w.log("a/b"), "INSTALL", text)
	}
}

// Queries cannot load extensions that Servo does not support. Their errors explain this, and omit DuckDB's advice to
// install an extension.
func TestQueryWithoutExtensionSaysWhatToDo(t *testing.T) {
	const load = "load the data with a command, which writes Parquet, CSV or JSON files, and select from its asset"
	for text, want := range map[string]string{
		"FROM sqlite_scan('data/x.db', 't')":               "it exists in the sqlite_scanner extension",
		"FROM postgres_scan('host=db', 'public', 't')":     "it exists in the postgres_scanner extension",
		"FROM mysql_query('m', 'SELECT 1')":                "it exists in the mysql_scanner extension",
		"FROM iceberg_scan('data/x')":                      "it exists in the iceberg extension",
		"FROM delta_scan('data/x')":                        "it exists in the delta extension",
		"SELECT ST_Point(1, 2) AS p":                       "it exists in the spatial extension",
		"FROM read_parquet('azure://container/x.parquet')": "A query has no network access: ",
	} {
		w := newFixture(t, nil, map[string]plan.Work{"a/b": query(text)}, task("a/b", "", nil))
		e := w.failed("a/b")
		require.Equal(t, worker.CodeSQL, e.Code, text)
		require.False(t, e.Retryable, "%s: no retry helps", text)
		require.Contains(t, e.Message, want, text)
		require.Contains(t, e.Message, load, text)
		for _, advice := range []string{"INSTALL", "LOAD ", "autoload", "autoinstall", "Please try"} {
			require.NotContains(t, e.Message, advice, text)
		}
		require.NotContains(t, w.log("a/b"), "INSTALL", text)
	}
}

// A query cannot install or load an extension, and cannot attach a database.
func TestQueryCannotLoadOrAttach(t *testing.T) {
	for _, text := range []string{
		"INSTALL httpfs", "LOAD httpfs", "ATTACH 'data/other.duckdb' AS other", "SET autoload_known_extensions = true",
		"CREATE SECRET s (TYPE s3, KEY_ID 'x', SECRET 'y')", "COPY (SELECT 1) TO 's3://landing/x.parquet'",
	} {
		w := newFixture(t, nil, map[string]plan.Work{"a/b": query(text)}, task("a/b", "", nil))
		require.Equal(t, worker.CodeSQL, w.failed("a/b").Code, text)
	}
}
