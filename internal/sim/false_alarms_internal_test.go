package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/repair"
)

// A new version of one day makes only that day of a batch stale. (World 115300010: the oracle expected both days to be
// stale.)
func TestInputBelongsToOnePartitionOfABatch(t *testing.T) {
	batch := []string{"date=1999-10-28", "date=1999-10-29"}
	require.True(t, readFor(batch, batch[0], batch[0]))
	require.False(t, readFor(batch, batch[0], batch[1]))
	require.True(t, readFor(batch, batch[0], ""), "an upstream without partitions")
	require.True(t, readFor(batch, batch[0], "date=1999-10-01"), "an earlier day")
	require.True(t, readFor(nil, batch[0], batch[1]), "a task of one partition that reads a window")
}

// A verification lists fifty superseded outputs and counts the others. (World 115100002 had more: the oracle expected
// all of them in the list.)
func TestVerificationMayLeaveOutSupersededOutputs(t *testing.T) {
	full := &repair.Report{Superseded: []string{"one"}, SupersededOutputs: 2}
	require.True(t, mayLeaveOut(full, false))
	require.False(t, mayLeaveOut(full, true), "a visible output is not among them")
	require.False(t, mayLeaveOut(&repair.Report{Superseded: []string{"one"}, SupersededOutputs: 1}, false), "the list is complete")
	require.True(t, mayLeaveOut(&repair.Report{Problems: []string{"one", rest}}, true))
}
