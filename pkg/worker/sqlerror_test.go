package worker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func TestSQLErrorsNameThePlaceInTheFile(t *testing.T) {
	for name, c := range map[string]struct{ query, want string }{
		"column": {
			"SELECT 'é' AS a,\n  'é', nosuch FROM range(3) t(n)",
			"assets/a/b.sql:8:8: Binder Error: Referenced column \"nosuch\" not found in FROM clause!\nCandidate bindings: \"n\"\n\n" +
				"LINE 8:   'é', nosuch FROM range(3) t(n)\n               ^",
		},
		"syntax": {
			"SELECT 'é'\nFRM a.b x y",
			"assets/a/b.sql:8:5: Parser Error: syntax error at or near \"a\"\n\nLINE 8: FRM a.b x y\n            ^",
		},
		"first line": {
			"SELEC 1",
			"assets/a/b.sql:7:4: Parser Error: syntax error at or near \"SELEC\"\n\nLINE 7: SELEC 1\n        ^",
		},
		"at run time, behind a path": {
			"SELECT m, CAST(v AS INTEGER) AS n FROM read_csv('data/x.csv'), (\n  SELECT CAST(k AS INTEGER) AS m FROM read_csv('data/x.csv'))",
			"assets/a/b.sql:8:10: Conversion Error: Could not convert string 'a' to INT32 when casting from source column k\n\n" +
				"LINE 8:   SELECT CAST(k AS INTEGER) AS m FROM read_csv('data/x.csv'))\n                 ^",
		},
		"in a sum": {
			"SELECT\n  sum(CAST(k AS INTEGER)) AS total FROM read_csv('data/x.csv')",
			"assets/a/b.sql:8:7: Conversion Error: Could not convert string 'a' to INT32 when casting from source column k\n\n" +
				"LINE 8:   sum(CAST(k AS INTEGER)) AS total FROM read_csv('data/x.csv')\n              ^",
		},
		"without a place": {
			"SELECT error('first\nsecond')",
			"assets/a/b.sql: Invalid Input Error: first\nsecond",
		},
		"a long line": {
			"SELECT " + strings.Repeat("1, ", 100) + "nosuch",
			"assets/a/b.sql:7:311: Binder Error: Referenced column \"nosuch\" was not found because the FROM clause is missing\n\n" +
				"LINE 7: …" + strings.Repeat("1, ", 20) + "nosuch\n" + strings.Repeat(" ", 8+1+61-1) + "^",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, nil, map[string]plan.Work{"a/b": query(c.query)}, task("a/b", "", nil))
			w.plan.Sources = map[string]plan.Source{"a/b": {File: "assets/a/b.sql", Line: 7, Column: 4}}
			w.storePlan()
			w.file("data/x.csv", "k,v\na,1\n")
			got := w.failed("a/b")
			require.Equal(t, worker.CodeSQL, got.Code)
			require.Equal(t, c.want, got.Message)
			require.Equal(t, 1, strings.Count(w.log("a/b"), c.want), "the log has it once")
		})
	}
}

func TestIntegersStayExactThroughFiveAssets(t *testing.T) {
	const big = "12345678901234567890123456789012345678" // 38 digits
	works := map[string]plan.Work{"a/n0": query("SELECT i, " + big + "::HUGEINT - i AS n FROM range(2) t(i)")}
	tasks := []plan.Task{task("a/n0", "", nil)}
	for i := 1; i < 5; i++ {
		up, key := fmt.Sprintf("a/n%d", i-1), fmt.Sprintf("a/n%d", i)
		works[key] = query(fmt.Sprintf("SELECT i, sum(n) AS n FROM a.n%d GROUP BY i ORDER BY i DESC", i-1))
		tasks = append(tasks, task(key, "", map[string]plan.InputSet{up: from(up)}, up))
	}
	w := newFixture(t, nil, works, tasks...)
	for i := range 4 {
		w.run(fmt.Sprintf("a/n%d", i))
	}
	end := w.run("a/n4")
	require.Equal(t, []string{"0|" + big + "|DECIMAL(38,0)", "1|" + big[:37] + "7|DECIMAL(38,0)"}, w.rows(end, "i, n, typeof(n)"))
}

func TestIntegersStayExactInsideNestedTypes(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query(
		`SELECT sum(i) AS total, sum(i) AS "to""tal", {'x HUGEINT': sum(i), 'l': [sum(i)]} AS s, MAP {'k': sum(i)} AS m, 'HUGEINT'::ENUM('HUGEINT') AS e,
			sum(i)::UHUGEINT AS u, sum(i::DOUBLE) AS d FROM range(4) t(i)`,
	)}, task("a/b", "", nil))
	require.Equal(t, []string{
		`DECIMAL(38,0)|DECIMAL(38,0)|STRUCT("x HUGEINT" DECIMAL(38,0), l DECIMAL(38,0)[])|MAP(VARCHAR, DECIMAL(38,0))|VARCHAR|DECIMAL(38,0)|DOUBLE|6`,
	}, w.rows(w.run("a/b"), `typeof(total), typeof("to""tal"), typeof(s), typeof(m), typeof(e), typeof(u), typeof(d), total`))
}

// Parquet would change these values: it stores intervals modulo 2³² milliseconds, unions without their tags, and
// times without their offsets.
func TestTypesThatParquetChangesAreRefused(t *testing.T) {
	for sql, kind := range map[string]string{
		"SELECT INTERVAL '2000 hours' AS x":                       "INTERVAL",
		"SELECT {'l': [INTERVAL '1 hour']} AS x":                  "STRUCT(l INTERVAL[])",
		"SELECT union_value(a := 1) AS x":                         "UNION(a INTEGER)",
		"SELECT '12:00:00+05:30'::TIMETZ AS x":                    "TIME WITH TIME ZONE",
		"SELECT 1 AS y, MAP {'k': '12:00:00+05:30'::TIMETZ} AS x": "MAP(VARCHAR, TIME WITH TIME ZONE)",
	} {
		w := newFixture(t, nil, map[string]plan.Work{"a/b": query(sql)}, task("a/b", "", nil))
		got := w.failed("a/b")
		require.Equal(t, worker.CodeInvalidOutput, got.Code, sql)
		require.Contains(t, got.Message, "column x has type "+kind+", whose values Parquet would change: store ", sql)
		require.False(t, got.Retryable)
	}
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query(
		`SELECT TIMESTAMPTZ '2025-01-01 00:00:00+00' AS z, TIME '12:00:00' AS t, {'INTERVAL': 1, 'TIME WITH TIME ZONE': 2} AS s, 'UNION'::ENUM('UNION') AS e`,
	)}, task("a/b", "", nil))
	require.Equal(t, []string{"12:00:00|1|UNION"}, w.rows(w.run("a/b"), `t, s."INTERVAL", e`))
}

func TestIntegersKeepTheOrderOfRows(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{
		"a/b": query("SELECT i, sum(i) AS n FROM range(5000) t(i) GROUP BY i ORDER BY i DESC"),
		"a/c": query("SELECT list(i) = list(i ORDER BY i DESC) AS ordered FROM a.b"),
	}, task("a/b", "", nil), task("a/c", "", map[string]plan.InputSet{"a/b": from("a/b")}, "a/b"))
	w.run("a/b")
	require.Equal(t, []string{"true"}, w.rows(w.run("a/c"), "ordered"))
}

func TestIntegersThatDoNotFitFailWithTheColumn(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": query("SELECT 170141183460469231731687303715884105727::HUGEINT - i AS large FROM range(1) t(i)")}, task("a/b", "", nil))
	got := w.failed("a/b")
	require.Equal(t, worker.CodeSQL, got.Code)
	require.Contains(t, got.Message, "Column large: integers beyond 64 bits are stored as DECIMAL(38,0), which has 38 digits")
}
