package duckparse_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestParseFindsLookbacks maps queries to their lookbacks, as COLUMN=TABLES. A question mark marks expressions that
// are a lookback only if the column contains the day of the partition.
func TestParseFindsLookbacks(t *testing.T) {
	const from = "SELECT * FROM n.t WHERE "
	p := open(t)
	for query, want := range map[string]string{
		from + "day >= getvariable('date') - 7":                                                                 "day=n.t",
		from + "day > getvariable('date')::DATE - 7":                                                            "day=n.t",
		from + "x = 1 AND (day >= getvariable('Date') - INTERVAL 7 DAY AND y = 2)":                              "day=n.t",
		from + "getvariable('date') - INTERVAL '1 month' <= day::DATE":                                          "day=n.t",
		from + "day >= getvariable('date') + INTERVAL (-2) WEEK":                                                "day=n.t",
		from + "day >= date_add(getvariable('date'), INTERVAL '-1 year')":                                       "day=n.t",
		from + "day >= CAST(getvariable('date') - to_days(3) AS DATE)":                                          "day=n.t",
		from + "day >= getvariable('date') + -3":                                                                "day=n.t",
		from + "day >= date_trunc('month', getvariable('date'))":                                                "day=n.t",
		from + "day >= date_trunc('month', getvariable('date')) - INTERVAL 1 MONTH":                             "day=n.t",
		from + "day BETWEEN getvariable('date') - 6 AND getvariable('date')":                                    "day=n.t",
		from + "day = getvariable('date') - 1":                                                                  "day=n.t",
		from + "T.Day >= getvariable('date') - 7":                                                               "T.Day=n.t",
		from + "n.t.day >= getvariable('date') - 7":                                                             "n.t.day=n.t",
		"FROM n.t JOIN n.u AS x ON t.id = x.id AND x.day >= getvariable('date') - 7":                            "x.day=n.u",
		"FROM n.t JOIN n.u USING (id) WHERE day >= getvariable('date') - 7":                                     "day=n.t,n.u",
		"WITH w AS (FROM n.t), v AS (SELECT day AS d, 1 AS x FROM w) FROM v WHERE d >= getvariable('date') - 7": "d=n.t",
		"SELECT (SELECT sum(x) FROM n.t WHERE t.day >= getvariable('date') - 7), 1":                             "t.day=n.t",
		"FROM (SELECT *, 1 AS x FROM n.t) AS s WHERE s.day >= getvariable('date') - 7":                          "s.day=n.t",
		"FROM n.u UNION ALL FROM n.t WHERE day >= getvariable('date') - 7":                                      "day=n.t",

		"SELECT d, sum(v) FROM n.t GROUP BY d HAVING d >= getvariable('date') - 7":                              "d=n.t",
		"SELECT d AS day, sum(v) FROM n.t GROUP BY d HAVING x AND d >= getvariable('date') - 7":                 "d=n.t",
		"SELECT d, v FROM n.t QUALIFY d >= getvariable('date') - 7 AND row_number() OVER (PARTITION BY id) = 1": "d=n.t",

		from + "day > getvariable('date') - getvariable('var_days')":                "day=n.t",
		from + "getvariable('date') - day < getvariable('var_days')":                "day=n.t",
		from + "day + to_weeks(getvariable('var_weeks')) >= getvariable('date')":    "day=n.t",
		from + "seen >= getvariable('date') - INTERVAL (getvariable('var_n')) DAYS": "seen=n.t",

		// The queries below express the same kind of bound in other forms.
		from + "day + 7 > getvariable('date')":                                                     "day=n.t",
		from + "getvariable('date') - day < 7":                                                     "day=n.t",
		from + "getvariable('date') - day BETWEEN 0 AND 6":                                         "day=n.t",
		from + "6 >= getvariable('date') - day::DATE":                                              "day=n.t",
		from + "day - getvariable('date') > -7":                                                    "day=n.t",
		from + "getvariable('date') - day IN (0, 1)":                                               "day=n.t",
		from + "day + INTERVAL 2 WEEKS >= getvariable('date')":                                     "day=n.t",
		from + "-7 + getvariable('date') < day":                                                    "day=n.t",
		from + "day >= getvariable('date') - 2 * 7":                                                "day=n.t",
		from + "day >= getvariable('date') - INTERVAL '7' DAY":                                     "day=n.t",
		from + "seen >= getvariable('date') - INTERVAL 48 HOURS":                                   "seen=n.t",
		from + "NOT day < getvariable('date') - 7":                                                 "day=n.t",
		from + "day IN (getvariable('date'), getvariable('date') - 1)":                             "day=n.t",
		from + "day = ANY ([getvariable('date'), getvariable('date') - 1])":                        "day=n.t",
		from + "list_contains([getvariable('date'), getvariable('date') - 1], day)":                "day=n.t",
		from + "day = getvariable('date') OR x AND day = getvariable('date') - 1":                  "day=n.t",
		from + "date_trunc('month', day) = date_trunc('month', getvariable('date'))":               "day=n.t",
		from + "year(day) = year(getvariable('date')) AND month(day) = month(getvariable('date'))": "day=n.t day?=n.t",
		from + "last_day(day) = last_day(getvariable('date'))":                                     "day=n.t",
		from + "strftime(day, '%Y-%m') = strftime(getvariable('date'), '%Y-%m')":                   "day=n.t",
		from + "day::VARCHAR LIKE strftime(getvariable('date'), '%Y-%m') || '%'":                   "day=n.t",
		from + "day LIKE left(getvariable('date')::VARCHAR, 7) || '%'":                             "day=n.t",
		from + "left(day, 7) = (getvariable('date')::VARCHAR)[1:7]":                                "day=n.t",
		from + "starts_with(day, substr(getvariable('date')::VARCHAR, 1, 7))":                      "day=n.t",
		from + "day >= strftime(getvariable('date'), '%Y-%m-01')":                                  "day=n.t",
		from + "day >= (strftime(getvariable('date'), '%Y-%m') || '-01')::DATE":                    "day=n.t",
		from + "day >= make_date(year(getvariable('date')), month(getvariable('date')), 1)":        "day=n.t",
		"WITH p AS (SELECT getvariable('date') - 7 AS lo) SELECT v FROM n.t, p WHERE d >= p.lo":    "d=n.t",
		"WITH p(lo) AS (SELECT getvariable('date') - 7) SELECT v FROM n.t, p WHERE d >= lo":        "d=n.t",
		"WITH p AS (SELECT getvariable('date') AS d0) SELECT v FROM n.t, p WHERE d >= d0 - 7":      "d=n.t",
		"FROM n.t WHERE d >= (SELECT getvariable('date') - 7)":                                     "d=n.t",
		"WITH p AS (SELECT getvariable('date') - 7 AS lo) FROM n.t WHERE d >= (SELECT lo FROM p)":  "d=n.t",
		"FROM n.t JOIN (SELECT getvariable('date') - 7 AS lo) AS p ON t.d >= p.lo":                 "t.d=n.t",
		"SELECT x.v FROM n.t AS x JOIN n.u AS y ON y.d = x.d - 1 WHERE x.d = getvariable('date')":  "y.d=n.u",

		// The expressions below are lookbacks only if their columns contain the day of the partition.
		"FROM n.t AS x JOIN n.u AS y ON y.d = x.d - 1":                                                     "y.d?=n.u",
		"FROM n.t AS x JOIN n.t AS y ON y.d BETWEEN x.d - 6 AND x.d":                                       "y.d?=n.t",
		"FROM n.t AS x JOIN n.t AS y ON y.d < x.d":                                                         "x.d?=n.t",
		"FROM n.t AS x ASOF JOIN n.t AS y ON x.id = y.id AND x.d > y.d":                                    "x.d?=n.t",
		"SELECT (SELECT sum(v) FROM n.u AS y WHERE y.d BETWEEN x.d - 6 AND x.d) FROM n.t AS x":             "y.d?=n.u",
		"SELECT lag(v) OVER (ORDER BY d) FROM n.t":                                                         "d?=n.t",
		"SELECT lag(v) OVER (PARTITION BY id ORDER BY d) FROM n.t":                                         "d?=n.t",
		"SELECT sum(v) OVER (ORDER BY d ROWS 6 PRECEDING) FROM n.t":                                        "d?=n.t",
		"SELECT sum(v) OVER w FROM n.t WINDOW w AS (ORDER BY t.d::DATE)":                                   "t.d?=n.t",
		"SELECT sum(v) OVER (ORDER BY d RANGE BETWEEN INTERVAL 6 DAYS PRECEDING AND CURRENT ROW) FROM n.t": "d?=n.t",
		"SELECT sum(v) FILTER (WHERE d = getvariable('date') - 1) FROM n.t":                                "d?=n.t",
		"SELECT sum(CASE WHEN d >= getvariable('date') - 7 THEN v END) FROM n.t":                           "d?=n.t",
		from + "x OR day >= getvariable('date') - 7":                                                       "day?=n.t",
		from + "NOT day >= getvariable('date') - 7":                                                        "day?=n.t",
		from + "day < getvariable('date')":                                                                 "day?=n.t",
		from + "day = getvariable('date') + 1":                                                             "day?=n.t",
		from + "day = date_trunc('month', getvariable('date'))":                                            "day?=n.t",
		from + "day::VARCHAR >= strftime(getvariable('date'), '%Y-%m')":                                    "day?=n.t",
		from + "month = strftime(getvariable('date'), '%Y-%m')":                                            "month?=n.t",
		from + "y = year(getvariable('date'))":                                                             "y?=n.t",
		from + "y >= year(getvariable('date')) - 1":                                                        "y?=n.t",
		from + "month(day) = month(getvariable('date'))":                                                   "day?=n.t",
		"SELECT day >= getvariable('date') - 7 FROM n.t":                                                   "day?=n.t",

		// A filter is not a lookback if it may compare something other than earlier days.
		from + "day = getvariable('date')":                                                           "",
		from + "day >= getvariable('date')":                                                          "",
		from + "day >= getvariable('date') - 0":                                                      "",
		from + "day >= getvariable('date') + 1":                                                      "",
		from + "day <= getvariable('date') - 7":                                                      "day?=n.t",
		from + "seen >= getvariable('date') - INTERVAL 5 HOUR":                                       "",
		from + "seen >= getvariable('date') - INTERVAL '5 hours'":                                    "",
		"SELECT id, max(d) AS d FROM n.t GROUP BY id HAVING d >= getvariable('date') - 7":            "d?=n.t",
		"SELECT id FROM n.t GROUP BY id HAVING max(d) >= getvariable('date') - 7":                    "",
		from + "seen >= getvariable('date') - INTERVAL (getvariable('var_n')) HOURS":                 "",
		from + "day >= getvariable('date') + getvariable('var_days')":                                "",
		from + "day >= getvariable('date') - getvariable('days')":                                    "",
		from + "day >= getvariable('date') - lag":                                                    "",
		from + "day >= DATE '2025-01-08' - 7":                                                        "",
		from + "day >= date_trunc('day', getvariable('date'))":                                       "",
		from + "date_diff('day', day, getvariable('date')) <= 7":                                     "",
		"SELECT getvariable('date') - 7 AS since FROM n.t":                                           "",
		"FROM n.t, read_csv('x.csv') WHERE day >= getvariable('date') - 7":                           "",
		"FROM n.t, range(3) WHERE day >= getvariable('date') - 7":                                    "",
		"FROM n.t AS a(day) WHERE day >= getvariable('date') - 7":                                    "",
		"FROM (SELECT min(day) AS day FROM n.t) WHERE day >= getvariable('date') - 7":                "",
		"FROM (SELECT * REPLACE (x AS day) FROM n.t) WHERE day >= getvariable('date') - 7":           "day=n.t",
		"FROM (SELECT * REPLACE (now() AS day) FROM n.t) WHERE day >= getvariable('date') - 7":       "",
		"FROM (SELECT *, since AS first, now() AS day FROM n.t) WHERE day > getvariable('date') - 7": "",
		"WITH w(day) AS (FROM n.t) FROM w WHERE day >= getvariable('date') - 7":                      "",
		"WITH w AS (FROM n.t UNION FROM n.u) FROM w WHERE day >= getvariable('date') - 7":            "",
		"FROM n.t WHERE t.payload.day >= getvariable('date') - 7":                                    "",

		// The queries below need no rows of earlier days.
		from + "path LIKE 'logs/' || strftime(getvariable('date'), '%Y/%m') || '%'":                                                  "",
		from + "year(getvariable('date')) - year(born) >= 18":                                                                        "",
		from + "day <= getvariable('date')":                                                                                          "",
		from + "day > getvariable('date') - 1 AND day <= getvariable('date')":                                                        "",
		from + "getvariable('date') - day < 1":                                                                                       "",
		from + "day + 1 > getvariable('date')":                                                                                       "",
		from + "day IN (getvariable('date'))":                                                                                        "",
		from + "day > getvariable('date')":                                                                                           "",
		from + "day <> getvariable('date')":                                                                                          "",
		from + "day >= getvariable('date') - 7 AND day = getvariable('date')":                                                        "",
		from + "date_trunc('month', day) = date_trunc('month', getvariable('date')) AND t.day = getvariable('date')":                 "",
		from + "date_trunc('day', seen) = getvariable('date')":                                                                       "",
		from + "strftime(seen, '%Y-%m-%d') = strftime(getvariable('date'), '%Y-%m-%d')":                                              "",
		from + "seen::VARCHAR LIKE getvariable('date')::VARCHAR || '%'":                                                              "",
		from + "left(seen::VARCHAR, 10) = getvariable('date')::VARCHAR":                                                              "",
		from + "month(born) = month(getvariable('date')) AND day(born) = day(getvariable('date'))":                                   "",
		from + "year(d) = year(getvariable('date')) AND month(d) = month(getvariable('date')) AND day(d) = day(getvariable('date'))": "",
		from + "date_diff('month', day, getvariable('date')) = 0":                                                                    "",
		from + "valid_from <= getvariable('date') AND (valid_to IS NULL OR valid_to > getvariable('date'))":                          "",
		"SELECT lag(v) OVER (PARTITION BY d ORDER BY d) FROM n.t":                                                                    "",
		"SELECT lag(v) OVER (ORDER BY d) FROM n.t WHERE d = getvariable('date')":                                                     "",
		"SELECT sum(v) OVER (ORDER BY d ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM n.t":                          "",
		"FROM n.t QUALIFY row_number() OVER (PARTITION BY id ORDER BY d DESC) = 1":                                                   "",
		"FROM n.t AS x JOIN n.t AS y ON y.d = x.d":                                                                                   "",
		"FROM n.t AS x JOIN n.u AS y ON y.d > x.d - 1 AND y.d <= x.d":                                                                "",
	} {
		parsed, err := p.Parse(t.Context(), []string{query})
		require.NoError(t, err)
		require.Nil(t, parsed[0].Bad, query)
		var found []string
		for _, l := range parsed[0].Lookbacks {
			require.Contains(t, []string{"date", ""}, l.Variable, query)
			require.True(t, strings.HasPrefix(query[l.Offset:], l.Column), query)
			var tables []string
			for _, column := range l.Columns {
				tables = append(tables, column.Schema+"."+column.Table)
			}
			if len(l.Days) > 0 {
				l.Column += "?"
			}
			found = append(found, l.Column+"="+strings.Join(tables, ","))
		}
		assert.Equal(t, want, strings.Join(found, " "), query)
	}
}

func TestParseLookbacksOfManyJoinsIsFast(t *testing.T) {
	query := "WITH w0 AS (FROM n.t, n.t)"
	for i := range 40 {
		query += fmt.Sprintf(", w%d AS (FROM w%d AS a, w%d AS b)", i+1, i, i)
	}
	parsed, err := open(t).Parse(t.Context(), []string{query + " FROM w40 WHERE day >= getvariable('date') - 7"})
	require.NoError(t, err)
	require.Nil(t, parsed[0].Bad)
	require.Len(t, parsed[0].Lookbacks, 1)
	require.Len(t, parsed[0].Lookbacks[0].Columns, 1)
}

func TestParseLookbacksOfLongExpressionsIsFast(t *testing.T) {
	sum := "(day" + strings.Repeat(" + 1", 300) + ")"
	nested := strings.Repeat("(SELECT ", 60) + sum + strings.Repeat(" - 1)", 60)
	for _, query := range []string{
		"FROM n.t WHERE x = 1 AND y = getvariable('date') AND " + sum + " > getvariable('date')",
		"FROM n.t WHERE y = getvariable('date') AND " + nested + " >= getvariable('date')",
	} {
		parsed, err := open(t).Parse(t.Context(), []string{query})
		require.NoError(t, err)
		require.Nil(t, parsed[0].Bad)
		require.Len(t, parsed[0].Lookbacks, 1)
	}
}

// TestLoadRejectsFiltersOfEarlierDays uses the variables that mark the ends of a day, and variables of the project.
func TestLoadRejectsFiltersOfEarlierDays(t *testing.T) {
	for filter, want := range map[string]string{
		"seen >= getvariable('date_start') - INTERVAL 7 DAY AND seen < getvariable('date_end')": "window: [-7, 0]",
		"seen >= getvariable('date_end') - INTERVAL 7 DAY":                                      "window: [-6, 0]",
		"seen >= getvariable('date_end') - INTERVAL 1 DAY AND seen < getvariable('date_end')":   "",
		"seen >= getvariable('date_start') AND seen <= getvariable('date_end')":                 "",
		"date < getvariable('date_start')":                                                      "window: [-N, 0]",
		"d > getvariable('date') - getvariable('var_days')":                                     "window: [-N, 0]",
		"seen >= getvariable('date_start') - to_days(getvariable('var_days'))":                  "window: [-N, 0]",
		"d = getvariable('date') - getvariable('var_launch')":                                   "",
		"d >= getvariable('date') - getvariable('var_name')::INTEGER":                           "",
	} {
		err := loadFiles(t, map[string]string{
			"servo.yaml":       "vars: {days: 7, launch: 2025-01-01, name: x}\n",
			"assets/raw/v.sql": daily + "SELECT d, seen FROM 'data/x.csv'",
			"assets/q/x.sql":   daily + "SELECT * FROM raw.v WHERE " + filter,
		})
		if want == "" {
			assert.NoError(t, err, filter)
		} else {
			assert.ErrorContains(t, err, want, filter)
		}
	}
}
