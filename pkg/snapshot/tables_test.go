package snapshot_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// everyTable calls test once for each of the tables, with its position in [state.Rows].
func everyTable(t *testing.T, test func(t *testing.T, i int)) {
	t.Helper()
	rows := reflect.TypeFor[state.Rows]()
	require.Equal(t, len(table.All()), rows.NumField(), "state.Rows contains every table")
	for i := range rows.NumField() {
		t.Run(rows.Field(i).Name, func(t *testing.T) { test(t, i) })
	}
}

// put appends a row with an empty key and a sequence number to the table at position i.
func put(t *testing.T, rows *state.Rows, i int, seq int64) {
	t.Helper()
	list := reflect.ValueOf(rows).Elem().Field(i)
	row := reflect.New(list.Type().Elem().Elem())
	meta, ok := reflect.TypeAssert[interface{ RowMeta() *state.Meta }](row)
	require.True(t, ok)
	meta.RowMeta().Seq = seq
	list.Set(reflect.Append(list, row))
}

// oneRowEach returns one row for each table. The row of the table at position other has
// sequence number 2, all others have 1.
func oneRowEach(t *testing.T, other int) *state.Rows {
	t.Helper()
	var rows state.Rows
	for i := range reflect.TypeFor[state.Rows]().NumField() {
		seq := int64(1)
		if i == other {
			seq = 2
		}
		put(t, &rows, i, seq)
	}
	return &rows
}

func TestDiffComparesEveryTable(t *testing.T) {
	want := state.New(domain)
	want.Load(oneRowEach(t, -1))
	everyTable(t, func(t *testing.T, i int) {
		got := state.New(domain)
		got.Load(oneRowEach(t, i))
		lines := codec.Diff(want, got, 20)
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], "row_seq")
	})
}

func TestWithoutCoversEveryTable(t *testing.T) {
	everyTable(t, func(t *testing.T, i int) {
		rows := oneRowEach(t, -1)
		var newer, want state.Rows
		put(t, &newer, i, 2)
		kept := codec.Without(rows, &newer)
		require.Equal(t, rows.Len()-1, kept.Len(), "the row that newer contains is left out")
		require.Zero(t, reflect.ValueOf(*kept).Field(i).Len())

		put(t, &want, i, 1)
		kept = codec.Without(&want, oneRowEach(t, i))
		require.Zero(t, kept.Len())
		kept = codec.Without(&want, &state.Rows{})
		require.Equal(t, &want, kept, "a row that newer does not contain is kept")
	})
}
