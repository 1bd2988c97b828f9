package worker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/testcase"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// unitTests reads the unit tests in the text of a file, and executes them.
func unitTests(t testing.TB, root, file string, assets ...plan.Asset) []testcase.Result {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(root, project.TestsDir), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, project.TestsDir, "a.yaml"), []byte(file), 0o600))
	slices.SortFunc(assets, func(a, b plan.Asset) int { return plan.CompareKeys(a.Key, b.Key) })
	vars := map[string]plan.Var{"least": {Type: plan.VarInteger, Value: "1"}}
	tests, problems, err := project.LoadTests(t.Context(), &project.Project{Root: root, Vars: vars, Assets: assets})
	require.NoError(t, err)
	require.Empty(t, problems)
	results, err := worker.RunUnitTests(t.Context(), worker.UnitTests{
		Root: root, Scratch: t.TempDir(), State: filepath.Join(root, ".servo"), Parallel: 2, Assets: assets, Tests: tests,
	})
	require.NoError(t, err)
	return results
}

// outcomes formats results, one per line.
func outcomes(results []testcase.Result) (lines []string) {
	for _, r := range results {
		line := string(r.Status)
		if r.Status == testcase.Invalid {
			line = r.At.String()
		}
		if r.Message != "" {
			line += ": " + r.Message
		}
		if r.Suggestion != "" {
			line += ": " + r.Suggestion
		}
		lines = append(lines, line)
	}
	return lines
}

func TestUnitTestExecutesQueryAsATaskDoes(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "data"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(root, "data", "names.csv"), []byte("id,name\n1,one\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "secret.csv"), []byte("id\n1\n"), 0o600))
	sums := daily(sqlAsset("sums", "SELECT sum(amount) AS total, getvariable('date') AS day FROM a.amounts WHERE amount >= getvariable('var_least')", "amounts"))
	sums.Work.Vars = map[string]plan.Var{"least": {Type: plan.VarInteger, Value: "1"}}
	results := unitTests(t, root, `
tests:
  - {name: sums are exact, asset: a/sums, partition: {date: 2025-01-02}, given: {a.amounts: [{amount: 9223372036854775807}, {amount: 2}, {amount: 0}]},
     expect: {rows: [{total: 9223372036854775809, day: 2025-01-02}]}}
  - {name: variables have values, asset: a/sums, partition: {date: 2025-01-02}, vars: {least: 2}, given: {a.amounts: [{amount: 1}, {amount: 2}]}, expect: {rows: [{TOTAL: 2}]}}
  - {name: other columns are null, asset: a/sums, partition: {date: 2025-01-02}, given: {a/amounts: [{label: x}]}, expect: {rows: [{total: null}]}}
  - {name: data folders, asset: a/names, given: {a.amounts: []}, expect: {rows: [{name: one, amount: null}]}}
  - {name: other files, asset: a/secrets, expect: {error: "Permission Error"}}
  - {name: the period, asset: a/periods, partition: {date: 2025-01-02}, expect: {rows: [{first: 2025-01-02T00:00:00Z, hours: 24}]}}
  - {name: the period is reset, asset: a/unset, expect: {rows: [{first: null}]}}
  - {name: units, asset: a/units, expect: {error: "whose values Parquet would change"}}
`, sums,
		sqlAsset("amounts", "SELECT 1::BIGINT AS amount, 'x' AS label"),
		sqlAsset("names", "SELECT * FROM read_csv('data/names.csv') LEFT JOIN a.amounts ON id = amount", "amounts"),
		sqlAsset("secrets", "SELECT * FROM read_csv('secret.csv')"),
		daily(sqlAsset("periods", "SELECT getvariable('date_start') AS first, date_diff('hour', first, getvariable('date_end')) AS hours")),
		sqlAsset("unset", "SELECT getvariable('date_start') AS first"),
		sqlAsset("units", "SELECT INTERVAL 1 DAY AS x"))
	require.Equal(t, slices.Repeat([]string{"passed"}, 8), outcomes(results))
}

func TestUnitTestReportsDifferentRowsAndErrors(t *testing.T) {
	results := unitTests(t, t.TempDir(), `
tests:
  - {name: rows, asset: a/double, given: {a.n: [{n: 1}, {n: 3}]}, expect: {rows: [{twice: 2}, {twice: 5}]}}
  - {name: order, asset: a/double, given: {a.n: [{n: 3}, {n: 1}]}, expect: {ordered: true, rows: [{twice: 6}, {twice: 2}]}}
  - {name: in order, asset: a/double, given: {a.n: [{n: 3}, {n: 1}]}, expect: {ordered: true, rows: [{twice: 2}, {twice: 6}]}}
  - {name: error, asset: a/double, given: {a.n: [{n: -1}]}, expect: {rows: []}}
  - {name: no error, asset: a/double, given: {a.n: [{n: 1}]}, expect: {error: negative}}
  - {name: other error, asset: a/double, given: {a.n: [{n: -1}]}, expect: {error: zero}}
  - {name: unread column fails, asset: a/double, given: {a.n: [{n: 7}]}, expect: {rows: [{twice: 14}]}}
`, sqlAsset("n", "SELECT 1 AS n"), sqlAsset("double", `SELECT
  if(n < 0, error('negative'), 2 * n) AS twice, if(n = 7, error('seven'), 0) AS other
FROM a.n ORDER BY n`, "n"))
	got := outcomes(results)
	require.Equal(t, "failed: 1 different row", got[0])
	require.Equal(t, "failed: the rows are in another order, from row 1 on", got[1])
	require.Equal(t, "passed", got[2])
	require.Contains(t, got[3], "failed: the query failed: assets/a/double.sql")
	require.Contains(t, got[3], "negative")
	require.Equal(t, `failed: expected an error with "negative", but the query returned 1 row`, got[4])
	require.Contains(t, got[5], `failed: expected an error with "zero", but the query failed with another error: `)
	require.Contains(t, got[6], "seven")
}

// An expected or given value that does not fit the type of its column is an error. This test fails if such a value is
// rounded or shortened, so that it then equals the actual value.
func TestUnitTestRoundsNoValues(t *testing.T) {
	values := sqlAsset("v", `SELECT [2, 3] AS l, DATE '2025-01-01' AS d, TIMESTAMP '2025-01-01' AS t, {'a': 1, 'b': 7} AS s, [true] AS lb,
		TIMESTAMP_S '2025-01-01' AS ts, TIME '10:00:00' AS tm, 5e-10::DOUBLE AS p, TIMESTAMPTZ '2025-01-01 00:00:00Z' AS tz, MAP {'k': 1} AS m, 'x' AS x`)
	for _, c := range []struct {
		row  string
		want testcase.Status
	}{
		{"l: [2, 3], lb: [true], s: {b: 7, A: 1}, m: {k: 1}", testcase.Passed},
		{"l: '[2, 3]', s: \"{'a': 1, 'b': 7}\", d: '2025-01-01', tz: 2025-01-01T02:00:00+02:00", testcase.Passed},
		{"t: 2025-01-01, ts: '2025-01-01 00:00:00.000', tm: '10:00', p: 5.0000000001e-10", testcase.Passed},
		{"l: [1.5, 3.4]", testcase.Invalid},
		{"l: '[2.4, 3]'", testcase.Invalid},
		{"lb: [5]", testcase.Invalid},
		{"s: {a: 1.4, b: 7}", testcase.Invalid},
		{"s: \"{'a': 1, 'b': 7.4}\"", testcase.Invalid},
		{"s: {a: 1, b: 7, c: 9}", testcase.Invalid},
		{"s: {a: 1}", testcase.Invalid},
		{"m: {k: 1.4}", testcase.Invalid},
		{"d: 2025-01-01T23:59:59", testcase.Invalid},
		{"d: '2025-01-01 23:00:00-05'", testcase.Invalid},
		{"t: 2025-01-01T00:00:00+02:00", testcase.Invalid},
		{"ts: '2025-01-01 00:00:00.4'", testcase.Invalid},
		{"tm: '10:00:00.0000001'", testcase.Invalid},
		{"x: [x]", testcase.Invalid},
		{"p: 0", testcase.Failed},
		{"p: 1e-12", testcase.Failed},
		{"p: -4e-10", testcase.Failed},
		{"tz: 2025-01-01T02:00:00+01:00", testcase.Failed},
	} {
		result := unitTests(t, t.TempDir(), "tests: [{name: n, asset: a/v, expect: {rows: [{"+c.row+"}]}}]", values)[0]
		require.Equal(t, c.want, result.Status, "%s: %s", c.row, result.Message)
	}
	reader := sqlAsset("r", "SELECT count(*) AS n FROM a.v", "v")
	for given, want := range map[string]testcase.Status{
		"[{l: [1.5]}]":                                            testcase.Invalid,
		"[{d: '2025-01-01 23:00:00'}]":                            testcase.Invalid,
		"[{l: [1], d: 2025-01-01}]":                               testcase.Passed,
		"{sql: \"SELECT TIMESTAMP '2025-01-01 23:00:00' AS d\"}":  testcase.Invalid,
		"{sql: \"SELECT '[1.5]' AS l\"}":                          testcase.Invalid,
		"{sql: 'SELECT {''a'': 1.5, ''b'': 7} AS s'}":             testcase.Invalid,
		"{sql: 'SELECT 0.1 AS p, [2] AS l, ''2025-01-01'' AS d'}": testcase.Passed,
	} {
		result := unitTests(t, t.TempDir(), "tests: [{name: n, asset: a/r, given: {a.v: "+given+"}, expect: {rows: [{n: 1}]}}]", values, reader)[0]
		require.Equal(t, want, result.Status, "%s: %s", given, result.Message)
	}
}

func TestUnitTestLocatesProblems(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "n.csv"), []byte("n\n1\nmany\n"), 0o600))
	results := unitTests(t, root, `tests:
  - name: column
    asset: a/double
    given: {a.n: [{m: 1}]}
    expect: {rows: []}
  - name: type
    asset: a/double
    given: {a.n: [{n: 1}, {n: 1.5}]}
    expect: {rows: []}
  - name: text
    asset: a/double
    given: {a.n: {csv: n.csv}}
    expect: {rows: []}
  - name: expected column
    asset: a/double
    given: {a.n: []}
    expect: {rows: [{twic: 1}]}
  - name: expected type
    asset: a/double
    given: {a.n: []}
    expect: {rows: [{twice: x}]}
  - name: not given
    asset: a/double
    expect: {rows: []}
  - name: not read
    asset: a/n
    given: {a.n: []}
    expect: {rows: []}
  - name: bad query
    asset: a/double
    given: {a.n: {sql: SELECT 1 AS n FROM nowhere}}
    expect: {rows: []}
  - name: query's column
    asset: a/double
    given: {a.n: {sql: SELECT 1 AS n; -- one }}
    expect: {rows: [{twice: 2}]}
`, sqlAsset("n", "SELECT 1 AS n"), sqlAsset("double", "SELECT 2 * n AS twice FROM a.n", "n"))
	require.Equal(t, []string{
		`tests/a.yaml:4:20: unknown column "m": did you mean n?`,
		`tests/a.yaml:8:31: column n has the type INTEGER, got 1.5`,
		`n.csv:3:1: column n has the type INTEGER, got "many"`,
		`tests/a.yaml:17:22: unknown column "twic": did you mean twice?`,
		`tests/a.yaml:21:29: column twice has the type INTEGER, got "x"`,
		`tests/a.yaml:22:5: the query reads a.n, but the test does not list it under given: add a.n: [] for a table without rows`,
		`tests/a.yaml:27:13: the query of a/n does not read a.n: it reads no assets`,
		`tests/a.yaml:31:24: the query of the given rows failed: Table with name nowhere does not exist`,
		`passed`,
	}, outcomes(results))
}

func TestUnitTestInfersUnknownColumns(t *testing.T) {
	results := unitTests(t, t.TempDir(), `
tests:
  - {name: from values, asset: a/report, given: {a.made: [{amount: 3, day: 2025-01-01}, {amount: 4.5, day: 2025-01-02}]},
     expect: {rows: [{total: 7.5, last: 2025-01-02, upper: null}]}}
  - {name: from the query, asset: a/report, given: {a.made: [{amount: 3}]}, expect: {rows: [{total: 3, last: null}]}}
  - {name: nothing known, asset: a/report, given: {a.made: []}, expect: {rows: []}}
  - {name: too little known, asset: a/months, given: {a.made: [{amount: 3}]}, expect: {rows: []}}
`, script("made"), sqlAsset("months", "SELECT date_trunc('month', day) AS month FROM a.made", "made"), sqlAsset("report", `SELECT sum(amount) AS total, max(day) AS last, upper(max(label)) AS upper FROM a.made`, "made"))
	require.Equal(t, "passed", outcomes(results)[0])
	require.Equal(t, "passed", outcomes(results)[1])
	require.Equal(t, "tests/a.yaml:6:52: the columns of a.made are not known, and no rows are given: "+
		"give it {sql: SELECT … WHERE false} with typed columns", outcomes(results)[2])
	require.Contains(t, outcomes(results)[3], "no values for these columns of a.made, so their types are unknown: day")
}

func TestUnitTestsDoNotSeeEachOther(t *testing.T) {
	file := "tests:\n"
	for i := range 40 {
		file += fmt.Sprintf("  - {name: t%d, asset: a/double, given: {a.n: [{n: %d}]}, expect: {rows: [{twice: %d}]}}\n", i, i, 2*i)
	}
	for _, r := range unitTests(t, t.TempDir(), file, sqlAsset("n", "SELECT 1 AS n"), sqlAsset("double", "SELECT 2 * n AS twice FROM a.n", "n")) {
		require.Equal(t, testcase.Passed, r.Status, "%s: %s", r.Test.Name, r.Message)
	}
}

// BenchmarkUnitTests measures unit tests of a query with two inputs.
func BenchmarkUnitTests(b *testing.B) {
	file := "tests:\n"
	for i := range 1000 {
		file += fmt.Sprintf("  - {name: t%d, asset: a/join, given: {a.n: [{n: %d, a: x}, {n: 2}], a.m: [{m: %d, b: y}]}, expect: {rows: [{n: %d, a: x, b: y}]}}\n", i, i+5, i+5, i+5)
	}
	assets := []plan.Asset{
		sqlAsset("n", "SELECT 1 AS n, 'a' AS a, DATE '2025-01-01' AS day"), sqlAsset("m", "SELECT 1 AS m, 'b' AS b, 1.5::DOUBLE AS x"),
		sqlAsset("join", "SELECT n, a, b, sum(x) AS x FROM a.n JOIN a.m ON n = m GROUP BY ALL ORDER BY n", "m", "n"),
	}
	for b.Loop() {
		for _, r := range unitTests(b, b.TempDir(), file, assets...) {
			require.Equal(b, testcase.Passed, r.Status, r.Message)
		}
	}
}
