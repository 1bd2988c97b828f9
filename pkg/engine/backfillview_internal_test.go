package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// TestInFlightCountsTasksOfRunningChunks uses a backfill with one running, one ended and one waiting chunk.
func TestInFlightCountsTasksOfRunningChunks(t *testing.T) {
	s := state.New(foldtest.Domain)
	row := &state.Backfill{BackfillID: "b", State: state.BackfillRunning, Running: 12}
	s.Load(state.Set(&state.Rows{}, []*state.Backfill{row}))
	s.Load(state.Set(&state.Rows{}, []*state.Chunk{
		{BackfillID: "b", Chunk: 1, State: state.ChunkRunning, RunID: "r1"},
		{BackfillID: "b", Chunk: 2, State: state.ChunkEnded, RunID: "r2"},
		{BackfillID: "b", Chunk: 3, State: state.ChunkWaiting},
	}))
	s.Load(state.Set(&state.Rows{}, []*state.Run{
		{RunID: "r1", TasksTotal: 12, TasksSucceeded: 4, TasksFailed: 1, TasksSkipped: 2},
		{RunID: "r2", TasksTotal: 9, TasksSucceeded: 9},
	}))
	require.Equal(t, &InFlight{Chunks: 1, Tasks: 12, TasksEnded: 7}, inFlight(s, row))
	row.Running = 0
	require.Nil(t, inFlight(s, row))
}
