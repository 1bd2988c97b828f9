package arrowipc_test

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/query/arrowipc"
)

// write executes a statement and returns its result as an Arrow IPC stream.
func write(t *testing.T, sql string) ([]byte, error) {
	t.Helper()
	db, err := query.Open(t.Context(), query.Source{}, query.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	rows, err := db.Query(t.Context(), sql)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rows.Close()) })
	var out bytes.Buffer
	err = arrowipc.Write(&out, rows.Columns, rows.All())
	return out.Bytes(), err
}

// read reads a stream to its end, and calls f for each batch.
func read(t *testing.T, stream []byte, f func(arrow.RecordBatch)) *arrow.Schema {
	t.Helper()
	r, err := ipc.NewReader(bytes.NewReader(stream))
	require.NoError(t, err)
	defer r.Release()
	for r.Next() {
		f(r.RecordBatch())
	}
	require.NoError(t, r.Err())
	return r.Schema()
}

// TestTypesAreKept checks that values of every DuckDB type have the expected Arrow type, and that a reader of the
// stream reads the selected value.
func TestTypesAreKept(t *testing.T) {
	for sql, want := range map[string]struct{ kind, value string }{
		"true":                                 {"bool", "true"},
		"(-5)::TINYINT":                        {"int8", "-5"},
		"300::SMALLINT":                        {"int16", "300"},
		"7":                                    {"int32", "7"},
		"9007199254740993":                     {"int64", "9007199254740993"},
		"200::UTINYINT":                        {"uint8", "200"},
		"60000::USMALLINT":                     {"uint16", "60000"},
		"4000000000::UINTEGER":                 {"uint32", "4000000000"},
		"18446744073709551615::UBIGINT":        {"uint64", "18446744073709551615"},
		"0.5::FLOAT":                           {"float32", "0.5"},
		"0.1::DOUBLE":                          {"float64", "0.1"},
		"12.50::DECIMAL(9,2)":                  {"decimal(9, 2)", "12.5"},
		"(-0.05)::DECIMAL(38,2)":               {"decimal(38, 2)", "-0.05"},
		"sum(1)":                               {"decimal(38, 0)", "1"},
		"'ä'":                                  {"utf8", "ä"},
		"'\\x01a'::BLOB":                       {"binary", "AWE="},
		"DATE '1969-12-31'":                    {"date32", "1969-12-31"},
		"TIME '13:14:15.5'":                    {"time64[us]", "13:14:15.500000"},
		"TIMESTAMP '2025-01-02 03:04:05.25'":   {"timestamp[us]", "2025-01-02T03:04:05.25"},
		"TIMESTAMP_S '1960-01-02 03:04:05'":    {"timestamp[s]", "1960-01-02T03:04:05"},
		"TIMESTAMP_MS '2025-01-02 03:04:05'":   {"timestamp[ms]", "2025-01-02T03:04:05"},
		"TIMESTAMP_NS '2025-01-02 03:04:05'":   {"timestamp[ns]", "2025-01-02T03:04:05"},
		"TIMESTAMPTZ '2025-01-02 03:04:05+01'": {"timestamp[us, tz=UTC]", "2025-01-02T02:04:05Z"},
		"INTERVAL 2 DAYS":                      {"utf8", "2 days"},
		"'a'::ENUM('a', 'b')":                  {"utf8", "a"},
		"'4ac7a9e9-607c-4c8a-84f3-843f0191e3fd'::UUID": {"utf8", "4ac7a9e9-607c-4c8a-84f3-843f0191e3fd"},
		"[1, NULL, 3]":              {"list<item: int32, nullable>", "[1,null,3]"},
		"[[1.5::DECIMAL(3,1)], []]": {"list<item: list<item: decimal(3, 1), nullable>, nullable>", `[["1.5"],[]]`},
		"{'a': 1, 'b c': ['x']}":    {"struct<a: int32 nullable, b c: list<item: utf8, nullable> nullable>", `{"a":1,"b c":["x"]}`},
		"{'z\"': 1, 'a': 2}":        {"struct<z\": int32 nullable, a: int32 nullable>", `{"a":2,"z\"":1}`},
		"MAP {'k': 1, 'l': 2}":      {"map<utf8, int32, items_nullable>", `[{"key":"k","value":1},{"key":"l","value":2}]`},
		"union_value(n := 2)":       {"utf8", "2"},
		"NULL::INTEGER[]":           {"list<item: int32, nullable>", "(null)"},
		"NULL::STRUCT(a INTEGER)":   {"struct<a: int32 nullable>", "(null)"},
		"'infinity'::DATE::VARCHAR": {"utf8", "infinity"},
	} {
		stream, err := write(t, "SELECT "+sql+" AS x")
		require.NoError(t, err, sql)
		rows := 0
		schema := read(t, stream, func(b arrow.RecordBatch) {
			rows += int(b.NumRows())
			require.Equal(t, want.value, b.Column(0).ValueStr(0), sql)
		})
		require.Equal(t, 1, rows, sql)
		require.Equal(t, want.kind, fmt.Sprint(schema.Field(0).Type), sql)
	}
}

// A stream contains all rows of a result, in several batches. If a result has no rows, the stream still contains its
// schema.
func TestStreamHasAllRows(t *testing.T) {
	stream, err := write(t, "SELECT i, repeat('x', (i % 7)::INTEGER) AS s, CASE WHEN i % 3 = 0 THEN i END AS n FROM range(10000) t(i)")
	require.NoError(t, err)
	rows, batches := int64(0), 0
	read(t, stream, func(b arrow.RecordBatch) {
		batches++
		ids, texts, numbers := b.Column(0).(*array.Int64), b.Column(1).(*array.String), b.Column(2).(*array.Int64)
		for i := range int(b.NumRows()) {
			require.Equal(t, rows, ids.Value(i))
			require.Equal(t, strings.Repeat("x", int(rows%7)), texts.Value(i))
			require.Equal(t, rows%3 != 0, numbers.IsNull(i))
			rows++
		}
	})
	require.EqualValues(t, 10_000, rows)
	require.Greater(t, batches, 1)

	stream, err = write(t, "SELECT 1 AS a, 2 AS a WHERE false")
	require.NoError(t, err)
	schema := read(t, stream, func(arrow.RecordBatch) { t.Fatal("there are no rows") })
	require.Equal(t, 2, schema.NumFields())
	require.NotEqual(t, schema.Field(0).Name, schema.Field(1).Name)
}

// A large row ends its batch, so that the memory of a batch is limited.
func TestBatchesAreLimitedInBytes(t *testing.T) {
	stream, err := write(t, "SELECT repeat('x', 600000) AS s FROM range(6)")
	require.NoError(t, err)
	batches := 0
	read(t, stream, func(arrow.RecordBatch) { batches++ })
	require.Equal(t, 3, batches)
}

// After an error, the stream has no end marker, so a reader reports that the stream is incomplete.
func TestErrorLeavesStreamWithoutEnd(t *testing.T) {
	failed := errors.New("failed")
	rows := func() iter.Seq2[[]any, error] {
		return func(yield func([]any, error) bool) {
			for range 5000 {
				if !yield([]any{int32(1)}, nil) {
					return
				}
			}
			yield(nil, failed)
		}
	}
	var out bytes.Buffer
	require.ErrorIs(t, arrowipc.Write(&out, []query.Column{{Name: "x", Type: "INTEGER"}}, rows()), failed)
	whole, err := write(t, "SELECT 1 AS x")
	require.NoError(t, err)
	end := whole[len(whole)-8:]
	require.False(t, bytes.HasSuffix(out.Bytes(), end))
}

func TestValuesWithoutArrowValueAreErrors(t *testing.T) {
	for sql, reason := range map[string]string{
		"170141183460469231731687303715884105727::HUGEINT": "more than 38 digits",
		"DATE '12000-01-01'": "only years from 0000 to 9999",
		"TIME '24:00:00'":    "24:00:00 is no time of day in Arrow",
	} {
		_, err := write(t, "SELECT "+sql+" AS x")
		require.ErrorContains(t, err, "column x of type", sql)
		require.ErrorContains(t, err, reason, sql)
		require.ErrorContains(t, err, "cast it to VARCHAR", sql)
	}
}
