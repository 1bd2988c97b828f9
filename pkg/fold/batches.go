package fold

import (
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A task may materialize several partitions: a batch. Each partition has a folder in the output of the task, but the
// output has only one commit marker, and one event reports it. So either all partitions become visible together, or
// none.

// whole fails a task with a batch if its worker reports a success without an output for each partition. A worker that
// does not support batches sends such a report. The partitions of a batch must become visible together or not at all.
// An output in quarantine is dropped if the output of a partition is missing.
func whole(t *state.Task, batch []string, p *event.TaskFinished, c *closing) {
	if batch == nil || t.Output == event.OutputNone {
		return
	}
	if p.Output != nil {
		c.cells = p.Output.Cells
	}
	if p.Outcome == event.Succeeded && len(c.cells) != len(batch) {
		c.outcome, c.code, c.category, c.retryable = event.Failed, CodeInvalidOutput, event.CategoryConfiguration, false
		c.message = fmt.Sprintf("the worker reported the outputs of %d partitions, but the task has %d: use a worker of this version", len(c.cells), len(batch))
	}
}

// tasksByPartition returns the task of each partition of a run. The order is that of the partitions of a chunk: by task
// key. A partition of a batch is sorted by the key that a task of this partition alone would have.
func (f *folder) tasksByPartition(run *state.Run) []*state.Task {
	type named struct {
		key  string
		task *state.Task
	}
	var all []named
	batches := false
	f.st.TasksOf(run.RunID, func(t *state.Task) bool {
		if t.Kind == event.KindGroup {
			return true
		}
		keys := f.st.BatchOf(t.RunID, t.TaskKey)
		if keys == nil {
			all = append(all, named{t.TaskKey, t})
		}
		asset, _ := ids.ParseAssetKey(t.AssetKey)
		for _, key := range keys {
			batches = true
			partition, _ := ids.ParsePartition(key) // the key was valid when the event was checked
			all = append(all, named{ids.TaskKey(asset, partition), t})
		}
		return true
	})
	if batches {
		slices.SortStableFunc(all, func(a, b named) int { return strings.Compare(a.key, b.key) })
	}
	tasks := make([]*state.Task, len(all))
	for i := range all {
		tasks[i] = all[i].task
	}
	return tasks
}

// itemsOfTask returns the items that recover in alerts when a task succeeds. For a batch, these are the items of every
// partition. For a task without a batch, these are the given items: the partition, and its checks.
func (f *folder) itemsOfTask(t *state.Task, item, ofCheck string) []string {
	batch := f.st.BatchOf(t.RunID, t.TaskKey)
	if batch == nil {
		return []string{item, ofCheck}
	}
	items := make([]string, 0, 2*len(batch))
	for _, key := range batch {
		items = append(items, key, "check "+key)
	}
	return items
}
