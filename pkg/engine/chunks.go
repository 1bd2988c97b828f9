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

// DefinitionError means that a release lacks an asset of a backfill, or no longer declares partitions of an asset
// that the backfill materializes.
type DefinitionError struct{ Err error }

// Error implements error.
func (e *DefinitionError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DefinitionError) Unwrap() error { return e.Err }

// ChunkRequest is a request for a chunk of a backfill, with the data that is needed to plan the chunk.
type ChunkRequest struct {
	Row *state.RunRequest
	// Run contains the assets of the release on which the chunk is planned, and the limits of the run.
	Run RunRequest
	// Changed returns the result of [FindChangedChunks] for the document, the current release, and the release on which
	// the chunk is planned.
	Changed func(*backfill.Document) ChangedChunks
	// Document reads a document of chunks by its key.
	Document func(ctx context.Context, ref string) (*backfill.Document, error)
}

// StartChunk plans, on a snapshot, those partitions of a chunk that are not done, and starts the run of the chunk. If
// none of them can run or needs to run, StartChunk refuses the request. It returns nil if another process has already
// handled the request.
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
		cause := event.Error{Code: fold.NothingToDo, Category: event.CategoryUser, Message: "no partition of the chunk can run or needs to run"}
		_, _, err := e.append(ctx, "", &event.RequestRefused{
			RequestID: r.Row.RequestID, Generation: r.Row.Generation, Release: snap.State.Release(), Error: cause,
			Chunk: &event.ChunkPlan{Done: event.FormatPositions(p.done)},
		})
		if err != nil {
			return fmt.Errorf("end chunk %d of backfill %s: %w", key.Chunk, key.BackfillID, err)
		}
		return nil
	}
	if err := checkOvertaken(snap, planned, r.Row.RunID); err != nil {
		return err
	}
	triggered := &event.RunTriggered{
		RunID: r.Row.RunID, RequestID: r.Row.RequestID, Trigger: r.Run.Trigger, RootAssets: roots(p.request.Run), MaxParallelism: r.Run.MaxParallelism,
		Release: r.Run.Release, AllowIncomplete: b.AllowIncomplete,
		Chunk: &event.ChunkPlan{Planned: event.FormatPositions(p.positions(planned)), Done: event.FormatPositions(p.done)},
	}
	_, err = e.trigger(ctx, snap, planned, triggered, observedOf(snap))
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
	left       []int // positions of the partitions that need a run
	done       []int // positions of the partitions that are done, and need no run
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
		return &PlanError{fmt.Errorf("chunk %d has %d partitions in its document, but the state lists the states of its partitions as %q", p.chunk.Chunk, len(p.cells), p.chunk.Cells)}
	}
	if err := p.checkDefinitions(); err != nil {
		return err
	}
	if p.evaluation, err = evaluated(ctx, p.snap, &p.request.Run.Plan, p.now); err != nil {
		return err
	}
	p.evaluation.AllowIncomplete(p.backfill.AllowIncomplete)
	for i, is := range states {
		switch is {
		case state.CellDone:
			p.done = append(p.done, i)
		case state.CellLeft:
			made, err := p.madeSince(ctx, p.cells[i])
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

// madeSince reports whether a partition is fresh and was materialized after the backfill was created.
func (p *chunkPlanner) madeSince(ctx context.Context, cell backfill.Cell) (bool, error) {
	row, err := p.snap.Partition(ctx, cell.Asset.String(), cell.Partition)
	if err != nil || row == nil || row.VersionSeq <= p.backfill.CreatedSeq {
		return false, err
	}
	statuses, err := p.evaluation.Statuses(cell.Asset, []string{cell.Partition})
	return err == nil && statuses[0] == staleness.Fresh, err
}

// ChangedChunks maps the number of a chunk to a [DefinitionError], if the chunk has partitions that the assets of a
// release do not have.
type ChangedChunks map[int32]error

// FindChangedChunks compares the partitions of all chunks of a document with the assets of releases.
func FindChangedChunks(d *backfill.Document, releases ...[]plan.Asset) ChangedChunks {
	changed := ChangedChunks{}
	for _, assets := range releases {
		known := make(map[string]*plan.Asset, len(assets))
		for i := range assets {
			known[assets[i].Key.String()] = &assets[i]
		}
		d.Each(func(chunk int32, name string, partitions []string) bool {
			if err := changedDefinition(known[name], name, partitions); err != nil {
				err = &DefinitionError{fmt.Errorf("%w: deploy the earlier definition and resume the backfill, or cancel it", err)}
				if other := changed[chunk]; other == nil || err.Error() < other.Error() { // every process must report the same error
					changed[chunk] = err
				}
			}
			return true
		})
	}
	return changed
}

// changedDefinition returns an error if a release does not have the named asset with the given partitions. The
// parameter asset is nil if the release does not have the asset.
func changedDefinition(asset *plan.Asset, name string, partitions []string) error {
	if asset == nil {
		return fmt.Errorf("the deployed release has no asset %s, which the backfill materializes", name)
	}
	for _, key := range partitions {
		if (asset.Partitions == nil) != (key == "") {
			return fmt.Errorf("a deployment has changed the partitions of asset %s", name)
		}
		if asset.Partitions == nil {
			continue
		}
		if _, err := asset.Partitions.Parse(key); err != nil {
			return fmt.Errorf("a deployment has changed the partitions of asset %s: %w", name, err)
		}
	}
	return nil
}

// checkDefinitions returns an error if any unfinished chunk of the backfill contains partitions that do not exist in
// the current release, or in the release on which the planner's chunk is planned. So the backfill starts no more chunks
// once a deployment has made it impossible to complete them all.
func (p *chunkPlanner) checkDefinitions() error {
	changed := p.request.Changed(p.document)
	if len(changed) == 0 {
		return nil
	}
	if err := changed[p.chunk.Chunk]; err != nil {
		return err
	}
	var found error
	p.snap.State.ChunksOf(p.backfill.BackfillID, func(row *state.Chunk) bool {
		if row.State != state.ChunkEnded {
			found = changed[row.Chunk]
		}
		return found == nil
	})
	return found
}

// plan plans those partitions in p.left that can run. It returns nil if there are none.
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

// failed returns the partitions of the backfill that failed or were skipped, and that no later run has materialized. If
// such a partition has a visible output, the output is outdated, and no later chunk may read it.
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
			if made, err = p.madeSince(ctx, cells[i]); err != nil {
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
