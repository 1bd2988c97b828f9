package fold_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// days are the partitions of the batches of these tests.
var days = []string{`{"date":"2025-01-01"}`, `{"date":"2025-01-02"}`, `{"date":"2025-01-03"}`}

// batched returns the definition of task a, which materializes days.
func batched() event.TaskDef {
	def := foldtest.Retrying("a", 3)
	def.PartitionKey, def.Partitions = days[0], days
	return def
}

// cellsOf returns a report that task a has succeeded with the outputs of n partitions.
func cellsOf(w *foldtest.World, run string, n int) *event.TaskFinished {
	p := w.Finished(run, "a", 1, event.Succeeded)
	p.Output = &event.Output{URI: "assets/" + run + "/x.cells/", RowCount: 6, ByteSize: 60, SchemaHash: "h"}
	for i := range n {
		p.Output.Cells = append(p.Output.Cells, event.OutputCell{RowCount: int64(i + 1), ByteSize: int64(10 * (i + 1))})
	}
	return p
}

func shownOf(w *foldtest.World, partition string) *state.Partition {
	return w.State.Partitions.Get(state.Key2{A: "test/a", B: partition})
}

func TestBatchShowsEveryPartitionInOneStep(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(batched())
	require.Equal(t, days, w.State.BatchOf(run, "a"))
	require.Equal(t, days, w.State.PartitionsOf(w.Task(run, "a")))
	w.MustFold(cellsOf(w, run, 3))
	id := ids.MaterializationID(foldtest.Domain, run, "a")
	for i, day := range days {
		row := shownOf(w, day)
		require.NotNil(t, row, day)
		require.Equal(t, id, row.MaterializationID)
		require.Equal(t, "assets/"+run+"/x.cells/"+ids.PartitionSegment(day)+"/", row.OutputURI)
		require.Equal(t, int64(i+1), row.RowCount)
		require.Equal(t, int64(10*(i+1)), row.ByteSize)
		require.Equal(t, shownOf(w, days[0]).VersionSeq, row.VersionSeq)
	}
	require.Equal(t, int64(6), w.Task(run, "a").RowCount)
}

// A worker that does not support batches reports no partitions. In this case, no partition becomes visible.
func TestBatchNeedsEveryPartition(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(batched())
	w.MustFold(cellsOf(w, run, 2))
	require.Equal(t, state.TaskFailed, w.Task(run, "a").State, "another attempt would adopt the same marker")
	require.Equal(t, fold.CodeInvalidOutput, w.Task(run, "a").ErrorCode)
	other := w.Run(batched())
	without := cellsOf(w, other, 0)
	without.Output = nil
	w.MustFold(without)
	require.Equal(t, fold.CodeInvalidOutput, w.Task(other, "a").ErrorCode)
	for _, day := range days {
		require.Nil(t, shownOf(w, day))
	}
}

// Each partition has its own order of runs. If a later run has materialized one partition of a batch, the output of
// the later run stays visible for this partition.
func TestBatchDoesNotReplaceLaterPartition(t *testing.T) {
	w := foldtest.New(t)
	first := w.Run(batched())
	one := foldtest.Retrying("a", 3)
	one.PartitionKey = days[1]
	later := w.Run(one)
	w.MustFold(w.Finished(later, "a", 1, event.Succeeded))
	w.MustFold(cellsOf(w, first, 3))
	require.Equal(t, first, shownOf(w, days[0]).RunID)
	require.Equal(t, later, shownOf(w, days[1]).RunID)
	require.Equal(t, first, shownOf(w, days[2]).RunID)
}

// A decision covers all partitions of a batch except those that have a later output.
func TestQuarantineDecidesAboutWholeBatch(t *testing.T) {
	for _, decision := range []string{event.DecisionApprove, event.DecisionReject} {
		w := foldtest.New(t)
		def := batched()
		def.Checks, def.Quarantine = []string{"c"}, &event.Quarantine{ExpiresSec: hour}
		run := w.Run(def)
		blocked := cellsOf(w, run, 3)
		blocked.Outcome, blocked.CheckResults = event.Failed, []event.CheckResult{{Name: "c", Phase: "POST"}}
		blocked.Error = &event.Error{Code: fold.CodeCheckFailed, Message: "partition date=2025-01-02: it failed"}
		w.MustFold(blocked)
		require.Equal(t, len(days), w.State.PendingCandidates())
		one := foldtest.Retrying("a", 3)
		one.PartitionKey = days[2]
		later := w.Run(one)
		w.MustFold(w.Finished(later, "a", 1, event.Succeeded))
		require.Equal(t, 2, w.State.PendingCandidates(), "a later output supersedes one of them")
		w.MustFold(&event.QuarantineResolved{
			CommandID: w.ID(), Asset: "test/a", Partition: days[1], MaterializationID: ids.MaterializationID(foldtest.Domain, run, "a"), Decision: decision,
		})
		require.Zero(t, w.State.PendingCandidates())
		require.Equal(t, later, shownOf(w, days[2]).RunID)
		for i, day := range days[:2] {
			if row := shownOf(w, day); decision == event.DecisionReject {
				require.Nil(t, row)
			} else {
				require.Equal(t, state.Approved, row.Quality)
				require.Equal(t, int64(i+1), row.RowCount)
			}
		}
	}
}

func TestBatchOfPlanDecodes(t *testing.T) {
	data, err := json.Marshal(batched())
	require.NoError(t, err)
	var def event.TaskDef
	require.NoError(t, json.Unmarshal(data, &def))
	require.NoError(t, event.ValidateTasks([]event.TaskDef{def}))
	for name, wrong := range map[string][]string{"one": days[:1], "order": {days[1], days[0]}, "twice": {days[0], days[0]}, "key": {days[0], "x"}} {
		def.Partitions = wrong
		require.Error(t, event.ValidateTasks([]event.TaskDef{def}), name)
	}
}
