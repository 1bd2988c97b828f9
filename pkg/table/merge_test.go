package table_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/tabletest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
)

// drawFiles returns random files with unique sequence numbers, and the rows that a merge of the files must return. It
// computes these rows in a simple but slow way.
func drawFiles(t *rapid.T) (files [][]*state.Dep, want map[string]*state.Dep) {
	tab := table.Of[state.Dep]("dep_satisfaction")
	want = map[string]*state.Dep{}
	seq := int64(0)
	for range rapid.IntRange(0, 6).Draw(t, "files") {
		var rows []*state.Dep
		for range rapid.IntRange(0, 8).Draw(t, "rows") {
			row := tabletest.DrawRow[state.Dep](t, "row")
			seq++
			row.Seq = seq
			rows = append(rows, row)
		}
		rows = tabletest.Unique(tab, rows)
		for _, row := range rows {
			if has := want[tab.Key(row)]; has == nil || has.Seq < row.Seq {
				want[tab.Key(row)] = row
			}
		}
		files = append(files, rows)
	}
	return files, want
}

func TestMergeIsOrderAndGroupingIndependent(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.Dep]("dep_satisfaction")
	rapid.Check(t, func(t *rapid.T) {
		files, want := drawFiles(t)
		var expected []*state.Dep
		for _, row := range want {
			expected = append(expected, row)
		}
		remaining := rapid.Permutation(files).Draw(t, "order")
		for len(remaining) > 2 && rapid.Bool().Draw(t, "group") {
			n := rapid.IntRange(1, len(remaining)).Draw(t, "size")
			delta, err := tab.Merge(remaining[:n]...)
			require.NoError(t, err)
			remaining = append(slices.Clone(remaining[n:]), delta)
		}
		merged, err := tab.Merge(remaining...)
		require.NoError(t, err)
		require.Empty(t, slices.Collect(tab.Diff(expected, merged)))
		require.True(t, slices.IsSortedFunc(merged, tab.Compare))
	})
}

func TestMergeOfNothingIsEmpty(t *testing.T) {
	t.Parallel()
	rows, err := table.Of[state.Dep]("dep_satisfaction").Merge()
	require.NoError(t, err)
	require.Empty(t, rows)
}

func TestMergeKeepsTombstones(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.RunKey]("run_keys")
	base := []*state.RunKey{{RunKey: "k", Meta: state.Meta{Seq: 1}}}
	deleted := []*state.RunKey{{RunKey: "k", Meta: state.Meta{Seq: 2, Deleted: true}}}
	delta, err := tab.Merge(deleted)
	require.NoError(t, err)
	require.Len(t, delta, 1)
	rows, err := tab.Merge(delta, base)
	require.NoError(t, err)
	require.Equal(t, deleted, rows)
}

func TestMergeRejectsDifferentRowsWithSameSeq(t *testing.T) {
	t.Parallel()
	tab := table.Of[state.RunKey]("run_keys")
	a := []*state.RunKey{{RunKey: "k", RunID: "1", Meta: state.Meta{Seq: 4}}}
	same := []*state.RunKey{{RunKey: "k", RunID: "1", Meta: state.Meta{Seq: 4}}}
	other := []*state.RunKey{{RunKey: "k", RunID: "2", Meta: state.Meta{Seq: 4}}}
	rows, err := tab.Merge(a, same)
	require.NoError(t, err)
	require.Len(t, rows, 1)
	_, err = tab.Merge(a, other)
	require.ErrorContains(t, err, "merge run_keys: two different rows have key run_key=k and row_seq 4")
}
