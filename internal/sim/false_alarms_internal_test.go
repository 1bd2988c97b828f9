package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A new version of one day makes only that day of a batch stale. (World 115300010: the oracle wrongly expected both
// days to be stale.)
func TestInputBelongsToOnePartitionOfABatch(t *testing.T) {
	batch := []string{"date=1999-10-28", "date=1999-10-29"}
	require.True(t, readFor(batch, batch[0], batch[0]))
	require.False(t, readFor(batch, batch[0], batch[1]))
	require.True(t, readFor(batch, batch[0], ""), "an upstream without partitions")
	require.True(t, readFor(batch, batch[0], "date=1999-10-01"), "an earlier day")
	require.True(t, readFor(nil, batch[0], batch[1]), "a task of one partition that reads a window")
}

// A verification lists fifty superseded outputs and counts the others. (World 115100002 had more, and the oracle
// wrongly expected all of them in the list.)
func TestVerificationMayLeaveOutSupersededOutputs(t *testing.T) {
	full := &repair.Report{Superseded: []string{"one"}, SupersededOutputs: 2}
	require.True(t, mayLeaveOut(full, false))
	require.False(t, mayLeaveOut(full, true), "a visible output is not among them")
	require.False(t, mayLeaveOut(&repair.Report{Superseded: []string{"one"}, SupersededOutputs: 1}, false), "the list is complete")
	require.True(t, mayLeaveOut(&repair.Report{Problems: []string{"one", rest}}, true))
}

// A partition that a person has marked as missing shows no output. (World 778000106 had such a partition, and its
// output was damaged. The oracle wrongly expected the output among the problems that a verification reports. The
// verification lists it among the superseded outputs, because it is hidden.)
func TestMissingPartitionShowsNoOutput(t *testing.T) {
	key := state.Key2{A: "orders", B: "2026-11-26"}
	task := &state.Task{AssetKey: key.A, PartitionKey: key.B, MaterializationID: "made"}
	s := state.New(ids.Domain{})
	require.False(t, visible(s, task), "the partition has no output")
	s.Partitions.Put(&state.Partition{AssetKey: key.A, PartitionKey: key.B, MaterializationID: "made"})
	require.True(t, visible(s, task))
	s.Marks.Put(&state.Mark{AssetKey: key.A, PartitionKey: key.B, MaterializationID: "made", Mark: event.MarkMissing})
	require.False(t, visible(s, task))
}
