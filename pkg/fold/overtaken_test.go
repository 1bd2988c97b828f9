package fold_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Two runs materialize the same upstream, and the later run is faster. Then the output of the earlier run does not
// become visible, but the tasks of the earlier run read it. The state must record that these tasks have not read the
// visible output.
func TestI21ReaderOfOvertakenOutputIsIncomplete(t *testing.T) {
	w := foldtest.New(t)
	first := w.Run(assetTask("a"), assetTask("b", "a"))
	w.Pass(minute)
	second := w.Run(assetTask("a"))
	w.MustFold(w.Finished(second, "a", 1, event.Succeeded))
	visible := w.State.Partitions.Get(state.Key2{A: "a"})
	require.Equal(t, second, visible.RunID)

	w.MustFold(w.Finished(first, "a", 1, event.Succeeded))
	require.Same(t, visible, w.State.Partitions.Get(state.Key2{A: "a"}))
	w.MustFold(w.Finished(first, "b", 1, event.Succeeded))
	reader := w.State.Partitions.Get(state.Key2{A: "b"})
	require.Equal(t, first, reader.RunID)
	require.Zero(t, reader.InputsSeq)
	require.True(t, reader.Incomplete())
}

// A group node represents its upstreams: if the output of one of them is not visible, the output of a task that reads
// the group is incomplete.
func TestI21ReaderOfGroupWithOvertakenOutputIsIncomplete(t *testing.T) {
	w := foldtest.New(t)
	group := event.TaskDef{TaskKey: "g", Kind: event.KindGroup, DependsOn: []string{"a", "c"}, TriggerRule: event.RuleAllSuccess}
	first := w.Run(assetTask("a"), assetTask("c"), group, assetTask("b", "g"))
	w.Pass(minute)
	second := w.Run(assetTask("a"))
	for _, done := range []*event.TaskFinished{
		w.Finished(second, "a", 1, event.Succeeded), w.Finished(first, "a", 1, event.Succeeded),
		w.Finished(first, "c", 1, event.Succeeded), w.Finished(first, "b", 1, event.Succeeded),
	} {
		w.MustFold(done)
	}
	require.Equal(t, state.TaskSucceeded, w.Task(first, "g").State)
	require.False(t, w.State.Partitions.Get(state.Key2{A: "c"}).Incomplete())
	require.True(t, w.State.Partitions.Get(state.Key2{A: "b"}).Incomplete())
}

// A task that only waits for an order node does not read the outputs of the tasks before the node.
func TestReaderAfterOrderNodeIsComplete(t *testing.T) {
	w := foldtest.New(t)
	node := event.TaskDef{TaskKey: "o", Kind: event.KindGroup, DependsOn: []string{"a"}, TriggerRule: event.RuleAllDone}
	first := w.Run(assetTask("a"), node, assetTask("c", "o"))
	w.Pass(minute)
	second := w.Run(assetTask("a"))
	for _, done := range []*event.TaskFinished{
		w.Finished(second, "a", 1, event.Succeeded), w.Finished(first, "a", 1, event.Succeeded), w.Finished(first, "c", 1, event.Succeeded),
	} {
		w.MustFold(done)
	}
	require.False(t, w.State.Partitions.Get(state.Key2{A: "c"}).Incomplete())
}

// A later run has materialized one partition of a batch: not the first one, whose key is also the partition key of
// the batch's task.
func TestI21ReaderOfBatchWithOvertakenPartitionIsIncomplete(t *testing.T) {
	for _, test := range []struct {
		name, later string
		incomplete  bool
	}{
		{"a partition of the batch", days[1], true},
		{"another partition", `{"date":"2025-02-01"}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := foldtest.New(t)
			reader := foldtest.Task("b", "a")
			reader.PartitionKey = days[0]
			first := w.Run(batched(), reader)
			w.Pass(minute)
			one := foldtest.Retrying("a", 3)
			one.PartitionKey = test.later
			w.MustFold(w.Finished(w.Run(one), "a", 1, event.Succeeded))
			w.MustFold(cellsOf(w, first, 3))
			w.MustFold(w.Finished(first, "b", 1, event.Succeeded))
			row := w.State.Partitions.Get(state.Key2{A: reader.AssetKey, B: days[0]})
			require.Equal(t, first, row.RunID)
			require.Equal(t, test.incomplete, row.Incomplete())
		})
	}
}

// A rebuild from the bare ledger folds timers last. So it may fold a report about an attempt of a task before it
// folds the timer that ended an upstream of the task.
func TestI21AdoptedReaderOfOpenTaskIsIncomplete(t *testing.T) {
	w := foldtest.New(t)
	earlier := w.Run(assetTask("a"))
	w.MustFold(w.Finished(earlier, "a", 1, event.Succeeded))
	reader := assetTask("b", "a")
	reader.TriggerRule = event.RuleAllDone
	run := w.Run(assetTask("a"), reader)
	w.MustFold(w.Finished(run, "b", 1, event.Succeeded))
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	row := w.State.Partitions.Get(state.Key2{A: "b"})
	require.Equal(t, run, row.RunID)
	require.True(t, row.Incomplete())
}

func assetTask(key string, dependsOn ...string) event.TaskDef {
	def := foldtest.Task(key, dependsOn...)
	def.AssetKey = key
	return def
}
