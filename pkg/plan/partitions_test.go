package plan_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
)

// slowDays computes n consecutive days by the rules of the Gregorian calendar, without a library.
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
		got, err := daysBetween(want[0], want[len(want)-1])
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("from %s to %s: %d days, want %d", want[0], want[len(want)-1], len(got), len(want))
		}
	})
}

// daysBetween returns the days of a range.
func daysBetween(first, last string) ([]string, error) {
	s, err := plan.ParseSelection("date=" + first + ".." + last)
	if err != nil {
		return nil, err
	}
	chosen, err := plan.Calendar{}.Resolve(space.Days(first, last), s)
	if err != nil {
		return nil, err
	}
	return chosen.Values[0], nil
}

func TestSQLLiteralCompletesDates(t *testing.T) {
	for _, c := range [][3]string{
		{"DATE", "2025", "2025-01-01"},
		{"DATE", "2025-03", "2025-03-01"},
		{"DATE", "2025-03-04", "2025-03-04"},
		{"VARCHAR", "2025", "2025"},
		{"TIMESTAMPTZ", "2025-10-26T02:00+01:00", "2025-10-26 01:00:00+00"},
		{"TIMESTAMPTZ", "2025-10-26", "2025-10-26 00:00:00+00"},
	} {
		require.Equal(t, c[2], plan.SQLLiteral(c[0], c[1]))
	}
}

// hourly returns an asset with one partition for each hour of a zone.
func hourly(key, zone string, deps ...string) plan.Asset {
	a := asset(key, deps...)
	a.Partitions = space.New(space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2025-01-01", Timezone: zone})
	a.Work.Dimensions = a.Partitions.Types()
	return a
}

func TestBuildReadsHoursOfDay(t *testing.T) {
	day := daily("clean/daily", "2025-01-01", "", "raw/hourly")
	day.Partitions.Dimensions[0].Timezone = "Europe/Paris"
	r := plan.Request{
		Assets: []plan.Asset{hourly("raw/hourly", "Europe/Paris"), day}, Select: keys("clean/daily"), Upstream: true,
		Partitions: selection(t, "date=2025-03-30", "date=2025-10-26"), Calendar: calendarAt("2026-01-01T00:00:00Z"),
	}
	p, err := plan.Build(r)
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Len(t, p.Tasks, 23+25+2)
	last := p.Tasks[len(p.Tasks)-1]
	require.Equal(t, "clean/daily[date=2025-10-26]", last.TaskKey)
	require.Len(t, last.Inputs["raw/hourly"].Items, 25)
	require.Len(t, last.DependsOn, 25)
	require.Equal(t, "2025-10-25T22:00:00Z 2025-10-26T23:00:00Z", last.Period.Start.Format(time.RFC3339)+" "+last.Period.End.Format(time.RFC3339))
	require.Contains(t, outline(p), "raw/hourly[hour=2025-10-26T02%3A00+01%3A00] ← \nraw/hourly[hour=2025-10-26T02%3A00+02%3A00] ← \n")

	r.Upstream = false
	r.Materialized = func(ids.AssetKey) []plan.Input {
		return []plan.Input{{PartitionKey: `{"hour":"2025-03-30T03:00+02:00"}`, MaterializationID: "M", URI: "u"}}
	}
	r.Partitions, r.AllowIncomplete = r.Partitions[:1], true
	p, err = plan.Build(r)
	require.NoError(t, err)
	require.Equal(t, []plan.Incomplete{{
		Asset: "clean/daily", Upstream: "raw/hourly", Expected: 23, Read: 1,
		Missing: "2025-03-30T00:00+01:00..2025-03-30T01:00+01:00, 2025-03-30T04:00+02:00..2025-03-30T23:00+02:00",
	}}, p.Incomplete)
}

func TestBuildErrorsNameNoEmptyPartitions(t *testing.T) {
	up := daily("clean/rates", "2012-01-01", "")
	total := asset("report/total", "clean/rates")
	total.Reads = []plan.Dep{{Asset: up.Key, Map: space.Map{Op: space.Latest}}}
	request := plan.Request{
		Assets: []plan.Asset{up, total}, Select: keys("report/total"), Calendar: calendarAt("2013-01-01T00:00:00Z"),
	}
	_, err := plan.Build(request)
	require.EqualError(t, err, "asset report/total needs partitions of clean/rates, and none was materialized: add --upstream")

	request.Select, request.Partitions = keys("clean/rates"), selection(t, "date=2013-01-01..")
	_, err = plan.Build(request)
	require.EqualError(t, err, "no partition is selected: a range without an end selects only periods that have ended: name the partitions, or write -p today")
}

func TestBuildReadsWindowAndLatest(t *testing.T) {
	week := daily("clean/week", "2012-01-01", "2012-01-04", "clean/daily", "clean/rates")
	week.Reads = []plan.Dep{
		{Asset: mustKey("clean/daily"), Map: space.Map{Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Window, From: -6}}}},
		{Asset: mustKey("clean/rates"), Map: space.Map{Op: space.Latest}},
	}
	r := plan.Request{
		Assets: []plan.Asset{daily("clean/daily", "2012-01-01", "2012-01-04"), daily("clean/rates", "2012-01-01", ""), week},
		Select: keys("clean/week"), Partitions: selection(t, "date=2012-01-03"), Calendar: calendarAt("2013-01-01T00:00:00Z"),
		Materialized: made("clean/daily 2012-01-01", "clean/daily 2012-01-02", "clean/daily 2012-01-03", "clean/rates 2012-01-01", "clean/rates 2012-01-02"),
	}
	p, err := plan.Build(r)
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.Empty(t, p.Incomplete, "days before the start are not expected")
	require.Len(t, p.Tasks[0].Inputs["clean/daily"].Items, 3)
	require.Equal(t, []plan.Input{{PartitionKey: day("2012-01-02"), MaterializationID: "M-clean/rates 2012-01-02", URI: "assets/clean/rates/2012-01-02/"}},
		p.Tasks[0].Inputs["clean/rates"].Items)
	g, err := plan.NewGraph(r.Assets)
	require.NoError(t, err)
	image, err := g.Readers(r.Calendar).Reads(mustKey("clean/week"), mustKey("clean/daily"), day("2012-01-02"))
	require.NoError(t, err)
	require.Equal(t, []string{day("2012-01-01"), day("2012-01-02")}, image.Keys)
}

// An upstream asset has partitions by day and region. A reader of its newest day must be warned if a region of that
// day is missing.
func TestBuildReportsIncompleteLatestPeriod(t *testing.T) {
	up := asset("a/up")
	up.Partitions = space.New(space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-01-05"},
		space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}})
	down := asset("b/down", "a/up")
	down.Reads = []plan.Dep{{Asset: up.Key, Map: space.Map{Op: space.Latest}}}
	key := func(date, region string) string { return ids.Partition{"date": date, "region": region}.Key() }
	r := plan.Request{Assets: []plan.Asset{up, down}, Select: []ids.AssetKey{down.Key}, Materialized: func(of ids.AssetKey) (all []plan.Input) {
		if of == up.Key {
			for _, p := range []string{key("2025-01-04", "eu"), key("2025-01-04", "us"), key("2025-01-05", "eu")} {
				all = append(all, plan.Input{PartitionKey: p, MaterializationID: p, URI: "x/"})
			}
		}
		return all
	}}
	_, err := plan.Build(r)
	require.ErrorContains(t, err, "2025-01-05")
	r.AllowIncomplete = true
	p, err := plan.Build(r)
	require.NoError(t, err)
	require.Len(t, p.Tasks[0].Inputs["a/up"].Items, 1)
	require.Len(t, p.Incomplete, 1)
	require.EqualValues(t, []any{2, 1}, []any{p.Incomplete[0].Expected, p.Incomplete[0].Read})
}

// Each partition of clean/rolling reads its own day and the day before. So the partition of the next day also reads
// the selected day. But the next day has not begun, so the run must not contain its partition.
func TestBuildChoosesNoReadersThatHaveNotBegun(t *testing.T) {
	days := daily("clean/days", "2025-03-01", "", "raw/hours")
	days.Partitions.Dimensions[0].Timezone = "Europe/Paris"
	rolling := daily("clean/rolling", "2025-03-01", "", "clean/days")
	rolling.Partitions.Dimensions[0].Timezone = "Europe/Paris"
	rolling.Reads = []plan.Dep{{Asset: mustKey("clean/days"), Map: space.Map{Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Window, From: -1}}}}}
	r := plan.Request{
		Assets: []plan.Asset{hourly("raw/hours", "Europe/Paris"), days, rolling}, All: true, AllowIncomplete: true,
		Partitions: selection(t, "hour=2025-03-08T05:00+01:00"), Calendar: calendarAt("2025-03-08T12:00:00Z"),
	}
	tasks := func() []string {
		p, err := plan.Build(r)
		require.NoError(t, err)
		var tasks []string
		for i := range p.Tasks {
			tasks = append(tasks, p.Tasks[i].TaskKey)
		}
		return tasks
	}
	today := []string{"raw/hours[hour=2025-03-08T05%3A00+01%3A00]", "clean/days[date=2025-03-08]", "clean/rolling[date=2025-03-08]"}
	require.Equal(t, today, tasks())
	r.Calendar.Future = true
	require.Equal(t, append(today, "clean/rolling[date=2025-03-09]"), tasks())
}

func TestBuildOfSeveralDimensions(t *testing.T) {
	dimensions := []space.Dimension{space.Days("2025-01-01", "2025-01-03").Dimensions[0], {Name: "region", Kind: space.Static, Values: []string{"eu", "us"}}}
	byRegion := asset("raw/sales")
	byRegion.Partitions = space.New(dimensions...)
	r := plan.Request{
		Assets: []plan.Asset{byRegion, daily("clean/total", "2025-01-01", "2025-01-03", "raw/sales")}, All: true,
		Partitions: selection(t, "date=2025-01-02"),
	}
	p, err := plan.Build(r)
	require.NoError(t, err)
	require.Equal(t, `raw/sales[date=2025-01-02;region=eu] ← 
raw/sales[date=2025-01-02;region=us] ← 
clean/total[date=2025-01-02] ← raw/sales[date=2025-01-02;region=eu] raw/sales[date=2025-01-02;region=us]
`, outline(p))
	r.Partitions, r.AllowIncomplete = selection(t, "date=2025-01-02;region=eu"), true
	p, err = plan.Build(r)
	require.NoError(t, err)
	require.Len(t, p.Tasks, 2)
	require.Equal(t, "date=2025-01-02;region=us", p.Incomplete[0].Missing)
	r.All, r.Select, r.Partitions = false, keys("raw/sales"), selection(t, "region=eu")
	_, err = plan.Build(r)
	require.EqualError(t, err, "asset raw/sales is partitioned by date and region (date 2025-01-01 to 2025-01-03; region eu, us): "+
		"select its date too, for example -p 'date=2025-01-01..2025-01-03;region=*'")
}

func TestBuildChoosesMonthsOfDays(t *testing.T) {
	month := asset("report/month", "clean/daily")
	month.Partitions = space.New(space.Dimension{Name: "month", Kind: space.Monthly, Start: "2025-01"})
	r := plan.Request{
		Assets: []plan.Asset{daily("clean/daily", "2025-01-01", ""), month}, All: true,
		Partitions: selection(t, "date=2025-01-31..2025-02-01"), Calendar: calendarAt("2025-02-10T00:00:00Z"), AllowIncomplete: true,
	}
	p, err := plan.Build(r)
	require.NoError(t, err)
	require.Equal(t, `clean/daily[date=2025-01-31] ← 
clean/daily[date=2025-02-01] ← 
report/month[month=2025-01] ← clean/daily[date=2025-01-31]
report/month[month=2025-02] ← clean/daily[date=2025-02-01]
`, outline(p))
	require.Equal(t, "report/month reads 2 of 40 partitions of clean/daily; missing 2025-01-01..2025-01-30, 2025-02-02..2025-02-09", p.Incomplete[0].String())
	r.Partitions = selection(t, "date=latest")
	p, err = plan.Build(r)
	require.NoError(t, err)
	require.Equal(t, []string{"date=2025-02-09"}, p.Selected)
}
