package query_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

// Numbers in JSON are returned exactly, although a float64 would round them.
func TestQueryKeepsNumbersInJSON(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	for sql, want := range map[string]string{
		`'{"id": 9007199254740993, "b": [1.5, 1e300, -1]}'::JSON`: `{"b":[1.5,1e+300,-1],"id":9007199254740993}`,
		`'-9007199254740993'::JSON`:                               `-9007199254740993`,
		`'123456789012345678901'::JSON`:                           `123456789012345678901`,
		`'0.12345678901234567890'::JSON`:                          `0.12345678901234567890`,
		`to_json(0.1::DOUBLE + 0.2::DOUBLE)`:                      `0.30000000000000004`,
		`['9007199254740993'::JSON, NULL]`:                        `[9007199254740993,null]`,
		`[['9007199254740993'::JSON]]`:                            `[[9007199254740993]]`,
		`{'a': 1, 'j': '[9007199254740993]'::JSON}`:               `{"a":1,"j":[9007199254740993]}`,
		`MAP {'k': '9007199254740993'::JSON, 'l': '7'::JSON}`:     `{"k":9007199254740993,"l":7}`,
		`['9007199254740993'::JSON, '1'::JSON]::JSON[2]`:          `[9007199254740993,1]`,
		`'1e400'::JSON`:              `1e400`,
		`'{"a": [-1e400]}'::JSON`:    `{"a":[-1e400]}`,
		`'null'::JSON`:               `null`,
		`NULL::JSON`:                 `null`,
		`'"9007199254740993"'::JSON`: `"9007199254740993"`,
		`['[]'::JSON, '{"a": [{"b": 9007199254740993}, {}]}'::JSON]`: `[[],{"a":[{"b":9007199254740993},{}]}]`,
	} {
		rows, err := db.Query(t.Context(), "SELECT "+sql+" AS x")
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, render.Write(&out, rows.Result(), render.Options{Format: render.JSON}))
		require.NoError(t, rows.Close())
		require.Equal(t, `[ {"x":`+want+`} ]`, strings.Join(strings.Fields(out.String()), " "), sql)
	}
}

// A number that a float64 cannot represent makes the driver fail in the middle of a row.
func TestQueryReadsRowsWithHugeNumbersInJSON(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	const sql = "SELECT i, (CASE WHEN i % 2 = 0 THEN '1e400' ELSE '5' END)::JSON, i + 1, '101'::BIT, '2e400'::JSON FROM range(5000) t(i)"
	for _, limit := range []int64{0, 1 << 20} {
		rows, err := db.Query(t.Context(), sql)
		require.NoError(t, err)
		rows.MaxRowBytes = limit
		got, err := rows.Collect(5000)
		require.NoError(t, err)
		require.Len(t, got, 5000)
		for i, row := range got {
			number := any(render.Number("1e400"))
			if i%2 > 0 {
				number = int64(5)
			}
			require.Equal(t, []any{int64(i), number, int64(i + 1), "101", render.Number("2e400")}, row)
		}
	}
}

func TestQueryAdvisesOnUnreadableValues(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	for _, value := range []string{
		"ROW(1, 2)", "['1e400'::JSON]", "TIME_NS '10:00:00'", "MAP {[1]: 2}", "MAP {gen_random_uuid(): 2}",
		"MAP {TIME '00:00:00': 1, TIME '24:00:00': 2}", "MAP {'9007199254740993'::JSON: 1, '9007199254740992'::JSON: 2}",
	} {
		rows, err := db.Query(t.Context(), "SELECT "+value)
		require.NoError(t, err)
		_, err = rows.Collect(10)
		require.ErrorContains(t, err, ": cast the column to VARCHAR", value)
		rows, err = db.Query(t.Context(), "SELECT CAST("+value+" AS VARCHAR)")
		require.NoError(t, err)
		_, err = rows.Collect(10)
		require.NoError(t, err)
	}
}

func TestQueryShowsTimesOfDayExactly(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	for sql, want := range map[string]string{
		`TIME '24:00:00'`:                `"24:00:00"`,
		`TIME '00:00:00.000001'`:         `"00:00:00.000001"`,
		`TIME '10:20:30.5'`:              `"10:20:30.5"`,
		`NULL::TIME`:                     `null`,
		`[TIME '24:00:00', NULL]`:        `["24:00:00",null]`,
		`{'a': TIME '24:00:00', 'b': 1}`: `{"a":"24:00:00","b":1}`,
		`MAP {'a': TIME '24:00:00'}`:     `{"a":"24:00:00"}`,
		`[TIME '24:00:00']::TIME[1]`:     `["24:00:00"]`,
		`TIMETZ '24:00:00+00'`:           `"24:00:00Z"`,
		`TIMETZ '10:00:00.25+02:30'`:     `"10:00:00.25+02:30"`,
		`TIMETZ '10:00:00-15:59:59'`:     `"10:00:00-15:59:59"`,
		`TIMETZ '10:00:00+15:59:59'`:     `"10:00:00+15:59:59"`,
	} {
		rows, err := db.Query(t.Context(), "SELECT "+sql+" AS x")
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, render.Write(&out, rows.Result(), render.Options{Format: render.JSON}))
		require.NoError(t, rows.Close())
		require.Equal(t, `[ {"x":`+want+`} ]`, strings.Join(strings.Fields(out.String()), " "), sql)
	}
}

func TestQueryShowsUnionsExactly(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	for sql, want := range map[string]string{
		`union_value(d := DATE '2025-01-01')`:                                     `"2025-01-01"`,
		`union_value(t := TIMESTAMP '2025-01-01 10:00:00')`:                       `"2025-01-01T10:00:00"`,
		`union_value(t := TIME '24:00:00')`:                                       `"24:00:00"`,
		`union_value(u := '00000000-0000-0000-0000-000000000001'::UUID)`:          `"00000000-0000-0000-0000-000000000001"`,
		`union_value(j := '9007199254740993'::JSON)`:                              `9007199254740993`,
		`union_value(s := {'b': DATE '2025-01-01', 'a': TIME '24:00:00'})`:        `{"b":"2025-01-01","a":"24:00:00"}`,
		`[union_value(d := DATE 'infinity'), NULL]`:                               `["infinity",null]`,
		`MAP {'k': union_value(l := [TIME '24:00:00'])}`:                          `{"k":["24:00:00"]}`,
		`7::UNION(n INTEGER, t TIME)`:                                             `7`,
		`(TIME '24:00:00')::UNION(n INTEGER, "the time" TIME)`:                    `"24:00:00"`,
		`NULL::UNION(n INTEGER, t TIME)`:                                          `null`,
		`[1::UNION(n INTEGER, t TIME), (TIME '24:00:00')::UNION(n INT, t TIME)]`:  `[1,"24:00:00"]`,
		`MAP {TIME '24:00:00': 1, TIME '10:00:00': 2}`:                            `{"24:00:00":1,"10:00:00":2}`,
		`MAP {'9007199254740993'::JSON: 1}`:                                       `{"9007199254740993":1}`,
		`MAP {TIMESTAMPTZ '2025-01-01 00:00:00+00': 1, TIMESTAMPTZ 'infinity':2}`: `{"2025-01-01T00:00:00Z":1,"infinity":2}`,
		`MAP {1e6::DOUBLE: 1}`:                                                    `{"1000000":1}`,
	} {
		rows, err := db.Query(t.Context(), "SELECT "+sql+" AS x")
		require.NoError(t, err, sql)
		var out bytes.Buffer
		require.NoError(t, render.Write(&out, rows.Result(), render.Options{Format: render.JSON}), sql)
		require.NoError(t, rows.Close())
		require.Equal(t, `[ {"x":`+want+`} ]`, strings.Join(strings.Fields(out.String()), " "), sql)
	}
}

// In every chunk of a result, each row has its own JSON. The rows can be closed before the last one is read.
func TestQueryKeepsJSONOfEachRow(t *testing.T) {
	t.Parallel()
	db := newRevision(t).open(t)
	const sql = "SELECT i, CASE WHEN i % 3 > 0 THEN to_json(9007199254740993 + i) END, [to_json(i), to_json('text longer than twelve ' || i)] FROM range(7000) t(i)"
	for _, limit := range []int64{0, 1 << 20} {
		rows, err := db.Query(t.Context(), sql)
		require.NoError(t, err)
		rows.MaxRowBytes = limit
		n := int64(0)
		for row, err := range rows.All() {
			require.NoError(t, err)
			require.Equal(t, n, row[0])
			if n%3 > 0 {
				require.Equal(t, 9007199254740993+n, row[1])
			} else {
				require.Nil(t, row[1])
			}
			require.Equal(t, n, row[2].([]any)[0])
			n++
		}
		require.EqualValues(t, 7000, n)
		require.NoError(t, rows.Close())
	}
	rows, err := db.Query(t.Context(), sql)
	require.NoError(t, err)
	for _, err := range rows.All() {
		require.NoError(t, err)
		break
	}
	require.NoError(t, rows.Close())
}
