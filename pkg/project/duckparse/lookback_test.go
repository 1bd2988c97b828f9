package duckparse_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestParseFindsLookbacks maps queries to their lookbacks, as COLUMN=TABLES.
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

		// A filter that is not certain is no lookback.
		from + "day = getvariable('date')":                                                           "",
		from + "day >= getvariable('date')":                                                          "",
		from + "day >= getvariable('date') - 0":                                                      "",
		from + "day >= getvariable('date') + 1":                                                      "",
		from + "day <= getvariable('date') - 7":                                                      "",
		from + "seen >= getvariable('date') - INTERVAL 5 HOUR":                                       "",
		from + "seen >= getvariable('date') - INTERVAL '5 hours'":                                    "",
		from + "day >= getvariable('date') - lag":                                                    "",
		from + "day >= DATE '2025-01-08' - 7":                                                        "",
		from + "day >= date_trunc('day', getvariable('date'))":                                       "",
		from + "date_diff('day', day, getvariable('date')) <= 7":                                     "",
		from + "x OR day >= getvariable('date') - 7":                                                 "",
		from + "NOT day >= getvariable('date') - 7":                                                  "",
		"SELECT day >= getvariable('date') - 7 FROM n.t":                                             "",
		"SELECT getvariable('date') - 7 AS since FROM n.t":                                           "",
		"FROM n.t, read_csv('x.csv') WHERE day >= getvariable('date') - 7":                           "",
		"FROM n.t, range(3) WHERE day >= getvariable('date') - 7":                                    "",
		"FROM n.t AS a(day) WHERE day >= getvariable('date') - 7":                                    "",
		"FROM (SELECT min(day) AS day FROM n.t) WHERE day >= getvariable('date') - 7":                "",
		"FROM (SELECT * REPLACE (x AS day) FROM n.t) WHERE day >= getvariable('date') - 7":           "",
		"FROM (SELECT *, since AS first, now() AS day FROM n.t) WHERE day > getvariable('date') - 7": "",
		"WITH w(day) AS (FROM n.t) FROM w WHERE day >= getvariable('date') - 7":                      "",
		"WITH w AS (FROM n.t UNION FROM n.u) FROM w WHERE day >= getvariable('date') - 7":            "",
		"FROM n.t WHERE t.payload.day >= getvariable('date') - 7":                                    "",
	} {
		parsed, err := p.Parse(t.Context(), []string{query})
		require.NoError(t, err)
		require.Nil(t, parsed[0].Bad, query)
		var found []string
		for _, l := range parsed[0].Lookbacks {
			require.Equal(t, "date", l.Variable, query)
			require.True(t, strings.HasPrefix(query[l.Offset:], l.Column), query)
			var tables []string
			for _, table := range l.Tables {
				tables = append(tables, table.Schema+"."+table.Table)
			}
			found = append(found, l.Column+"="+strings.Join(tables, ","))
		}
		require.Equal(t, want, strings.Join(found, " "), query)
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
	require.Len(t, parsed[0].Lookbacks[0].Tables, 1)
}
