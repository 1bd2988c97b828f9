package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// addBatched adds two assets to a project: one whose tasks materialize several days, and one that reads these days.
func (l *workload) addBatched(p *project, name string) {
	r := random(l.w.cfg.Seed, "batched "+name, 0)
	a := plan.Asset{
		Key:  ids.AssetKey{Namespace: name, Name: fmt.Sprintf("t%03d", len(p.assets)+1)},
		Work: plan.Work{Command: []string{"work"}, Batch: true}, WorkerQueue: "default", Batch: l.w.cfg.Batched,
		Partitions: space.Days(chainDay(0), chainDay(l.w.cfg.Chained-1)), HeartbeatTimeoutSec: 60,
		Retries: plan.Retries{MaxAttempts: int32(1 + r.IntN(3)), InitialDelayMS: 1_000, MaxDelayMS: 10_000, MultiplierPermille: 2000}, //nolint:gosec // small
	}
	if r.IntN(2) == 0 {
		a.Deps = []ids.AssetKey{p.assets[r.IntN(len(p.assets))].Key}
	}
	reader := plan.Asset{
		Key:  ids.AssetKey{Namespace: name, Name: fmt.Sprintf("t%03d", len(p.assets))},
		Work: plan.Work{Command: []string{"work"}}, WorkerQueue: "default", Deps: []ids.AssetKey{a.Key}, Requires: plan.RequiresAvailable,
		HeartbeatTimeoutSec: 60, Retries: plan.Retries{MaxAttempts: 2, InitialDelayMS: 1_000, MaxDelayMS: 10_000, MultiplierPermille: 2000},
	}
	if l.bare(reader.Key.String()) {
		reader.Work.Output = plan.OutputNone
	}
	l.addChecks(&reader)
	p.assets = append(p.assets, reader, a)
}

// directoryOf returns the directory with all files of the execution that made an output: the directory of the output
// or, if the output belongs to a batch, the directory of the batch.
func directoryOf(uri string) string {
	if batch, ok := contract.BatchOf(uri); ok {
		return batch
	}
	return uri
}

// writeBatch writes a file for some of the partitions of a task. The first partition always has a file.
func (w *world) writeBatch(output string, e *worker.Execution, content string) error {
	for i, cell := range e.Partitions {
		folder := filepath.Join(output, "date="+cell["date"])
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return err
		}
		if i > 0 && hashOf(e.RunID+cell.Key())%8 == 0 {
			continue // leave this partition without files
		}
		text := content + " " + cell["date"]
		if err := errors.Join(w.writeRows(folder, text), write(folder, text)); err != nil {
			return err
		}
	}
	return nil
}

// checkBatchOutput checks a task that has materialized a batch, and has succeeded in a new revision. The commit marker
// must name exactly the partitions of the task. Each partition must show this output or the output of a later run, and
// never files of another execution.
func (o *oracle) checkBatchOutput(f *followed, t *state.Task, marker *contract.CommitMarker) {
	partitions := f.state.BatchOf(t.RunID, t.TaskKey)
	if len(partitions) != len(marker.Cells) {
		o.violation("INV-4 effects once", "task %s of run %s has %d partitions, but its marker has %d", t.TaskKey, t.RunID, len(partitions), len(marker.Cells))
		return
	}
	for i, key := range partitions {
		o.w.counts["partitions of batches"]++
		row := f.state.Partitions.Get(state.Key2{A: t.AssetKey, B: key})
		later := row != nil && row.RunID > t.RunID
		ours := row != nil && row.MaterializationID == t.MaterializationID && row.OutputURI == contract.CellURI(marker.URI, key) &&
			row.RowCount == marker.Cells[i].RowCount && row.ByteSize == marker.Cells[i].ByteSize
		if marker.Cells[i].PartitionKey != key || row != nil && !later && !ours {
			o.violation("INV-4 effects once", "partition %s of task %s of run %s shows %+v, but its marker has %+v", key, t.TaskKey, t.RunID, row, marker.Cells[i])
		}
	}
}

// taskOf returns the task of a run that materializes a partition, alone or in a batch. It returns nil if the run has
// no such task.
func taskOf(s *state.State, runID string, cell backfill.Cell, batches map[state.Key2]*state.Task) *state.Task {
	if t := s.Tasks.Get(state.Key2{A: runID, B: cell.Task}); t != nil {
		return t
	}
	return batches[state.Key2{A: cell.Asset.String(), B: cell.Partition}]
}

// batchTasks returns the tasks of a run that materialize several partitions, by asset and partition.
func batchTasks(s *state.State, runID string) map[state.Key2]*state.Task {
	found := map[state.Key2]*state.Task{}
	if s.Batches.Len() == 0 {
		return found
	}
	s.TasksOf(runID, func(t *state.Task) bool {
		for _, partition := range s.BatchOf(runID, t.TaskKey) {
			if at := (state.Key2{A: t.AssetKey, B: partition}); found[at] == nil {
				found[at] = t
			}
		}
		return true
	})
	return found
}
