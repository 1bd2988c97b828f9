package snapshot_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// eachTable calls the function test once for each table, and passes the table's position in [state.Declarations].
func eachTable(t *testing.T, test func(t *testing.T, i int, d *state.Declaration)) {
	t.Helper()
	for i, d := range state.Declarations() {
		t.Run(d.Name, func(t *testing.T) { test(t, i, d) })
	}
}

// row returns a list with one row of a table. The key of the row consists of zero values.
func row(d *state.Declaration, seq int64) any {
	list := tabletest.Row(d)
	for r := range d.Each(list) {
		r.RowMeta().Seq = seq
	}
	return list
}

// oneRow returns one row of the i-th table of [state.Declarations].
func oneRow(t *testing.T, i int, seq int64) *state.Rows {
	t.Helper()
	lists := make([]any, len(state.Declarations()))
	lists[i] = row(state.Declarations()[i], seq)
	return state.NewRows(lists)
}

// oneRowEach returns one row for each table. The parameter "other" is the position of a table. The row of this table
// has the sequence number 2, and every other row has the sequence number 1.
func oneRowEach(t *testing.T, other int) *state.Rows {
	t.Helper()
	lists := make([]any, len(state.Declarations()))
	for i, d := range state.Declarations() {
		seq := int64(1)
		if i == other {
			seq = 2
		}
		lists[i] = row(d, seq)
	}
	return state.NewRows(lists)
}

func TestDiffComparesEveryTable(t *testing.T) {
	want := state.New(acme)
	want.Load(oneRowEach(t, -1))
	eachTable(t, func(t *testing.T, i int, d *state.Declaration) {
		got := state.New(acme)
		got.Load(oneRowEach(t, i))
		lines := state.Diff(want, got, 20)
		require.Len(t, lines, 1)
		require.Contains(t, lines[0], d.Name)
		require.Contains(t, lines[0], "row_seq")
	})
}

func TestWithoutCoversEveryTable(t *testing.T) {
	eachTable(t, func(t *testing.T, i int, d *state.Declaration) {
		rows := oneRowEach(t, -1)
		kept := rows.Without(oneRow(t, i, 2))
		require.Equal(t, rows.Len()-1, kept.Len(), "the row that newer contains is left out")
		for left := range kept.Lists {
			require.NotEqual(t, d.Name, left.Name)
		}

		want := oneRow(t, i, 1)
		kept = want.Without(oneRowEach(t, i))
		require.Zero(t, kept.Len())
		kept = want.Without(&state.Rows{})
		require.Equal(t, want, kept, "a row that newer does not contain is kept")
	})
}

func TestMergeCoversEveryTable(t *testing.T) {
	eachTable(t, func(t *testing.T, i int, _ *state.Declaration) {
		for _, order := range [][]*state.Rows{{oneRowEach(t, -1), oneRow(t, i, 2)}, {oneRow(t, i, 2), oneRowEach(t, -1)}} {
			merged, err := state.Merge(order)
			require.NoError(t, err)
			require.Equal(t, oneRowEach(t, i), merged)
		}
	})
}

func TestCodecRoundTripsEveryTable(t *testing.T) {
	st := state.New(acme)
	st.Load(oneRowEach(t, 0))
	for name, c := range map[string]*snapshot.Codec{"parquet": codec, "memory": snapshot.NewMemoryCodec()} {
		files, err := c.Encode(st.All())
		require.NoError(t, err)
		var sources []snapshot.Source
		for _, f := range files {
			sources = append(sources, snapshot.Source{Table: f.Table, Name: f.Table, Read: func(context.Context) ([]byte, error) { return f.Data, nil }})
		}
		rows, err := c.Merge(t.Context(), sources)
		require.NoError(t, err)
		require.Equal(t, st.All(), rows, name)
	}
	for _, d := range state.Declarations() {
		require.Equal(t, int64(1), st.Counts()[d.Name])
	}
}
