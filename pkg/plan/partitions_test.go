package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// slowDays computes n days by the rules of the calendar, without a library.
func slowDays(y, m, d, n int) []string {
	length := func() int {
		switch m {
		case 2:
			if y%4 == 0 && (y%100 != 0 || y%400 == 0) {
				return 29
			}
			return 28
		case 4, 6, 9, 11:
			return 30
		default:
			return 31
		}
	}
	var days []string
	for range n {
		days = append(days, fmt.Sprintf("%04d-%02d-%02d", y, m, d))
		if d++; d > length() {
			d = 1
			if m++; m > 12 {
				m, y = 1, y+1
			}
		}
	}
	return days
}

func TestDaysFollowTheCalendar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := slowDays(rapid.IntRange(1890, 2110).Draw(t, "year"), rapid.IntRange(1, 12).Draw(t, "month"),
			rapid.IntRange(1, 28).Draw(t, "day"), rapid.IntRange(1, 3000).Draw(t, "count"))
		got, err := plan.Days(want[0], want[len(want)-1])
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("from %s to %s: %d days, want %d", want[0], want[len(want)-1], len(got), len(want))
		}
	})
}

func TestParseSelection(t *testing.T) {
	s, err := plan.ParseSelection("date=2012-01-01..2012-12-31")
	require.NoError(t, err)
	require.Equal(t, plan.Selection{Dimension: "date", First: "2012-01-01", Last: "2012-12-31"}, s)
	require.Equal(t, "date=2012-01-01..2012-12-31", s.String())
	s, err = plan.ParseSelection("date=2025-01-15")
	require.NoError(t, err)
	require.Equal(t, "date=2025-01-15", s.String())

	for text, want := range map[string]string{
		"2025-01-15":                   `invalid partition selection "2025-01-15": write date=2025-01-15 or date=2025-01-01..2025-01-31`,
		"date=":                        `invalid partition selection "date=": write date=2025-01-15 or date=2025-01-01..2025-01-31`,
		"date=2025-02-30":              `invalid partition selection "date=2025-02-30": "2025-02-30" is not a day: write year-month-day, for example 2025-01-15`,
		"date=2025-01-02..2025-01-01":  `invalid partition selection "date=2025-01-02..2025-01-01": the last day 2025-01-01 is before the first day 2025-01-02`,
		"date=0001-01-01..9999-12-31":  `invalid partition selection "date=0001-01-01..9999-12-31": 0001-01-01 to 9999-12-31 is 3652059 days; at most 100000 can be selected at once`,
		"date=2025-01-01..2025-01-02.": `invalid partition selection "date=2025-01-01..2025-01-02.": "2025-01-02." is not a day: write year-month-day, for example 2025-01-15`,
	} {
		_, err := plan.ParseSelection(text)
		require.EqualError(t, err, want)
	}
}

func TestPartitionsContainAndValidate(t *testing.T) {
	p := plan.Partitions{Dimension: "date", Start: "2012-01-01", End: "2012-01-31"}
	require.NoError(t, p.Validate())
	require.True(t, p.Contains("2012-01-01"))
	require.True(t, p.Contains("2012-01-31"))
	require.False(t, p.Contains("2012-02-01"))
	require.False(t, p.Contains("2011-12-31"))
	require.Equal(t, `{"date":"2012-01-05"}`, p.Key("2012-01-05"))
	open := plan.Partitions{Dimension: "date", Start: "2012-01-01"}
	require.NoError(t, open.Validate())
	require.True(t, open.Contains("2999-01-01"))
	require.Equal(t, "from 2012-01-01 on", open.String())

	require.ErrorContains(t, (&plan.Partitions{Dimension: "region", Start: "2012-01-01"}).Validate(), `unsupported dimension "region"`)
	require.ErrorContains(t, (&plan.Partitions{Dimension: "date", Start: "2012-1-1"}).Validate(), "invalid start")
	require.ErrorContains(t, (&plan.Partitions{Dimension: "date", Start: "2012-01-01", End: "soon"}).Validate(), "invalid end")
	require.ErrorContains(t, (&plan.Partitions{Dimension: "date", Start: "2012-01-02", End: "2012-01-01"}).Validate(), "is before the start")
}
