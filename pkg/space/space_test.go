package space_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/calendar"
	"github.com/servo-orchestration/servo/pkg/space"
)

func selection(t require.TestingT, text string) space.Selection {
	s, err := space.ParseSelection(text)
	require.NoError(t, err)
	return s
}

// at is a Wednesday.
var at = space.Calendar{
	Now: time.Date(2025, 4, 16, 12, 0, 0, 0, time.UTC), Zone: calendar.Zone,
	Keys: func(string) []string { return []string{"acme", "globex"} },
}

func TestSelectionsOfEachKind(t *testing.T) {
	kinds := map[string]*space.Space{
		"date":  space.Days("2025-01-01", ""),
		"week":  space.New(space.Dimension{Name: "week", Kind: space.Weekly, Start: "2025-01-06"}),
		"month": space.New(space.Dimension{Name: "month", Kind: space.Monthly, Start: "2024-11"}),
		"year":  space.New(space.Dimension{Name: "year", Kind: space.Yearly, Start: "2020"}),
		"time":  space.New(space.Dimension{Name: "time", Kind: space.Every, Minutes: 30, Start: "2025-04-16"}),
	}
	for _, c := range []struct{ dimension, selection, want string }{
		{"date", "date=2025-01-15", "date=2025-01-15"},
		{"date", "2025-01-15", "date=2025-01-15"},
		{"date", "date=2025-03", "date=2025-03-01..2025-03-31"},
		{"date", "date=2025-02-28..2025-03-01", "date=2025-02-28..2025-03-01"},
		{"date", "date=2025-01-03,2025-01-01..2025-01-02,2025-01-05", "date=2025-01-01..2025-01-03,2025-01-05"},
		{"date", "date=latest", "date=2025-04-15"},
		{"date", "date=latest-6..latest", "date=2025-04-09..2025-04-15"},
		{"date", "date=2025-04-10..", "date=2025-04-10..2025-04-15"},
		{"date", "date=..2025-01-02", "date=2025-01-01..2025-01-02"},
		{"date", "date=*", "date=2025-01-01..2025-04-15"},
		{"date", "date=2025-04-16", "date=2025-04-16"},
		{"date", "yesterday", "date=2025-04-15"},
		{"date", "date=yesterday..today", "date=2025-04-15..2025-04-16"},
		{"date", "all", "date=2025-01-01..2025-04-15"},
		{"time", "today", "time=2025-04-16T00:00Z..2025-04-16T12:00Z"},
		{"week", "week=2025-04-07", "week=2025-04-07"},
		{"week", "week=latest", "week=2025-04-07"},
		{"week", "week=2025-03", "week=2025-03-03..2025-03-31"},
		{"month", "month=2025", "month=2025-01..2025-12"},
		{"month", "month=latest-1..latest", "month=2025-02..2025-03"},
		{"year", "year=2020..2022", "year=2020..2022"},
		{"time", "time=2025-04-16T06:00..2025-04-16T07:00", "time=2025-04-16T06:00Z..2025-04-16T07:00Z"},
		{"time", "time=latest", "time=2025-04-16T11:30Z"},
	} {
		calendar := at
		if c.want == "month=2025-01..2025-12" {
			calendar = zoned
		}
		chosen, err := calendar.Resolve(kinds[c.dimension], selection(t, c.selection))
		require.NoError(t, err, c.selection)
		require.Equal(t, c.want, chosen.Text, c.selection)
		again, err := calendar.Resolve(kinds[c.dimension], selection(t, chosen.Text))
		require.NoError(t, err)
		require.Equal(t, chosen.Values, again.Values)
	}
	for text, want := range map[string]string{
		"date=2025-04-17":             "has not begun",
		"week=2025-04-08":             `"2025-04-08" is not the first day of a week: write 2025-04-07`,
		"month=2025-04-01":            "is not a month: write year-month",
		"date=2025-02-03..2025-02-01": "is before the first day",
		"date=0001-01-01..2025-01-01": "at most 100000 can be selected at once",
		"date=latest-x":               "write latest, or latest-6",
		"time=2025-04-16T06:10":       "is not a period of 30 minutes",
		"week=yesterday":              "yesterday needs a dimension of days or shorter periods, but week has weeks: write latest",
	} {
		s := selection(t, text)
		_, err := at.Resolve(kinds[s.Clauses[0].Dimension], s)
		require.ErrorContains(t, err, want, text)
	}
	for _, text := range []string{"", "date=", "date=1..2..3", "=x", "date=1;date=2", "date=..", "Date=1", "a=b=c", "date=*x", "date=1,,2", "tomorrow", "all;region=eu", "date=2025-02-30"} {
		_, err := space.ParseSelection(text)
		require.ErrorContains(t, err, "invalid partition selection", text)
	}
}

func TestPartOfDateSelectsDeclaredPeriods(t *testing.T) {
	s := space.Days("2025-01-30", "2025-02-03")
	for text, want := range map[string]string{
		"date=2025-01":          "date=2025-01-30..2025-01-31",
		"date=2025":             "date=2025-01-30..2025-02-03",
		"date=2025-01,2025-02":  "date=2025-01-30..2025-02-03",
		"date=2025-03":          "date=2025-03-01..2025-03-31",
		"date=2025-01..2025-02": "date=2025-01-01..2025-02-28",
	} {
		chosen, err := at.Resolve(s, selection(t, text))
		require.NoError(t, err)
		require.Equal(t, want, chosen.Text, text)
	}
}

func TestSelectionsJoinConsecutivePeriods(t *testing.T) {
	hours := space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2025-10-26", Timezone: "Europe/Paris"}
	region := space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}}
	s := space.New(hours, region)
	keys := []string{
		s.Key("2025-10-26T02:00+01:00", "eu"), s.Key("2025-10-26T02:00+02:00", "eu"), s.Key("2025-10-26T03:00+01:00", "eu"),
		s.Key("2025-10-26T05:00+01:00", "eu"), s.Key("2025-10-26T03:00+01:00", "us"), "nonsense",
	}
	want := []string{
		"hour=2025-10-26T02:00+02:00..2025-10-26T03:00+01:00;region=eu", "hour=2025-10-26T05:00+01:00;region=eu", "hour=2025-10-26T03:00+01:00;region=us",
	}
	require.Equal(t, want, s.Selections(keys))
	for _, text := range want {
		selection(t, text)
	}
	require.Equal(t, []string{"region=eu", "region=us"}, space.New(region).Selections([]string{`{"region":"us"}`, `{"region":"eu"}`}))
	require.Empty(t, (*space.Space)(nil).Selections([]string{""}))
}

func TestParseSelectionNamesTheTimeTwice(t *testing.T) {
	_, err := space.ParseSelection("2025-01-01;latest")
	require.ErrorContains(t, err, "it selects the time twice: list the values")
}

func TestSelectionOfSeveralDimensions(t *testing.T) {
	s := space.New(space.Days("2025-01-01", "").Dimensions[0],
		space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}},
		space.Dimension{Name: "tenant", Kind: space.Dynamic, Set: "tenants"})
	require.NoError(t, s.Validate())
	chosen, err := at.Resolve(s, selection(t, "region=us;date=2025-01-01"))
	require.NoError(t, err)
	require.Equal(t, "date=2025-01-01;region=us", chosen.Text)
	keys, err := s.Product(chosen.Values, 10)
	require.NoError(t, err)
	require.Equal(t, []string{
		`{"date":"2025-01-01","region":"us","tenant":"acme"}`, `{"date":"2025-01-01","region":"us","tenant":"globex"}`,
	}, keys)
	everything, err := at.Resolve(s, selection(t, "all"))
	require.NoError(t, err)
	require.Equal(t, "date=2025-01-01..2025-04-15;region=eu,us;tenant=acme,globex", everything.Text)
	all, err := at.Resolve(s, selection(t, "region=*"))
	require.NoError(t, err)
	require.Equal(t, []string{"eu", "us"}, all.Values[1])
	for text, want := range map[string]string{
		"zone=eu":                    "the asset is partitioned by date and region and tenant, not by zone",
		"region=eu..us":              "region has no order",
		"date=2025-01-01;2025-01-02": "selects date twice, with its name and without: list the values, as in date=VALUE,VALUE",
	} {
		_, err := at.Resolve(s, selection(t, text))
		require.ErrorContains(t, err, want)
	}
	two := space.New(space.Days("2025-01-01", "").Dimensions[0], space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2025-01-01"})
	require.ErrorContains(t, two.Validate(), "both dimensions of time")
}

func TestReadyAfterDelaysExpectation(t *testing.T) {
	d := space.Dimension{Name: "date", Kind: space.Daily, Start: "2025-04-14", ReadyAfterSec: 24 * 3600}
	days, err := at.Expected(space.New(d), 100)
	require.NoError(t, err)
	require.Equal(t, []string{`{"date":"2025-04-14"}`}, days)
	begun, err := at.Declared(space.New(d), 100)
	require.NoError(t, err)
	require.Len(t, begun, 3)
}

func TestDimensionValidateRejects(t *testing.T) {
	for want, d := range map[string]space.Dimension{
		"divisor of one hour":            {Name: "time", Kind: space.Every, Minutes: 7, Start: "2025-01-01"},
		"unknown kind":                   {Name: "x", Kind: "cron", Start: "2025-01-01"},
		"invalid dimension name":         {Name: "X", Kind: space.Daily, Start: "2025-01-01"},
		"invalid start":                  {Name: "m", Kind: space.Monthly, Start: "2025-01-01"},
		"the end 2024-01-01 is before":   {Name: "d", Kind: space.Daily, Start: "2025-01-01", End: "2024-01-01"},
		"has 0 values":                   {Name: "s", Kind: space.Static},
		"twice":                          {Name: "s", Kind: space.Static, Values: []string{"a", "a"}},
		"invalid partition value":        {Name: "s", Kind: space.Static, Values: []string{"a,b"}},
		"invalid key set":                {Name: "s", Kind: space.Dynamic, Set: "A B"},
		"invalid first day of a week":    {Name: "w", Kind: space.Weekly, Start: "2025-01-06", Starts: "mon"},
		"is not the first day of a week": {Name: "w", Kind: space.Weekly, Start: "2025-01-07"},
		"beginning of an hour":           {Name: "h", Kind: space.Hourly, Start: "2025-01-07T06:30"},
	} {
		require.ErrorContains(t, d.Validate(), want)
	}
}

func TestMappingsAreInferred(t *testing.T) {
	day, paris := space.Days("2025-01-01", ""), space.Days("2025-01-01", "")
	paris.Dimensions[0].Timezone = "Europe/Paris"
	hour := space.New(space.Dimension{Name: "hour", Kind: space.Hourly, Start: "2025-01-01"})
	month := space.New(space.Dimension{Name: "month", Kind: space.Monthly, Start: "2025-01"})
	week := space.New(space.Dimension{Name: "week", Kind: space.Weekly, Start: "2025-01-06"})
	sunday := space.New(space.Dimension{Name: "week", Kind: space.Weekly, Start: "2025-01-05", Starts: "sunday"})
	region := space.New(space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}})
	tenants := space.New(day.Dimensions[0], space.Dimension{Name: "tenant", Kind: space.Dynamic, Set: "tenants"})
	for _, c := range []struct {
		up, down *space.Space
		want     string
	}{
		{nil, day, "all"},
		{day, nil, "all"},
		{day, day, "identity"},
		{paris, day, "identity"},
		{hour, day, "hour: coarsen"},
		{day, hour, "date: refine"},
		{month, day, "month: refine"},
		{day, month, "date: coarsen"},
		{tenants, day, "date: identity, tenant: all"},
		{day, tenants, "date: identity"},
		{hour, paris, "cannot map"},
		{week, month, "cannot map"},
		{week, sunday, "cannot map"},
		{region, day, "cannot map"},
	} {
		m, err := space.Infer(c.up, c.down, space.Map{})
		if c.want == "cannot map" {
			require.ErrorContains(t, err, "cannot map the partitions of the upstream asset, "+c.up.String()+", to "+c.down.String())
			require.ErrorContains(t, err, "write map: all")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, m.String())
	}
	m, err := space.Infer(paris, day, space.Map{})
	require.NoError(t, err)
	require.Equal(t, "days in UTC read the days of the same date in Europe/Paris, which begin at other times: use one time zone", m.Warning)
}

// TestMappingsOfOneNameAndTwoKindsAreRejected: if two dimensions have the same name but different kinds, the mapping
// must declare an operation. Without one, each region would read all regions of its day, and nobody would notice.
func TestMappingsOfOneNameAndTwoKindsAreRejected(t *testing.T) {
	day := space.Days("2025-01-01", "").Dimensions[0]
	static := space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}}
	regions := space.Dimension{Name: "region", Kind: space.Dynamic, Set: "regions"}
	areas := space.Dimension{Name: "region", Kind: space.Dynamic, Set: "areas"}
	days := space.Dimension{Name: "region", Kind: space.Daily, Start: "2025-01-01"}
	const identity = "write map: {region: identity} or map: {region: all}"
	for _, c := range []struct {
		up, down space.Dimension
		advice   string
	}{
		{regions, static, identity},
		{static, regions, identity},
		{areas, regions, identity},
		{static, days, "write map: {region: all}"},
	} {
		up, down := space.New(c.up), space.New(c.down)
		if !c.down.IsTime() {
			up, down = space.New(day, c.up), space.New(day, c.down)
		}
		_, err := space.Infer(up, down, space.Map{})
		require.ErrorContains(t, err, "both assets have a dimension region, but the keys of "+c.up.String()+" differ from the keys of "+c.down.String())
		require.ErrorContains(t, err, c.advice)
		m, err := space.Infer(up, down, space.Map{Dimensions: []space.DimensionMap{{Dimension: "region", Op: space.All}}})
		require.NoError(t, err)
		op, _ := m.Of("region")
		require.Equal(t, space.All, op.Op)
	}
	m, err := space.Infer(space.New(day, regions), space.New(day, static), space.Map{Dimensions: []space.DimensionMap{{Dimension: "region", Op: space.Identity}}})
	require.NoError(t, err)
	require.Equal(t, "date: identity, region: identity", m.String())
	// The reader's region is mapped to the upstream dimension area, so no dimension of the reader is left for the
	// upstream dimension region.
	area := space.Dimension{Name: "area", Kind: space.Static, Values: []string{"eu", "us"}}
	m, err = space.Infer(space.New(area, regions), space.New(static), space.Map{Dimensions: []space.DimensionMap{{Dimension: "region", Op: space.Identity, Of: "area"}}})
	require.NoError(t, err)
	require.Equal(t, "area: identity, region: all", m.String())
}

func TestDeclaredMappings(t *testing.T) {
	day := space.Days("2025-01-01", "")
	country := space.New(space.Dimension{Name: "country", Kind: space.Static, Values: []string{"fr", "de", "us"}})
	region := space.New(space.Dimension{Name: "region", Kind: space.Static, Values: []string{"eu", "us"}})
	values := space.Map{Dimensions: []space.DimensionMap{{
		Dimension: "region", Op: space.Values, Values: map[string][]string{"eu": {"de", "fr"}, "us": {"us"}},
	}}}
	for _, c := range []struct {
		up, down *space.Space
		declared space.Map
		key      string
		want     []string
	}{
		{day, day, window(-2, 0), `{"date":"2025-01-02"}`, []string{`{"date":"2025-01-01"}`, `{"date":"2025-01-02"}`}},
		{country, region, values, `{"region":"eu"}`, []string{`{"country":"de"}`, `{"country":"fr"}`}},
	} {
		m, err := space.Infer(c.up, c.down, c.declared)
		require.NoError(t, err)
		reader, err := at.Reader(m)
		require.NoError(t, err)
		image, err := reader.Image(c.key)
		require.NoError(t, err)
		require.Equal(t, c.want, image.Keys)
	}
	for want, declared := range map[string]space.Map{
		"no dimension hour: name date":               {Dimensions: []space.DimensionMap{{Dimension: "hour", Op: space.Identity}}},
		"must not be after the second: write [0, 1]": window(1, 0),
		"has no shorter periods than":                {Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Coarsen}}},
	} {
		_, err := space.Infer(day, day, declared)
		require.ErrorContains(t, err, want)
	}
	values.Dimensions[0].Values["us"] = []string{"usa"}
	_, err := space.Infer(country, region, values)
	require.ErrorContains(t, err, "usa is not a value of country: write one of fr, de, us")
	_, err = space.Infer(nil, day, window(0, 0))
	require.ErrorContains(t, err, "remove map")
}

func window(from, to int64) space.Map {
	return space.Map{Dimensions: []space.DimensionMap{{Dimension: "date", Op: space.Window, From: from, To: to}}}
}

// dimension returns a dimension for the property tests. The dimension has a few declared values; periods are in early
// 2025.
func dimension(kind space.Kind, zone string) space.Dimension {
	d := space.Dimension{Name: kind.DefaultName(), Kind: kind, Timezone: zone}
	switch kind {
	case space.Monthly:
		d.Start, d.End = "2025-02", "2025-11"
	case space.Yearly:
		d.Start, d.End = "2024", "2025"
	case space.Weekly:
		d.Start, d.End = "2025-03-17", "2025-04-07"
	case space.Every:
		d.Minutes, d.Start, d.End = 30, "2025-03-29", "2025-03-31"
	case space.Static:
		d.Name, d.Values, d.Timezone = "region", []string{"eu", "us"}, ""
	case space.Dynamic:
		d.Name, d.Set, d.Timezone = "tenant", "tenants", ""
	default:
		d.Start, d.End = "2025-03-27", "2025-04-02"
	}
	return d
}

// drawSpace returns a random space with one time dimension and perhaps others.
func drawSpace(t *rapid.T, name, zone string) *space.Space {
	kind := rapid.SampledFrom(space.Kinds()[:6]).Draw(t, name)
	dimensions := []space.Dimension{dimension(kind, zone)}
	for _, k := range []space.Kind{space.Static, space.Dynamic} {
		if rapid.Bool().Draw(t, name+" "+string(k)) {
			dimensions = append(dimensions, dimension(k, ""))
		}
	}
	return space.New(dimensions...)
}

func keysOf(t *rapid.T, s *space.Space) []string {
	keys, err := zonedKeys.Declared(s, 10_000)
	require.NoError(t, err)
	return keys
}

var zonedKeys = space.Calendar{Now: zoned.Now, Zone: calendar.Zone, Keys: at.Keys}

// The preimage of an upstream partition must contain exactly the partitions of the reader whose image contains the
// upstream partition.
func TestImageAndPreimageAreAdjoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom([]string{"", "Europe/Paris", "America/New_York"}).Draw(t, "zone")
		up, down := drawSpace(t, "up", zone), drawSpace(t, "down", zone)
		var declared space.Map
		if up.Time().Kind == down.Time().Kind && rapid.Bool().Draw(t, "window") {
			declared.Dimensions = []space.DimensionMap{{
				Dimension: down.Time().Name, Op: space.Window,
				From: rapid.Int64Range(-9, 0).Draw(t, "from"), To: rapid.Int64Range(0, 3).Draw(t, "to"),
			}}
		}
		m, err := space.Infer(up, down, declared)
		if err != nil {
			t.Skip()
		}
		reader, err := zonedKeys.Reader(m)
		require.NoError(t, err)
		ups, downs := keysOf(t, up), keysOf(t, down)
		p := rapid.SampledFrom(downs).Draw(t, "p")
		image, err := reader.Image(p)
		require.NoError(t, err)
		for _, q := range rapid.SliceOfN(rapid.SampledFrom(append(slices.Clone(image.Keys), ups...)), 1, 20).Draw(t, "q") {
			back, all, err := reader.Preimage(q)
			require.NoError(t, err)
			reads, err := reader.Reads(p, q)
			require.NoError(t, err)
			inImage := image.All || slices.Contains(image.Keys, q)
			require.Equal(t, inImage, all || slices.Contains(back, p), "%s reads %s by %s", p, q, m)
			require.Equal(t, inImage, reads)
		}
	})
}

// The keys of a space are canonical: parsing and formatting a key returns the same key, and the space lists each key
// once.
func TestKeysAreCanonical(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSpace(t, "space", rapid.SampledFrom([]string{"", "Europe/Paris", "Asia/Kolkata"}).Draw(t, "zone"))
		require.NoError(t, s.Validate())
		members, err := zonedKeys.Members(s)
		require.NoError(t, err)
		keys := keysOf(t, s)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(keys))), len(keys))
		key := rapid.SampledFrom(keys).Draw(t, "key")
		values, err := s.Parse(key)
		require.NoError(t, err)
		require.Equal(t, key, s.Key(values...))
		require.True(t, members.Has(key))
	})
}

func TestRangesJoinsNeighbours(t *testing.T) {
	all := []string{"1", "2", "3", "4", "5", "6"}
	require.Equal(t, "1..3, 5", space.Ranges(all, []string{"1", "2", "3", "5"}))
	require.Equal(t, "6", space.Ranges(all, []string{"6"}))
	require.Empty(t, space.Ranges(all, nil))
}

// Has parses a key as JSON only if the faster split cannot read the key. Both ways must return the same values.
func TestMembersHasEqualsParse(t *testing.T) {
	s := space.New(space.Days("2025-01-01", "2025-01-31").Dimensions[0], space.Dimension{Name: "a", Kind: space.Static, Values: []string{"é", "x", `"`, "y"}})
	members, err := space.Calendar{}.Members(s)
	require.NoError(t, err)
	for _, key := range []string{
		`{"a":"x","date":"2025-01-02"}`, `{"a":"é","date":"2025-01-02"}`, `{"a":"\"","date":"2025-01-02"}`, `{"a":"z","date":"2025-01-02"}`,
		`{"a":"x","date":"2025-02-02"}`, `{"a":"x","date":"2025-1-2"}`, `{"date":"2025-01-02","a":"x"}`, `{"a":"x"}`, `{"a":"x","date":"2025-01-02"} `,
		`{"a":"x","date":"2025-01-02","z":"1"}`, `{"a":"x","date":"2025-01-02"`, `{}`, ``, `[]`, `{"a":"\u0078","date":"2025-01-02"}`,
	} {
		values, err := s.Parse(key)
		require.Equal(t, err == nil && members.HasValues(values), members.Has(key), key)
	}
}
