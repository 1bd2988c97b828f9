package testcase_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/testcase"
)

func field(text string) testcase.Field { return testcase.Field{Text: text} }

// updated contains rows with values that can be misread in YAML.
var updated = &testcase.Actual{
	Columns: []testcase.Column{{"city", "VARCHAR"}, {"rain", "DECIMAL(3,1)"}, {"day", "DATE"}, {"wet", "BOOLEAN"}, {"n", "BIGINT"}},
	Rows: [][]testcase.Field{
		{field("Oslo"), field("1.5"), field("2025-01-01"), field("true"), field("-3")},
		{field("no"), {Null: true}, field("2025-01-02"), field("false"), field("0")},
		{field("a: b # \"c\"\n'd'"), field("0.0"), field("infinity"), field("true"), field("12")},
	},
}

var updatedRows = []string{
	`{city: Oslo, rain: 1.5, day: 2025-01-01, wet: true, n: -3}`,
	`{city: "no", rain: null, day: 2025-01-02, wet: false, n: 0}`,
	`{city: "a: b # \"c\"\n'd'", rain: 0.0, day: infinity, wet: true, n: 12}`,
}

func TestUpdateReplacesRowsInTheirStyle(t *testing.T) {
	for name, c := range map[string]struct{ before, after string }{
		"brackets": {
			"x:\n  rows: §[{a: \"]\", b: 'it''s ]'}, {a: don't}] # here\n  ordered: true\n",
			"x:\n  rows: [" + strings.Join(updatedRows, ",\n         ") + "] # here\n  ordered: true\n",
		},
		"brackets in a mapping": {
			"x: {rows: §[], ordered: true}\n",
			"x: {rows: [" + strings.Join(updatedRows, ",\n           ") + "], ordered: true}\n",
		},
		"brackets over lines": {
			"x:\n  rows: §[{a: 1}, # ]\n    {a: [2, 3]},\n  ]\ny: 1\n",
			"x:\n  rows: [" + strings.Join(updatedRows, ",\n         ") + "]\ny: 1\n",
		},
		"items": {
			"x:\n  rows:\n    §- {a: 1}\n    # a comment\n    - a: 2\n      b: |\n        text\n\n  # about y\ny: 1\n",
			"x:\n  rows:\n    - " + strings.Join(updatedRows, "\n    - ") + "\n\n  # about y\ny: 1\n",
		},
		"items without indentation": {
			"rows:\n§- a: 1\n- a: 2\nordered: true\n",
			"rows:\n- " + strings.Join(updatedRows, "\n- ") + "\nordered: true\n",
		},
		"items at the end": {
			"é: 1\nrows:\n  §- a: 1\n  - a: 2",
			"é: 1\nrows:\n  - " + strings.Join(updatedRows, "\n  - "),
		},
	} {
		before, rest, _ := strings.Cut(c.before, "§")
		lines := strings.Split(before, "\n")
		at := testcase.Place{Line: len(lines), Column: len([]rune(lines[len(lines)-1])) + 1}
		after, err := testcase.Update(before+rest, at, updated)
		require.NoError(t, err, name)
		require.Equal(t, c.after, after, name)
	}
}

func TestUpdateWritesNoRows(t *testing.T) {
	none := &testcase.Actual{Columns: updated.Columns}
	after, err := testcase.Update("rows:\n- a: 1\nordered: true\n", testcase.Place{Line: 2, Column: 1}, none)
	require.NoError(t, err)
	require.Equal(t, "rows:\n  []\nordered: true\n", after)
	after, err = testcase.Update("rows: [{a: 1}]\n", testcase.Place{Line: 1, Column: 7}, none)
	require.NoError(t, err)
	require.Equal(t, "rows: []\n", after)
}

func TestUpdateRejectsOtherTexts(t *testing.T) {
	for text, at := range map[string]testcase.Place{
		"rows: *x\n":         {Line: 1, Column: 7},
		"rows: [{a: 1}\n":    {Line: 1, Column: 7},
		"rows: [{a: 'x}]\n":  {Line: 1, Column: 7},
		"rows: []\n":         {Line: 9, Column: 7},
		"rows: [] # short\n": {Line: 1, Column: 70},
		"rows: [ # open":     {Line: 1, Column: 7},
	} {
		_, err := testcase.Update(text, at, updated)
		require.Error(t, err, text)
	}
}

func TestArrangeKeepsExpectedRowsInPlace(t *testing.T) {
	columns := []testcase.Column{{"x", "DOUBLE"}}
	rows := func(texts ...string) (rows [][]testcase.Field) {
		for _, text := range texts {
			rows = append(rows, []testcase.Field{field(text)})
		}
		return rows
	}
	expected, actual := rows("3", "9", "1", "1"), rows("5", "1.0000000000001", "4", "3")
	require.Equal(t, rows("3", "1", "4", "5"), testcase.Arrange(columns, expected, actual, false).Rows)
	require.Equal(t, actual, testcase.Arrange(columns, expected, actual, true).Rows)
}
