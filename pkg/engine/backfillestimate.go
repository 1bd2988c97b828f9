package engine

import (
	"cmp"
	"slices"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/estimate"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// EstimateBackfill predicts the duration and the output of a backfill from earlier attempts of its assets. The
// parameter limits contains the maximum numbers of tasks that run at once.
func EstimateBackfill(s *state.State, p *PlannedBackfill, limits estimate.Limits) (estimate.Estimate, error) {
	assets := make(map[string]bool, len(p.Assets))
	for _, key := range p.Assets {
		assets[key.String()] = true
	}
	past, err := Past(s, assets)
	if err != nil {
		return estimate.Estimate{}, err
	}
	return estimate.Of(p.estimated(), past, limits), nil
}

// estimated returns the tasks of all chunks, and nodes that order them. Each chunk begins and ends with a node: the
// edges between these nodes limit how many chunks run at once. A chunk also waits for the node of its stage, which
// waits for all chunks of the previous stage.
func (p *PlannedBackfill) estimated() (tasks []estimate.Task) {
	node := func(after []int) int {
		tasks = append(tasks, estimate.Task{Node: true, After: after})
		return len(tasks) - 1
	}
	parallel := int(p.event.MaxParallel)
	var ends []int   // the end nodes of the chunks of the current stage
	var stages []int // the node before the current stage; empty for the first stage
	for i, chunk := range p.Chunks.Lists {
		if _, begins := slices.BinarySearch(p.event.Stages, int32(i)); begins { //nolint:gosec // at most event.MaxChunks
			stages, ends = []int{node(ends)}, nil
		}
		after := slices.Clone(stages)
		if len(ends) >= parallel {
			after = append(after, ends[len(ends)-parallel])
		}
		first := node(after)
		tasks = p.addChunk(tasks, chunk, first)
		var last []int
		for at := first + 1; at < len(tasks); at++ {
			last = append(last, at)
		}
		ends = append(ends, node(last))
	}
	return tasks
}

// addChunk adds the tasks of a chunk. They begin after the node tasks[first]. A task waits for the tasks that
// materialize the same partition of upstream assets and, if its asset reads itself, for the task of the previous
// partition. Batches are assumed to be full, although the planner makes smaller batches if partitions are not
// consecutive.
func (p *PlannedBackfill) addChunk(tasks []estimate.Task, chunk []backfill.Cell, first int) []estimate.Task {
	newest, of := map[ids.AssetKey]int{}, map[backfill.Cell]int{}
	for _, cell := range chunk {
		a, ok := p.graph.Asset(cell.Asset)
		if !ok {
			continue
		}
		at, has := newest[cell.Asset]
		if has && tasks[at].Partitions < a.Batch {
			tasks[at].Partitions++
			of[cell] = at
			continue
		}
		t := estimate.Task{
			Asset: cell.Asset.String(), Pool: cmp.Or(p.event.Pool, a.Pool), Priority: cmp.Or(p.event.Priority, a.Priority), Partitions: 1, After: []int{first},
		}
		if has && a.ReadsItself() {
			t.After = append(t.After, at)
		}
		for _, dep := range a.Deps {
			if up, has := of[backfill.Cell{Asset: dep, Partition: cell.Partition}]; has && dep != cell.Asset {
				t.After = append(t.After, up)
			}
		}
		newest[cell.Asset], of[cell] = len(tasks), len(tasks)
		tasks = append(tasks, t)
	}
	return tasks
}
