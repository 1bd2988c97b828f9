package state_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/state"
)

// TestAddHistoryKeepsNewestOfEachPartition adds values in any order. It checks that the values of the newest runs are
// kept, and that each partition has one value.
func TestAddHistoryKeepsNewestOfEachPartition(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		partitioned := rapid.Bool().Draw(r, "partitioned")
		var all []state.HistoryValue
		for n := range rapid.IntRange(0, 3*state.MaxHistory).Draw(r, "values") {
			v := state.HistoryValue{Run: fmt.Sprintf("r%03d", n), Value: int64(n)}
			if partitioned {
				v.Partition = fmt.Sprintf("p%d", rapid.IntRange(0, 2*state.MaxHistory).Draw(r, "partition"))
			}
			all = append(all, v)
		}
		var want []state.HistoryValue
		seen := map[string]bool{}
		for _, v := range slices.Backward(all) {
			if (v.Partition == "" || !seen[v.Partition]) && len(want) < state.MaxHistory {
				want = append(want, v)
			}
			seen[v.Partition] = true
		}
		slices.Reverse(want)
		var got []state.HistoryValue
		for _, v := range rapid.Permutation(all).Draw(r, "order") {
			got = state.AddHistory(got, v)
		}
		require.Equal(r, want, got)
	})
}
