package project_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/testcase"
)

// tested returns a project with a query, a partitioned query and a command.
func tested() *project.Project {
	query := func(name string, dimensions map[string]string) plan.Asset {
		a := plan.Asset{Key: ids.AssetKey{Namespace: "a", Name: name}, Work: plan.Work{SQL: "SELECT 1 AS x", Dimensions: dimensions}}
		if dimensions != nil {
			a.Partitions = &space.Space{Dimensions: []space.Dimension{{Name: "date", Kind: space.Daily, Start: "2025-01-01"}}}
		}
		return a
	}
	days := plan.Var{Type: plan.VarInteger, Value: "7"}
	p := &project.Project{
		Vars: map[string]plan.Var{"days": days, "currency": {Type: plan.VarString, Value: "EUR"}},
		Assets: []plan.Asset{
			query("query", nil), query("daily", map[string]string{"date": "DATE"}),
			{Key: ids.AssetKey{Namespace: "a", Name: "command"}, Work: plan.Work{Command: []string{"x"}}},
			{Key: ids.AssetKey{Namespace: "a", Name: "broken"}, Broken: "it has problems"},
		},
	}
	p.Assets[1].Work.Vars = map[string]plan.Var{"days": days}
	return p
}

// loadTests reads the tests of one file.
func loadTests(t testing.TB, text string, more ...string) ([]testcase.Test, []string) {
	t.Helper()
	files := fstest.MapFS{"tests/a/b.yaml": {Data: []byte(text)}}
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = &fstest.MapFile{Data: []byte(more[i+1])}
	}
	tests, problems, err := project.LoadTestsFS(t.Context(), files, tested())
	require.NoError(t, err)
	var texts []string
	for _, p := range problems {
		texts = append(texts, strings.TrimPrefix(p.String(), "tests/a/b.yaml:"))
	}
	return tests, texts
}

func TestLoadTestsReadsEveryKindOfValue(t *testing.T) {
	tests, problems := loadTests(t, `# two tests
tests:
  - name: values
    asset: a.daily
    partition: {date: 2025-01-15}
    vars: {days: 3}
    given:
      a.query:
        - {i: 0x10, big: 12345678901234567890123, f: 1.50, b: True, d: 2025-01-15, s: "1", n: null, l: [1, {a: b}]}
      a/command: {csv: tests/c.csv}
      a.broken: {sql: SELECT 1;}
    expect: {ordered: true, rows: [{x: .nan}]}
  - {name: an error, asset: a/query, expect: {error: "went wrong"}}
`, "tests/c.csv", "x,y\n1,\n\"a,b\",2025-01-01\n")
	require.Empty(t, problems)
	require.Len(t, tests, 2)
	got := tests[0]
	require.Equal(t, testcase.Place{File: "tests/a/b.yaml", Line: 3, Column: 5}, got.At)
	require.Equal(t, ids.Partition{"date": "2025-01-15"}, got.Partition)
	require.Equal(t, map[string]plan.Var{"days": {Type: plan.VarInteger, Value: "3"}}, got.Vars)
	var cells []string
	for _, c := range got.Given[0].Rows[0].Cells {
		cells = append(cells, c.Value.SQL(""))
	}
	require.Equal(t, []string{
		"16", "12345678901234567890123", "CAST('1.50' AS DOUBLE)", "true", "CAST('2025-01-15' AS DATE)", "'1'", "NULL", "[1, {'a': 'b'}]",
	}, cells)
	csv := got.Given[1].Rows
	require.Equal(t, testcase.Value{Kind: testcase.Integer, Text: "1"}, csv[0].Cells[0].Value)
	require.Equal(t, testcase.Value{}, csv[0].Cells[1].Value)
	require.Equal(t, testcase.Value{Kind: testcase.Text, Text: "a,b"}, csv[1].Cells[0].Value)
	require.Equal(t, testcase.Place{File: "tests/c.csv", Line: 3, Column: 7}, csv[1].Cells[1].At)
	require.Equal(t, "SELECT 1", got.Given[2].SQL)
	require.True(t, got.Expect.Ordered)
	require.Equal(t, "NaN", got.Expect.Rows[0].Cells[0].Value.Text)
	require.Equal(t, "went wrong", tests[1].Expect.Error)
	require.Nil(t, tests[1].Expect.Rows)
}

func TestLoadTestsReportsProblems(t *testing.T) {
	const good = "name: n, asset: a/query, expect: {rows: []}"
	for text, want := range map[string]string{
		"":                                `1:1: the file has no tests: write tests:, or remove the file`,
		"test: []":                        `1:1: the file has no tests: write tests:, or move the file out of the folder tests`,
		"tests: {}":                       `1:8: tests must be a list, got a mapping`,
		"tests: [{nam: x, " + good + "}]": `1:10: unknown field "nam" in a test: did you mean name?`,
		"tests: [{asset: a/query, expect: {rows: []}}]":                                                          `1:9: the test has no name: add name`,
		"tests: [{name: n, expect: {rows: []}}]":                                                                 `1:9: the test has no asset: add asset`,
		"tests: [{name: n, asset: a/query}]":                                                                     `1:9: the test has no expect: add expect`,
		"tests: [{name: n, asset: a/qeury, expect: {rows: []}}]":                                                 `1:26: unknown asset "a/qeury": did you mean a/query?`,
		"tests: [{name: n, asset: a/command, expect: {rows: []}}]":                                               `1:26: a/command is computed by a command, which a unit test cannot execute: test a query, or test the program with its own tools`,
		"tests: [{name: n, asset: a/broken, expect: {rows: []}}]":                                                `1:26: the file of a/broken has problems: servo validate shows them`,
		"tests: [{name: n, asset: a/daily, expect: {rows: []}}]":                                                 `1:9: a/daily is partitioned, and the test has no partition: add partition: {date: …}`,
		"tests: [{partition: {date: 2025-01-01}, " + good + "}]":                                                 `1:21: a/query is not partitioned: remove the field`,
		"tests: [{name: n, asset: a/daily, partition: {date: 2024-12-31}, expect: {rows: []}}]":                  `1:53: a/daily has no partition 2024-12-31: it has from 2025-01-01 on`,
		"tests: [{vars: {dais: 1}, " + good + "}]":                                                               `1:17: unknown field "dais" in vars: did you mean days?`,
		"tests: [{vars: {currency: USD}, " + good + "}]":                                                         `1:17: the query of a/query does not read the variable currency: remove it`,
		"tests: [{name: n, asset: a/daily, partition: {date: 2025-01-01}, vars: {days: x}, expect: {rows: []}}]": `1:79: variable days must have the type integer, as in servo.yaml, got the string "x"`,
		"tests: [{given: {a.x: []}, " + good + "}]":                                                              `1:18: unknown asset "a.x": list the assets with servo assets`,
		"tests: [{given: {a.daily: [], a/daily: []}, " + good + "}]":                                             `1:31: a/daily is given twice: remove one of them`,
		"tests: [{given: {a.daily: x}, " + good + "}]":                                                           `1:27: the rows of a/daily must be a list or a mapping, got the string "x": write a list of rows, {csv: FILE} or {sql: QUERY}`,
		"tests: [{given: {a.daily: {csv: ../x.csv}}, " + good + "}]":                                             `1:33: "../x.csv" is not a CSV file of the project: write a path relative to the project's folder, such as tests/weather.csv`,
		"tests: [{given: {a.daily: {csv: x.csv}}, " + good + "}]":                                                `1:33: the file "x.csv" cannot be read: file does not exist: write a path relative to the project's folder`,
		"tests: [{given: {a.daily: {sql: ' ; '}}, " + good + "}]":                                                `1:33: sql is empty: write one SELECT`,
		"tests: [{given: {a.daily: {sql: FROM x, csv: tests/bad.csv}}, " + good + "}]":                           "tests/bad.csv:2:1: not CSV: wrong number of fields",
		"tests: [{given: {a.daily: [1]}, " + good + "}]":                                                         `1:28: a row must be a mapping, got 1: write columns and values: {city: Oslo, rain: 1.5}`,
		"tests: [{given: {a.daily: [{x: 1, X: 2}]}, " + good + "}]":                                              `1:35: the row has the column "X" twice: remove one of them`,
		"tests: [{name: n, asset: a/query, expect: {}}]":                                                         `1:43: the field expect has neither rows nor error: add rows: [] if it returns none`,
		"tests: [{name: n, asset: a/query, expect: {rows: [], error: x}}]":                                       `1:43: the field expect has both rows and error: remove one of them`,
		"tests: [{name: n, asset: a/query, expect: {ordered: true, error: x}}]":                                  `1:43: an error has no order: remove ordered`,
		"tests: [{name: n, asset: a/query, expect: {rows: [{}]}}]":                                               `1:51: an expected row has no columns: name the columns to compare`,
		"tests: [{name: n, asset: a/query, expect: {rows: [{x: 1}, {y: 1}]}}]":                                   `1:59: the expected rows differ in the column "x": name the same columns in every row; write null for NULL`,
		"tests: [{name: n, asset: a/query, expect: {ordered: 1, rows: []}}]":                                     `1:53: ordered must be true or false, got 1`,
		"tests:\n- {" + good + "}\n- {" + good + "}":                                                             `3:3: duplicate test "n": first on line 2: choose another name`,
	} {
		_, problems := loadTests(t, text, "tests/bad.csv", "x\n1,2\n")
		require.NotEmpty(t, problems, text)
		require.Contains(t, problems, want, text)
	}
}

func TestLoadTestsKeepsTheTestsWithoutProblems(t *testing.T) {
	tests, problems := loadTests(t, "tests:\n- {name: bad, asset: a/none, expect: {rows: []}}\n- {name: good, asset: a/query, expect: {rows: []}}",
		"tests/.hidden.yaml", "x", "tests/readme.md", "x")
	require.Len(t, problems, 1)
	require.Len(t, tests, 1)
	require.Equal(t, "good", tests[0].Name)
}

func TestSchemaDescribesTestFiles(t *testing.T) {
	s := compile(t)
	names, err := filepath.Glob("../../examples/weather/tests/*/*.yaml")
	require.NoError(t, err)
	more, err := filepath.Glob("../cli/template/tests/*/*.yaml")
	require.NoError(t, err)
	for _, name := range more {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "# yaml-language-server: $schema=../../servo.schema.json#/definitions/tests\n"))
	}
	names = append(names, more...)
	require.Greater(t, len(names), 2)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, s.validate("tests/a.yaml", text), name)
	}
	for _, text := range []string{
		"test: []", "tests: {}", "tests: [{name: n}]", "tests: [{name: n, asset: x, expect: {rows: []}}]",
		"tests: [{name: n, asset: a/x, expect: {}}]", "tests: [{name: n, asset: a/x, expect: {checks: {}}}]",
		"tests: [{name: n, asset: a/x, given: {a.y: {file: x}}, expect: {rows: []}}]",
	} {
		require.Error(t, s.validate("tests/a.yaml", []byte(text)), text)
	}
}
