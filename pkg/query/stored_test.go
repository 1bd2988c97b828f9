package query_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/query"
)

func TestQueryAtMostReturnsSameRows(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"SELECT 1 AS a, 2 AS a, 3 AS A, NULL AS n, count(*) FROM range(3)",
		"FROM range(10) ORDER BY range DESC",
		"SELECT i, i % 7 AS m FROM range(100000) t(i) ORDER BY m, i DESC LIMIT 5 -- the last ones",
		"WITH t AS (FROM range(3)) FROM t",
		"VALUES (1, 'a'), (2, NULL)",
		"DESCRIBE runs",
		"DESCRIBE SELECT 1 AS a",
		"SUMMARIZE VALUES (1), (2)",
		"SELECT 1; SHOW TABLES",
		"SELECT 1; SELECT table_name FROM duckdb_tables()",
		"EXPLAIN SELECT 1",
		"PIVOT (VALUES ('a', 1), ('b', 2)) t(k, v) ON k USING sum(v)",
		"PIVOT (SELECT table_name[:1] AS k FROM information_schema.tables) ON k USING count(*)",
		"FROM (VALUES ('a', 1)) t(k, v) SELECT k, v",
		"CREATE TABLE t AS FROM range(3); INSERT INTO t VALUES (7); FROM t",
		"CREATE OR REPLACE TABLE t AS FROM range(3)",
		"SET VARIABLE x = 3; SELECT getvariable('x')",
		"SELECT '24:00:00'::TIME, [1, NULL], {'a': DATE '2025-01-01'}, MAP {'k': 1.50}, union_value(d := DATE '2025-01-01'), 'x'::ENUM ('x', 'y'), '{\"a\":1}'::JSON",
		"SELECT DISTINCT 1 UNION ALL SELECT 2",
		"TABLE runs",
		"SELECT COLUMNS(*) FROM (SELECT 1 AS a, 2 AS b)",
	} {
		db := newRevision(t).open(t)
		rows, err := db.Query(t.Context(), sql)
		require.NoError(t, err, sql)
		columns, changes := rows.Columns, rows.Changes
		want, err := rows.Collect(1000)
		require.NoError(t, err, sql)
		require.NoError(t, db.Close())
		for _, limit := range []int{1000, 100_000} {
			db := newRevision(t).open(t)
			rows, err = db.QueryAtMost(t.Context(), limit, sql)
			require.NoError(t, err, sql)
			require.Equal(t, columns, rows.Columns, sql)
			require.Equal(t, changes, rows.Changes, sql)
			got, err := rows.Collect(1000)
			require.NoError(t, err, sql)
			require.Equal(t, want, got, sql)
			require.NoError(t, db.Close())
		}
	}
}

func TestQueryAtMostBoundsResults(t *testing.T) {
	t.Parallel()
	db, err := query.Open(t.Context(), query.Source{}, query.Options{MemoryBytes: 64 << 20})
	require.NoError(t, err)
	defer db.Close()
	const many = "SELECT CASE WHEN i < 5_000_000 THEN i ELSE error('more rows than necessary') END AS i FROM range(10_000_000) t(i)"
	rows, err := db.QueryAtMost(t.Context(), 3, many+"; "+many)
	require.NoError(t, err)
	got, err := rows.Collect(10)
	require.NoError(t, err)
	require.Equal(t, [][]any{{int64(0)}, {int64(1)}, {int64(2)}}, got)

	_, err = db.QueryAtMost(t.Context(), 100_000, "SELECT repeat('x', 1_000_000) FROM range(200)")
	require.ErrorContains(t, err, "need too much memory: select fewer rows or columns")
}

func TestQueryRejectsNUL(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	_, err := db.Query(t.Context(), "SELECT count(*) FROM range(5) t(i)\x00 WHERE i > 3")
	require.ErrorContains(t, err, "the SQL contains a NUL character")
}
