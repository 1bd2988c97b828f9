package foldtest

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// CheckBackfills returns an error if the totals of a backfill differ from the sums over its chunks, or if its chunks
// break a rule (I-30).
func CheckBackfills(s *state.State) error {
	if err := CheckTotals(s); err != nil {
		return err
	}
	for b := range s.Backfills.All {
		if err := checkChunks(s, b); err != nil {
			return fmt.Errorf("backfill %s: %w", b.BackfillID, err)
		}
	}
	return nil
}

// CheckTotals returns an error if the totals of a backfill differ from the sums over its chunks. The totals
// are correct in every state, including the state of a rebuild without the recorded order.
func CheckTotals(s *state.State) error {
	for b := range s.Backfills.All {
		if err := checkTotals(s, b); err != nil {
			return fmt.Errorf("backfill %s: %w", b.BackfillID, err)
		}
	}
	return nil
}

func checkTotals(s *state.State, b *state.Backfill) error {
	n := map[byte]int64{}
	chunks, ended := int32(0), int32(0)
	for row := range s.Chunks.All {
		if row.BackfillID != b.BackfillID {
			continue
		}
		chunks++
		cells, err := state.ParseCells(row.Cells)
		if err != nil || cells.String() != row.Cells {
			return fmt.Errorf("chunk %d has the partitions %q: %w", row.Chunk, row.Cells, err)
		}
		for _, cell := range cells {
			n[cell]++
		}
		if row.State == state.ChunkEnded {
			ended++
		}
	}
	have := []int64{int64(b.ChunksEnded), b.Left, b.Running, b.Done, b.Failed, b.Skipped, b.Cancelled}
	want := []int64{
		int64(ended), n[state.CellLeft] + n[state.CellRunning], n[state.CellRunning], n[state.CellDone],
		n[state.CellFailed], n[state.CellSkipped], n[state.CellCancelled],
	}
	total := b.Left + b.Done + b.Failed + b.Skipped + b.Cancelled
	switch {
	case fmt.Sprint(have) != fmt.Sprint(want):
		return fmt.Errorf("it has the totals %v, want %v from its chunks", have, want)
	case chunks != b.Chunks || total != b.Cells:
		return fmt.Errorf("it has %d of %d chunks, and %d of %d partitions", chunks, b.Chunks, total, b.Cells)
	case (b.Left == 0) != b.State.Ended():
		return fmt.Errorf("it is %s with %d partitions left", b.State, b.Left)
	case b.State.Ended() != (b.EndedAt != 0):
		return fmt.Errorf("it is %s, ended at %q", b.State, b.EndedAt)
	}
	return nil
}

// checkChunks compares the chunks of a backfill with their requests and runs.
func checkChunks(s *state.State, b *state.Backfill) error {
	waiting, live := int32(-1), []*state.Chunk{}
	for row := range s.Chunks.All {
		if row.BackfillID != b.BackfillID {
			continue
		}
		if row.State == state.ChunkWaiting && waiting < 0 {
			waiting = row.Stage
		}
		if row.Live() {
			live = append(live, row)
		}
		cells, err := state.ParseCells(row.Cells)
		if err == nil {
			err = checkChunk(s, row, cells)
		}
		if err != nil {
			return fmt.Errorf("chunk %d is %s, and its partitions have the states %s: %w", row.Chunk, row.State, row.Cells, err)
		}
	}
	return checkLive(b, live, waiting)
}

// checkLive checks the live chunks of a backfill. They must belong to one stage. If one of them is in the state
// REQUESTED, the backfill must be RUNNING. A RUNNING backfill must have at least one live chunk, and at least
// MaxParallel live chunks while further chunks of the same stage wait. The parameter waiting is the stage of the
// backfill's first waiting chunk, or -1.
func checkLive(b *state.Backfill, live []*state.Chunk, waiting int32) error {
	requested, stages := 0, map[int32]bool{}
	for _, row := range live {
		stages[row.Stage] = true
		if row.State == state.ChunkRequested {
			requested++
		}
	}
	switch {
	case requested > 0 && b.State != state.BackfillRunning:
		return fmt.Errorf("it is %s, but %d chunks are requested", b.State, requested)
	case len(stages) > 1:
		return fmt.Errorf("chunks of %d stages run at once", len(stages))
	case b.State == state.BackfillRunning && len(live) == 0:
		return fmt.Errorf("it is %s, but no chunk is live", b.State)
	case b.State == state.BackfillRunning && waiting >= 0 && stages[waiting] && len(live) < int(b.MaxParallel):
		return fmt.Errorf("it runs %d of at most %d chunks at once, although others wait", len(live), b.MaxParallel)
	}
	return nil
}

// checkChunk compares a chunk with its request, its run and the tasks of the run.
func checkChunk(s *state.State, row *state.Chunk, cells state.Cells) error {
	left, running := cells.Count(state.CellLeft), cells.Count(state.CellRunning)
	switch row.State {
	case state.ChunkEnded:
		if left+running > 0 {
			return fmt.Errorf("%d partitions are left", left+running)
		}
	case state.ChunkWaiting:
		if left == 0 || running > 0 {
			return fmt.Errorf("%d partitions are left and %d are running: want at least 1 left and none running", left, running)
		}
	case state.ChunkRequested:
		r := s.Requests.Get(row.RequestID)
		if left == 0 || running > 0 || r == nil || r.State.Ended() {
			return fmt.Errorf("%d partitions are left, %d are running, and the request is %+v: want at least 1 left, none running, and an open request", left, running, r)
		}
	case state.ChunkRunning:
		run := s.Runs.Get(row.RunID)
		if left > 0 || run == nil || run.State.Terminal() {
			return fmt.Errorf("%d partitions are left, and the run is %+v: want none left, and a live run", left, run)
		}
		tasks := int64(0)
		s.TasksOf(run.RunID, func(t *state.Task) bool {
			if t.Kind != event.KindGroup {
				tasks += int64(len(s.PartitionsOf(t)))
			}
			return true
		})
		if run.TasksTotal > 0 && tasks != running {
			return fmt.Errorf("%d partitions run, but the tasks of the run have %d partitions", running, tasks)
		}
	}
	return nil
}
