package quality_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/quality"
)

var target = quality.Target{
	Table: ids.AssetKey{Namespace: "clean", Name: "daily"}, Previous: -1,
	Now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC),
}

func num(text string) *quality.Literal {
	l, ok := quality.Num(text)
	if !ok {
		panic(text)
	}
	return &l
}

func TestCompileReturnsFailingRows(t *testing.T) {
	for want, c := range map[string]quality.Check{
		`SELECT * FROM "clean"."daily" WHERE "city" IS NULL OR "date" IS NULL`: {Kind: quality.NotNull, Columns: []string{"city", "date"}},
		`SELECT "a", "b", count(*) AS "rows" FROM "clean"."daily" WHERE "a" IS NOT NULL AND "b" IS NOT NULL GROUP BY "a", "b" HAVING count(*) > 1`: {
			Kind: quality.Unique, Columns: []string{"a", "b"},
		},
		`SELECT * FROM (SELECT count(*) AS "row_count" FROM "clean"."daily") AS counted WHERE "row_count" < 2 OR "row_count" > 10`: {
			Kind: quality.RowCount, Params: quality.Params{Min: num("2"), Max: num("10")},
		},
		`SELECT * FROM "clean"."daily" WHERE "t" < 'a' OR "t" > '2026-01-01'`: {
			Kind: quality.Range, Columns: []string{"t"}, Params: quality.Params{Min: &quality.Literal{Text: "a"}, Max: &quality.Literal{Text: "2026-01-01"}},
		},
		`SELECT * FROM "clean"."daily" WHERE "w" IS NOT NULL AND CAST("w" AS VARCHAR) NOT IN ('it''s', '1')`: {
			Kind: quality.AcceptedValues, Columns: []string{"w"}, Params: quality.Params{Values: []quality.Literal{quality.Text("it's"), *num("1")}},
		},
		`SELECT * FROM "clean"."daily" WHERE "c" IS NOT NULL AND NOT regexp_matches(CAST("c" AS VARCHAR), '^[A-Z]''')`: {
			Kind: quality.Regex, Columns: []string{"c"}, Params: quality.Params{Pattern: "^[A-Z]'"},
		},
		`SELECT * FROM (SELECT CAST(max("seen") AS TIMESTAMPTZ) AS newest FROM "clean"."daily") AS measured ` +
			`WHERE newest IS NULL OR newest < CAST('2026-11-23 10:00:00+00' AS TIMESTAMPTZ)` +
			` OR newest > CAST('2026-11-24 12:00:00+00' AS TIMESTAMPTZ)`: {
			Kind: quality.Freshness, Columns: []string{"seen"}, Params: quality.Params{MaxAgeSec: 7200},
		},
		"SELECT 1": {Kind: quality.SQL, SQL: "SELECT 1;\n"},
	} {
		assert.Equal(t, want, c.Compile(target).Failing)
	}
}

// TestCompileQuotesHostileNames: no name or value can end the quotes around it and inject SQL.
func TestCompileQuotesHostileNames(t *testing.T) {
	const hostile = `a"; DROP TABLE x; --'`
	for _, c := range []quality.Check{
		{Kind: quality.NotNull, Columns: []string{hostile}},
		{Kind: quality.Unique, Columns: []string{hostile}},
		{Kind: quality.Range, Columns: []string{hostile}, Params: quality.Params{Min: &quality.Literal{Text: hostile}}},
		{Kind: quality.AcceptedValues, Columns: []string{hostile}, Params: quality.Params{Values: []quality.Literal{quality.Text(hostile)}}},
		{Kind: quality.Regex, Columns: []string{hostile}, Params: quality.Params{Pattern: hostile}},
		{Kind: quality.Relationships, Columns: []string{hostile}, Params: quality.Params{To: "a/b", Field: hostile}},
		{Kind: quality.Freshness, Columns: []string{hostile}, Params: quality.Params{MaxAgeSec: 1}},
		{Kind: quality.Schema, Params: quality.Params{Types: []quality.ColumnType{{Name: hostile, Type: "VARCHAR"}}}},
	} {
		text := c.Compile(target).Failing
		text = strings.ReplaceAll(text, quality.Name(hostile), "")
		text = strings.ReplaceAll(text, quality.Quote(hostile), "")
		assert.NotContains(t, text, "DROP", c.Kind)
	}
	_, ok := quality.Num("1; DROP TABLE x")
	assert.False(t, ok)
}

func TestRowCountComparesWithThePreviousRows(t *testing.T) {
	c := quality.Check{Kind: quality.RowCount, Params: quality.Params{Min: num("3"), MinOfPrevious: 500_000, MaxOfPrevious: 1_500_000}}
	for previous, want := range map[int64]string{
		-1: "at least 3", 0: "at least 3, at most 0", 5: "at least 3, at most 7", 11: "at least 6, at most 16",
		9_000_000_000_000_000_000: "at least 4500000000000000000, at most 13500000000000000000",
	} {
		at := target
		at.Previous = previous
		assert.Equal(t, want, c.Compile(at).Expected, previous)
	}
	c.Params = quality.Params{MinOfPrevious: 500_000}
	assert.Equal(t, "any number: the partition has no previous materialization", c.Compile(target).Expected)
}

func TestCheckTypeAcceptsTypesOfSQL(t *testing.T) {
	for _, good := range []string{
		"VARCHAR", "bigint", "DECIMAL(12,2)", "INTEGER[]", "INTEGER[3][]", "TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ",
		`STRUCT(a INTEGER, "b c" VARCHAR[])`, "MAP(VARCHAR, DECIMAL(3,1))", "ENUM('x', 'y')",
	} {
		assert.NoError(t, quality.CheckType(good), good)
	}
	for _, bad := range []string{
		"", "STRIN", "VARCHAR)", "VARCHAR); DROP TABLE x", "DECIMAL(12", "DECIMAL(a)", "INTEGER[", "VARCHAR AS x", "VARCHAR -- x",
		"ENUM('x)", "STRUCT(a)", "TIMESTAMP WITH x", strings.Repeat("STRUCT(a ", 20) + "INTEGER" + strings.Repeat(")", 20),
	} {
		assert.Error(t, quality.CheckType(bad), bad)
	}
}

func TestCheckTypeAcceptsNoOperators(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`(VARCHAR|DECIMAL|[(),;'"\[\]0-9a-z-]| )*`).Draw(t, "type")
		if quality.CheckType(text) == nil {
			require.NotContains(t, strings.Join(strings.Split(text, "'"), ""), ";")
			require.Equal(t, strings.Count(text, "("), strings.Count(text, ")"))
		}
	})
}

func TestAnomalyUsesMedianAndMAD(t *testing.T) {
	c := quality.Check{Name: "a", Kind: quality.Anomaly, Params: quality.Params{Watch: &quality.Watch{Metric: quality.MetricRows, Window: 30, Threshold: 6_000}}}
	learning := c.JudgeAnomaly(5, []int64{1, 2, 3})
	assert.True(t, learning.Passed)
	assert.Equal(t, "learning: 3 of 7 values", learning.Message)

	steady := []int64{100, 100, 100, 100, 100, 100, 100}
	assert.True(t, c.JudgeAnomaly(106, steady).Passed)
	high := c.JudgeAnomaly(107, steady)
	assert.False(t, high.Passed)
	assert.Equal(t, "94..106", high.Expected)
	assert.Equal(t, "row_count is 107; expected 94..106, computed from 7 earlier values", high.Message)

	// The median is 11.5, and the median of the distances is 5.5.
	assert.Equal(t, "-21..44", c.JudgeAnomaly(12, []int64{3, 5, 7, 9, 14, 16, 18, 20}).Expected)
	old := append([]int64{1e18, 1e18, 1e18, 1e18}, make([]int64, 30)...)
	assert.False(t, c.JudgeAnomaly(7, old).Passed, "values beyond the window do not count")
}

func TestAllowToleratesACountOrAPart(t *testing.T) {
	for _, c := range []struct {
		allow         quality.Allowance
		failing, rows int64
		want          bool
	}{
		{quality.Allowance{}, 0, 0, true},
		{quality.Allowance{}, 1, 1_000, false},
		{quality.Allowance{Rows: 5}, 5, 10, true},
		{quality.Allowance{Rows: 5}, 6, 1_000, false},
		{quality.Allowance{PPM: 1_000}, 1, 1_000, true},
		{quality.Allowance{PPM: 1_000}, 1, 999, false},
		{quality.Allowance{PPM: 1_000_000}, 9e18, 9e18, true},
	} {
		check := quality.Check{Name: "n", Kind: quality.NotNull, Columns: []string{"a"}, Allow: c.allow}
		assert.Equal(t, c.want, check.Judge(quality.Compiled{}, quality.Measured{Failing: c.failing, Rows: c.rows}).Passed, c)
	}
}

func TestJudgeSaysWhatFailed(t *testing.T) {
	judge := func(c quality.Check, m quality.Measured) string {
		return c.Judge(c.Compile(target), m).Message
	}
	assert.Equal(t, "2 of 10 rows failed", judge(quality.Check{Kind: quality.NotNull, Columns: []string{"a"}}, quality.Measured{Failing: 2, Rows: 10}))
	assert.Equal(t, "1 of 9 rows failed: a, b are repeated", judge(quality.Check{Kind: quality.Unique, Columns: []string{"a", "b"}}, quality.Measured{Failing: 1, Rows: 9}))
	assert.Equal(t, "row_count is 0; expected at least 1", judge(quality.Check{Kind: quality.RowCount, Params: quality.Params{Min: num("1")}}, quality.Measured{Failing: 1, Value: "0"}))
	assert.Equal(t, "the newest t is missing; expected not older than 2026-11-23 11:59:59+00, and not later than 2026-11-24 12:00:00+00",
		judge(quality.Check{Kind: quality.Freshness, Columns: []string{"t"}, Params: quality.Params{MaxAgeSec: 1}}, quality.Measured{Failing: 1}))
	assert.Equal(t, "1 failing row, which `allow` tolerates", judge(quality.Check{Kind: quality.SQL, SQL: "x", Allow: quality.Allowance{Rows: 1}}, quality.Measured{Failing: 1}))
}

func TestBrokenCheckCountsAtItsSeverity(t *testing.T) {
	c := quality.Check{Name: "a", Kind: quality.SQL, SQL: "SELECT"}
	r := c.Broken("a syntax error")
	assert.True(t, quality.Blocks(&r))
	c.Severity = quality.Error
	r = c.Broken("a syntax error")
	assert.False(t, quality.Blocks(&r))
	assert.True(t, quality.Degrades(&r))
	c.Severity = quality.Warning
	r = c.Broken("a syntax error")
	assert.False(t, quality.Blocks(&r) || quality.Degrades(&r))
}

func TestValidateRejectsIncompleteChecks(t *testing.T) {
	good := quality.Check{Name: "a", Kind: quality.NotNull, Columns: []string{"x"}}
	require.NoError(t, quality.Validate([]quality.Check{good}))
	require.ErrorContains(t, quality.Validate([]quality.Check{good, good}), "two checks are called a")
	for text, change := range map[string]func(*quality.Check){
		"the name must have":                   func(c *quality.Check) { c.Name = "A/b" },
		"unknown phase":                        func(c *quality.Check) { c.Phase = "LATER" },
		"unknown severity":                     func(c *quality.Check) { c.Severity = "BAD" },
		"cannot run before the work":           func(c *quality.Check) { c.Phase = quality.Pre },
		"allow is -1 millionths":               func(c *quality.Check) { c.Allow.PPM = -1 },
		"allow is -2 rows: write 0 or more":    func(c *quality.Check) { c.Allow.Rows = -2 },
		"timeout is -3 seconds":                func(c *quality.Check) { c.TimeoutSec = -3 },
		"needs columns":                        func(c *quality.Check) { c.Columns = nil },
		"unknown kind":                         func(c *quality.Check) { c.Kind = "x" },
		"needs a query":                        func(c *quality.Check) { c.Kind = quality.SQL },
		"needs a command":                      func(c *quality.Check) { c.Kind = quality.Command },
		"needs a bound":                        func(c *quality.Check) { c.Kind = quality.RowCount },
		"needs a metric":                       func(c *quality.Check) { c.Kind = quality.Anomaly },
		"needs a column, an asset and a field": func(c *quality.Check) { c.Kind = quality.Relationships },
		"needs a column and values":            func(c *quality.Check) { c.Kind = quality.AcceptedValues },
		"needs a column and a maximum age":     func(c *quality.Check) { c.Kind = quality.Freshness },
		"check \"a\": column \"c\": unknown type": func(c *quality.Check) {
			c.Kind, c.Params.Types = quality.Schema, []quality.ColumnType{{Name: "c", Type: "x"}}
		},
	} {
		c := good
		change(&c)
		require.ErrorContains(t, quality.Validate([]quality.Check{c}), text)
	}
}

func TestCheckKeepsItsJSON(t *testing.T) {
	c := quality.Check{Name: "a", Kind: quality.RowCount, Params: quality.Params{Min: num("1")}, Allow: quality.Allowance{PPM: 5}}
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	assert.JSONEq(t, `{"name":"a","kind":"row_count","allow":{"ppm":5},"params":{"min":{"text":"1","number":true}}}`, string(raw))
	var back quality.Check
	require.NoError(t, json.Unmarshal(raw, &back))
	assert.Equal(t, c, back)
	assert.Equal(t, []string{"a"}, quality.Named([]quality.Check{c}, quality.Critical))
	assert.Equal(t, []string{"a"}, quality.Missing([]quality.Check{c}, nil))
	assert.Len(t, quality.In([]quality.Check{c}, quality.Post), 1)
	assert.Empty(t, quality.In([]quality.Check{c}, quality.Pre))
}
