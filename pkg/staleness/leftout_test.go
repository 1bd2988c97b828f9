package staleness_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// TestI21LeftOutOfRetryIsStale checks an output that has not read a visible input. A run materializes total and its
// reader copy. In a retry, total is skipped, but copy runs nevertheless. The output of total from the first run is
// still visible, but the new output of copy has not read it.
func TestI21LeftOutOfRetryIsStale(t *testing.T) {
	status := func(copied *state.Partition) staleness.Status {
		rows := map[ids.AssetKey][]*state.Partition{
			key("total"): {{AssetKey: "a/total", RunID: "run1", TaskKey: "a/total", VersionSeq: 382, InputsSeq: 342}},
			key("copy"):  {copied},
		}
		statuses, err := evaluation(t, assets(), rows, nil).Statuses(key("copy"), []string{""})
		require.NoError(t, err)
		return statuses[0]
	}
	without := state.Partition{AssetKey: "a/copy", RunID: "run2", RootRun: "run1", TaskKey: "a/copy", VersionSeq: 536, LeftOut: 533}
	require.Equal(t, staleness.Stale, status(&without))

	approved := without
	approved.VersionSeq, approved.Quality = 540, state.Approved
	require.Equal(t, staleness.Stale, status(&approved), "published from quarantine")

	sameRun := without
	sameRun.RunID, sameRun.RootRun, sameRun.VersionSeq, sameRun.LeftOut = "run1", "", 386, 385
	require.Equal(t, staleness.Fresh, status(&sameRun), "it read total, and another upstream task had failed")

	retried := without
	retried.InputsSeq, retried.LeftOut = 342, 0
	require.Equal(t, staleness.Fresh, status(&retried), "total was not repeated, so the retry read its output")
}

// TestI21LeftOutOfRetryIsStaleIfItReadsAll is the same test, with a reader of all partitions of its upstream asset.
func TestI21LeftOutOfRetryIsStaleIfItReadsAll(t *testing.T) {
	daily := space.Days("2025-01-01", "2025-01-02")
	all := []plan.Asset{{Key: key("raw"), Partitions: daily}, {Key: key("sum"), Deps: []ids.AssetKey{key("raw")}}}
	late := event.At(made[3])
	row := func(partition, run, root string, version int64) *state.Partition {
		return &state.Partition{
			AssetKey: "a/raw", PartitionKey: partition, RunID: run, RootRun: root, VersionSeq: version, InputsSeq: 10, MaterializedAt: late,
		}
	}
	sum := &state.Partition{AssetKey: "a/sum", RunID: "run2", RootRun: "run1", VersionSeq: 30, LeftOut: 25}
	for _, c := range []struct {
		name  string
		first *state.Partition
		want  staleness.Status
	}{
		{"both days of the retry", row(day(0), "run2", "run1", 20), staleness.Fresh},
		{"one day of the first run", row(day(0), "run1", "", 11), staleness.Stale},
	} {
		rows := map[ids.AssetKey][]*state.Partition{key("raw"): {c.first, row(day(1), "run2", "run1", 21)}, key("sum"): {sum}}
		statuses, err := evaluation(t, all, rows, nil).Statuses(key("sum"), []string{""})
		require.NoError(t, err)
		require.Equal(t, c.want, statuses[0], c.name)
	}
}
