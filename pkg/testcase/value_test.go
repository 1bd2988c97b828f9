package testcase_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/testcase"
)

func value(kind testcase.Kind, text string) testcase.Value {
	return testcase.Value{Kind: kind, Text: text}
}

func TestValueIsWrittenAsSQL(t *testing.T) {
	list := testcase.Value{Kind: testcase.List, Items: []testcase.Value{value(testcase.Integer, "1"), {}}}
	for want, got := range map[string]string{
		"CAST(NULL AS DATE)":         testcase.Value{}.SQL("DATE"),
		"CAST('1.50' AS VARCHAR)":    value(testcase.Number, "1.50").SQL("VARCHAR"),
		"CAST('it''s' AS VARCHAR)":   value(testcase.Text, "it's").SQL("VARCHAR"),
		"CAST('2012-02-29' AS DATE)": value(testcase.Time, "2012-02-29").SQL(""),
		"CAST([CAST('1' AS INTEGER), CAST(NULL AS INTEGER)] AS INTEGER[])": list.SQL("INTEGER[]"),
		"{'a b': [1, NULL], 'c': CAST('1e3' AS DOUBLE)}": testcase.Value{
			Kind: testcase.Struct, Names: []string{"a b", "c"}, Items: []testcase.Value{list, value(testcase.Number, "1e3")},
		}.SQL(""),
	} {
		require.Equal(t, want, got)
	}
}

func TestValueFitsTypesThatKeepItsMeaning(t *testing.T) {
	for _, c := range []struct {
		value testcase.Value
		kind  string
		fits  bool
	}{
		{value(testcase.Number, "1.5"), "INTEGER", false},
		{value(testcase.Number, "1.0"), "INTEGER", true},
		{value(testcase.Number, "1.5"), "DECIMAL(4,1)", true},
		{value(testcase.Number, "1.55"), "DECIMAL(4,1)", false},
		{value(testcase.Text, "1.5"), "BIGINT", false},
		{value(testcase.Number, "1e3"), "BIGINT", true},
		{value(testcase.Number, "1e999999999"), "BIGINT", false},
		{value(testcase.Integer, "1"), "BOOLEAN", false},
		{value(testcase.Bool, "true"), "INTEGER", false},
		{value(testcase.Bool, "true"), "DOUBLE", false},
		{value(testcase.Bool, "true"), "VARCHAR", true},
		{value(testcase.Text, "true"), "BOOLEAN", true},
		{value(testcase.Time, "2012-02-29"), "DATE", true},
		{testcase.Value{}, "INTEGER", true},
	} {
		require.Equal(t, c.fits, c.value.Fits(c.kind), "%v as %s", c.value, c.kind)
	}
}

func TestTypeOfValuesCoversAllOfThem(t *testing.T) {
	integer, number, text := value(testcase.Integer, "1"), value(testcase.Number, "1.5"), value(testcase.Text, "x")
	huge, day := value(testcase.Integer, "9223372036854775808"), value(testcase.Time, "2012-02-29")
	for _, c := range []struct {
		want   string
		values []testcase.Value
	}{
		{"BIGINT", []testcase.Value{{}, integer}},
		{"DECIMAL(38,0)", []testcase.Value{integer, huge}},
		{"DOUBLE", []testcase.Value{integer, number}},
		{"VARCHAR", []testcase.Value{integer, text}},
		{"VARCHAR", []testcase.Value{integer, day}},
		{"TIMESTAMP", []testcase.Value{day, value(testcase.Time, "2012-02-29 10:00:00")}},
		{"TIMESTAMP WITH TIME ZONE", []testcase.Value{value(testcase.Time, "2012-02-29T10:00:00Z"), day}},
		{"", []testcase.Value{{}}},
		{"", []testcase.Value{integer, {Kind: testcase.List}}},
	} {
		require.Equal(t, c.want, testcase.TypeOf(c.values), "%v", c.values)
	}
}
