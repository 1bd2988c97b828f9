package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/staleness"
	"github.com/servo-orchestration/servo/pkg/state"
)

// DefinitionError means that the current release does not have an asset of a backfill, or divides it into other
// partitions.
type DefinitionError struct{ Err error }

// Error implements error.
func (e *DefinitionError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DefinitionError) Unwrap() error { return e.Err }

// ChunkRequest is a request for a chunk of a backfill with what is needed to plan it.
type ChunkRequest struct {
	Row *state.RunRequest
	// Run has the assets of the release on which the chunk is planned, and the limits of the run.
	Run RunRequest
	// Current are the assets of the current release.
	Current []plan.Asset
	// Document reads a document of chunks by its key.
	Document func(ctx context.Context, ref string) (*backfill.Document, error)
}

// StartChunk plans the partitions of a chunk that are left, on a snapshot, and starts the run of the chunk. If none
// of them needs to run, it refuses the request. It returns nil if another process has handled the request.
func (e *Engine) StartChunk(ctx context.Context, snap *snapshot.Snapshot, r ChunkRequest, now time.Time) error {
	key, _, _ := state.ParseChunkRequest(r.Row.RequestID)
	b, chunk := snap.State.Backfills.Get(key.BackfillID), snap.State.Chunks.Get(key)
	if b == nil || chunk == nil || chunk.RequestID != r.Row.RequestID {
		return nil
	}
	p := &chunkPlanner{snap: snap, backfill: b, chunk: chunk, request: r, now: now}
	if err := p.read(ctx); err != nil {
		return err
	}
	planned, err := p.plan(ctx)
	if err != nil {
		return err
	}
	if planned == nil {
		cause := event.Error{Code: fold.NothingToDo, Category: event.CategoryUser, Message: "no partition of the chunk can or needs to run"}
		_, _, err := e.append(ctx, "", &event.RequestRefused{
			RequestID: r.Row.RequestID, Generation: r.Row.Generation, Release: snap.State.Release(), Error: cause,
			Chunk: &event.ChunkPlan{Done: event.FormatPositions(p.done)},
		})
		if err != nil {
			return fmt.Errorf("end chunk %d of backfill %s: %w", key.Chunk, key.BackfillID, err)
		}
		return nil
	}
	triggered := &event.RunTriggered{
		RunID: r.Row.RunID, RequestID: r.Row.RequestID, Trigger: r.Run.Trigger, RootAssets: roots(p.request.Run), MaxParallelism: r.Run.MaxParallelism,
		Release: r.Run.Release, AllowIncomplete: b.AllowIncomplete,
		Chunk: &event.ChunkPlan{Planned: event.FormatPositions(p.positions(planned)), Done: event.FormatPositions(p.done)},
	}
	_, err = e.trigger(ctx, snap, planned, triggered, observed{snap.State.FoldSeq, snap.State.FoldTime})
	return err
}

// chunkPlanner plans one chunk.
type chunkPlanner struct {
	snap     *snapshot.Snapshot
	backfill *state.Backfill
	chunk    *state.Chunk
	request  ChunkRequest
	now      time.Time

	document   *backfill.Document
	evaluation *staleness.Evaluation
	cells      []backfill.Cell
	left       []int // positions of the partitions that are left
	done       []int // positions of the partitions that were left and need no run
}

// read reads the list of the chunk's partitions, and finds the partitions that are done.
func (p *chunkPlanner) read(ctx context.Context) error {
	var err error
	if p.document, err = p.request.Document(ctx, p.backfill.ChunksRef); err != nil {
		return err
	}
	if p.cells, err = p.document.Chunk(p.chunk.Chunk); err != nil {
		return &PlanError{err}
	}
	states, err := state.ParseCells(p.chunk.Cells)
	if err != nil || len(states) != len(p.cells) {
		return &PlanError{fmt.Errorf("chunk %d has %d partitions in its document, and %q in the state", p.chunk.Chunk, len(p.cells), p.chunk.Cells)}
	}
	if err := p.checkDefinitions(); err != nil {
		return err
	}
	if p.evaluation, err = Staleness(ctx, p.snap, p.request.Run.Plan.Assets, p.now); err != nil {
		return err
	}
	p.evaluation.AllowIncomplete(p.backfill.AllowIncomplete)
	for i, is := range states {
		switch is {
		case state.CellDone:
			p.done = append(p.done, i)
		case state.CellLeft:
			made, err := p.made(ctx, p.cells[i])
			switch {
			case err != nil:
				return err
			case made:
				p.done = append(p.done, i)
			default:
				p.left = append(p.left, i)
			}
		}
	}
	return nil
}

// made reports whether a partition is fresh and was materialized after the backfill was created.
func (p *chunkPlanner) made(ctx context.Context, cell backfill.Cell) (bool, error) {
	row, err := p.snap.Partition(ctx, cell.Asset.String(), cell.Partition)
	if err != nil || row == nil || row.VersionSeq <= p.backfill.CreatedSeq {
		return false, err
	}
	statuses, err := p.evaluation.Statuses(cell.Asset, []string{cell.Partition})
	return err == nil && statuses[0] == staleness.Fresh, err
}

// checkDefinitions compares the keys of the chunk with the assets of two releases: the current release, and the
// release on which the chunk is planned.
func (p *chunkPlanner) checkDefinitions() error {
	for _, assets := range [][]plan.Asset{p.request.Current, p.request.Run.Plan.Assets} {
		known := make(map[ids.AssetKey]*plan.Asset, len(assets))
		for i := range assets {
			known[assets[i].Key] = &assets[i]
		}
		for _, cell := range p.cells {
			asset, err := known[cell.Asset], error(nil)
			switch {
			case asset == nil:
				err = fmt.Errorf("the deployed release has no asset %s, which the backfill materializes", cell.Asset)
			case (asset.Partitions == nil) != (cell.Partition == ""):
				err = fmt.Errorf("a deployment has changed the partitions of asset %s", cell.Asset)
			case asset.Partitions != nil:
				if _, wrong := asset.Partitions.Parse(cell.Partition); wrong != nil {
					err = fmt.Errorf("a deployment has changed the partitions of asset %s: %w", cell.Asset, wrong)
				}
			}
			if err != nil {
				return &DefinitionError{fmt.Errorf("%w: deploy the earlier definition and resume the backfill, or cancel it", err)}
			}
		}
	}
	return nil
}

// plan plans the partitions of the chunk that are left and can run. It returns nil if there are none.
func (p *chunkPlanner) plan(ctx context.Context) (*plan.Plan, error) {
	calendar := view.Calendar(p.snap.State, p.now)
	assets := make(map[ids.AssetKey]*plan.Asset, len(p.request.Run.Plan.Assets))
	for i := range p.request.Run.Plan.Assets {
		assets[p.request.Run.Plan.Assets[i].Key] = &p.request.Run.Plan.Assets[i]
	}
	left := map[ids.AssetKey][]string{}
	for _, i := range p.left {
		cell := p.cells[i]
		members, err := calendar.Members(assets[cell.Asset].Partitions)
		if err != nil {
			return nil, &PlanError{err}
		}
		if assets[cell.Asset].Broken == "" && members.Has(cell.Partition) {
			left[cell.Asset] = append(left[cell.Asset], cell.Partition)
		}
	}
	without, err := p.failed(ctx)
	if err != nil {
		return nil, err
	}
	only, err := p.evaluation.Runnable(left, without)
	if err != nil || len(only) == 0 {
		return nil, err
	}
	request := &p.request.Run.Plan
	request.Only, request.Select, request.Matched, request.Partitions = only, nil, nil, nil
	for key := range only {
		request.Select = append(request.Select, key)
	}
	slices.SortFunc(request.Select, plan.CompareKeys)
	request.AllowIncomplete, request.Priority, request.Pool = p.backfill.AllowIncomplete, &p.backfill.Priority, p.backfill.Pool
	return Prepare(ctx, p.snap, *request, p.now)
}

// failed returns the partitions of the backfill that have failed or were skipped, and that nobody has materialized
// since. If such a partition has a visible output, the output is an old one, and no later chunk may read it.
func (p *chunkPlanner) failed(ctx context.Context) (map[ids.AssetKey][]string, error) {
	found := map[ids.AssetKey][]string{}
	if p.backfill.Failed+p.backfill.Skipped == 0 {
		return found, nil
	}
	var err error
	p.snap.State.ChunksOf(p.backfill.BackfillID, func(row *state.Chunk) bool {
		var states state.Cells
		if states, err = state.ParseCells(row.Cells); err != nil || states.Count(state.CellFailed)+states.Count(state.CellSkipped) == 0 {
			return err == nil
		}
		var cells []backfill.Cell
		if cells, err = p.document.Chunk(row.Chunk); err != nil {
			return false
		}
		for i, is := range states[:min(len(states), len(cells))] {
			if is != state.CellFailed && is != state.CellSkipped {
				continue
			}
			var made bool
			if made, err = p.made(ctx, cells[i]); err != nil {
				return false
			}
			if !made {
				found[cells[i].Asset] = append(found[cells[i].Asset], cells[i].Partition)
			}
		}
		return true
	})
	return found, err
}

// positions returns the positions of the partitions that a plan materializes, in ascending order.
func (p *chunkPlanner) positions(planned *plan.Plan) []int {
	type partition struct{ asset, key string }
	made := make(map[partition]bool, len(planned.Tasks))
	for i := range planned.Tasks {
		if t := &planned.Tasks[i]; t.Kind != event.KindGroup {
			for _, key := range t.EachPartition() {
				made[partition{t.AssetKey, key}] = true
			}
		}
	}
	var positions []int
	for i, cell := range p.cells {
		if made[partition{cell.Asset.String(), cell.Partition}] {
			positions = append(positions, i)
		}
	}
	return positions
}
