package repair

import (
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
)

// If a group was folded again after its row had moved to history, it has two rows: one in history and one in the live
// state.
func TestInOrderFindsGroupFoldedTwice(t *testing.T) {
	entry, other := ulid.ULID{1}, ulid.ULID{2}
	order := []place{
		{entry: entry, ofGroup: entry, firstSeq: 1, events: 2},
		{entry: entry, odd: "line-2", firstSeq: 3, events: 1},
		{entry: other, ofGroup: entry, firstSeq: 4, events: 1},
		{entry: entry, ofGroup: entry, firstSeq: 900, events: 2},
	}
	require.Equal(t, []string{"ledger: entry " + entry.String() + ", group " + entry.String() + " was folded twice, at sequence 1 and 900"}, inOrder(order))
	require.Equal(t, []int64{1, 3, 4, 900}, []int64{order[0].firstSeq, order[1].firstSeq, order[2].firstSeq, order[3].firstSeq})
	require.Empty(t, inOrder(order[:3]))
	order[1].firstSeq = 2
	require.Len(t, inOrder(order[:3]), 1, "two at one sequence")
}
