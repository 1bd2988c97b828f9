package fold

import (
	"fmt"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A task may materialize several partitions, which are its batch. Their outputs are folders of one output with one
// commit marker, and one event reports all of them. So either all partitions become visible together or none.

// whole fails a task with a batch if its worker reports a success, but does not report an output for each partition.
// The partitions of a batch become visible together or not at all. A worker that does not support batches reports no
// partitions. A quarantined output is dropped if it lacks the output of a partition.
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

// tasksByPartition returns the task of each partition of a run. The partitions are in the same order as in a chunk:
// sorted by the key that each partition's task would have if it had a task of its own.
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
			partition, _ := ids.ParsePartition(key) // the check of the event has accepted the key
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

// itemsOfTask returns the items of alerts that recover when a task succeeds. For a batch, these are the items of
// every partition. For any other task, they are item and ofCheck.
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
