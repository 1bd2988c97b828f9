package testcase_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/testcase"
)

var cityAndRain = []testcase.Column{{Name: "city", Kind: "VARCHAR"}, {Name: "rain", Kind: "DOUBLE"}}

// table returns one row for each line. Commas separate the fields. The field NULL is a null value.
func table(lines ...string) [][]testcase.Field {
	var rows [][]testcase.Field
	for _, line := range lines {
		var row []testcase.Field
		for field := range strings.SplitSeq(line, ",") {
			row = append(row, testcase.Field{Text: field, Null: field == "NULL"})
		}
		rows = append(rows, row)
	}
	return rows
}

func TestCompareIgnoresOrderUnlessOrdered(t *testing.T) {
	expected, actual := table("Oslo,1", "Rome,2", "Rome,2"), table("Rome,2", "Oslo,1", "Rome,2")
	require.Nil(t, testcase.Compare(cityAndRain, expected, actual, false))
	d := testcase.Compare(cityAndRain, expected, actual, true)
	require.Equal(t, "the rows are in another order, from row 1 on", d.Summary())
	require.Nil(t, testcase.Compare(cityAndRain, expected, expected, true))
}

func TestCompareCountsEqualRows(t *testing.T) {
	d := testcase.Compare(cityAndRain, table("Oslo,1", "Oslo,1"), table("Oslo,1"), false)
	require.Equal(t, table("Oslo,1"), d.Missing)
	d = testcase.Compare(cityAndRain, table("Oslo,1"), table("Oslo,1", "Oslo,1"), false)
	require.Equal(t, table("Oslo,1"), d.Unexpected)
}

func TestCompareToleratesRoundingOfFloats(t *testing.T) {
	expected, actual := table("Oslo,0.3"), table("Oslo,0.30000000000000004")
	require.Nil(t, testcase.Compare(cityAndRain, expected, actual, true))
	require.NotNil(t, testcase.Compare(cityAndRain, expected, table("Oslo,0.3001"), false))
	require.NotNil(t, testcase.Compare(cityAndRain, expected, table("Oslo,NULL"), false))
	require.NotNil(t, testcase.Compare(cityAndRain, table("Oslo,inf"), table("Oslo,-inf"), false))
	exact := []testcase.Column{{Name: "city", Kind: "VARCHAR"}, {Name: "rain", Kind: "DECIMAL(38,0)"}}
	require.NotNil(t, testcase.Compare(exact, table("Oslo,90071992547409931"), table("Oslo,90071992547409932"), false))
}

func TestCompareDistinguishesNullFromText(t *testing.T) {
	null := table("NULL,1")
	text := [][]testcase.Field{{{Text: "NULL"}, {Text: "1"}}}
	d := testcase.Compare(cityAndRain, null, text, false)
	require.Equal(t, "1 different row\n"+
		"   city    rain\n"+
		"-  NULL    1\n"+
		"+  \"NULL\"  1\n"+
		"   ^^^^^^", d.String())
}

func TestDiffPairsSimilarRows(t *testing.T) {
	d := testcase.Compare(cityAndRain, table("Oslo,1", "Rome,2", "Bern,7"), table("Rome,3", "Paris,4", "Oslo,1"), false)
	require.Equal(t, "1 different row, 1 missing row, 1 unexpected row\n"+
		"   city   rain\n"+
		"-  Rome   2\n"+
		"+  Rome   3\n"+
		"          ^\n"+
		"-  Bern   7\n"+
		"+  Paris  4", d.String())
}

func TestDiffShortensManyRowsAndLongValues(t *testing.T) {
	var lines []string
	for range 12 {
		lines = append(lines, strings.Repeat("x", 100)+",1")
	}
	text := testcase.Compare(cityAndRain, table(lines...), nil, false).String()
	require.Contains(t, text, "12 missing rows")
	require.Contains(t, text, "… and 2 more rows")
	for line := range strings.SplitSeq(text, "\n") {
		require.Less(t, len(line), 80)
	}
}

func TestDiffShowsTheDifferenceOfLongValues(t *testing.T) {
	long := strings.Repeat("x", 100)
	text := testcase.Compare(cityAndRain, table(long+"a,1"), table(long+"b,1"), false).String()
	require.Contains(t, text, "xa")
	require.Contains(t, text, "xb")
}

// TestCompareFindsEveryDifference checks that Compare returns nil if and only if the rows are the same in any order,
// and that the diff accounts for every row.
func TestCompareFindsEveryDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.SampledFrom([]string{"a,1", "a,2", "b,1", "b,NULL"}), 0, 8)
		expected, actual := rows.Draw(t, "expected"), rows.Draw(t, "actual")
		d := testcase.Compare(cityAndRain, table(expected...), table(actual...), false)
		count := map[string]int{}
		for _, row := range expected {
			count[row]++
		}
		for _, row := range actual {
			count[row]--
		}
		missing, unexpected := 0, 0
		for _, n := range count {
			missing, unexpected = missing+max(n, 0), unexpected+max(-n, 0)
		}
		if missing+unexpected == 0 {
			require.Nil(t, d)
			return
		}
		require.Equal(t, missing, len(d.Changed)+len(d.Missing))
		require.Equal(t, unexpected, len(d.Changed)+len(d.Unexpected))
	})
}
