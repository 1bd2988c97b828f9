package state_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/state"
)

func TestKeyBlocksAreHalfFullAndOrdered(t *testing.T) {
	for _, n := range []int{0, 1, 100, 700, 5000} {
		var keys []state.SetKey
		for i := range n {
			keys = append(keys, state.SetKey{Key: fmt.Sprintf("tenant-%05d", i)})
		}
		var all []state.SetKey
		for i, row := range state.KeyBlocks("tenants", "", keys) {
			if i > 0 {
				require.GreaterOrEqual(t, len(row.Keys), 2000)
			}
			require.LessOrEqual(t, len(row.Keys), 4200)
			first := len(all)
			for k := range row.All() {
				all = append(all, k)
			}
			require.EqualValues(t, len(all)-first, row.KeyCount)
			if i > 0 {
				require.Equal(t, row.First, all[first].Key)
			} else {
				require.Empty(t, row.First)
			}
		}
		require.Equal(t, keys, all)
	}
}
