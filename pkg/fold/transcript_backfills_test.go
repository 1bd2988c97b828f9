package fold_test

import (
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// backfillEvent reads "NAME create OPTION…" or "NAME VERB".
func (s *story) backfillEvent(words []string) event.Payload {
	if words[1] == "create" {
		p := &event.BackfillCreated{BackfillID: s.ID(), Assets: []string{"test/p"}, ChunksRef: "backfills/doc", MaxParallel: 1}
		for option, value := range options(words[2:]) {
			switch option {
			case "chunks":
				for size := range strings.SplitSeq(value, ",") {
					p.Sizes = append(p.Sizes, number(size))
				}
			case "stage":
				p.Stages = append(p.Stages, number(value))
			case "parallel":
				p.MaxParallel = number(value)
			case "stop-at":
				p.StopAt = int64(number(value))
			case "ordered":
				p.Ordered = true
			default:
				panic("no such option of a backfill: " + option)
			}
		}
		s.runs[words[0]], s.names[p.BackfillID] = p.BackfillID, words[0]
		return p
	}
	p := &event.AutomationCommand{CommandID: s.ID(), Target: event.TargetBackfill, Name: s.runs[words[0]], Verb: words[1]}
	for option, value := range options(words[2:]) {
		switch option {
		case "now":
			p.Now = true
		case "parallel":
			p.MaxParallel = number(value)
		}
	}
	return p
}

// chunkRun reads "RUN OPTION…". It starts the run of the oldest pending request for a chunk. The run materializes the
// remaining partitions of the chunk, except those that the option done lists. If the option planned is set, the run
// materializes only the partitions that this option lists.
func (s *story) chunkRun(words []string) []event.Payload {
	r := s.firstPending()
	s.runs[words[0]], s.names[r.RunID] = r.RunID, words[0]
	var done, only string
	for option, value := range options(words[1:]) {
		switch option {
		case "done":
			done = value
		case "planned":
			only = value
		}
	}
	trigger, tasks := chunkTrigger(s.World, r, done, only)
	return s.Triggered(trigger, tasks...)
}

// nothingToDo answers the oldest waiting request: it needs no run. The option done=POSITIONS lists partitions of a
// backfill that are finished.
func (s *story) nothingToDo(words []string) event.Payload {
	r := s.firstPending()
	return &event.RequestRefused{
		RequestID: r.RequestID, Generation: r.Generation, Release: s.State.Release(),
		Error: event.Error{Code: fold.NothingToDo, Message: "nothing to run"}, Chunk: &event.ChunkPlan{Done: options(words)["done"]},
	}
}

// chunkTrigger returns the trigger of a chunk's run, and its tasks.
func chunkTrigger(w *foldtest.World, r *state.RunRequest, done, only string) (*event.RunTriggered, []event.TaskDef) {
	return triggerOf(r, chunkPlan(w, r.RequestID, done, only))
}

func triggerOf(r *state.RunRequest, p *event.ChunkPlan) (*event.RunTriggered, []event.TaskDef) {
	key, _, _ := state.ParseChunkRequest(r.RequestID)
	planned, _ := event.ParsePositions(p.Planned)
	tasks := make([]event.TaskDef, len(planned))
	for i, n := range planned {
		tasks[i] = foldtest.Task(fmt.Sprintf("p%d.%03d", key.Chunk, n))
	}
	return &event.RunTriggered{
		RunID: r.RunID, RequestID: r.RequestID, Trigger: event.Trigger{Type: "backfill", BackfillID: key.BackfillID}, Chunk: p,
	}, tasks
}

// chunkPlan plans the remaining partitions of a chunk.
func chunkPlan(w *foldtest.World, request, done, only string) *event.ChunkPlan {
	key, _, _ := state.ParseChunkRequest(request)
	cells, _ := state.ParseCells(w.State.Chunks.Get(key).Cells)
	made, _ := event.ParsePositions(done)
	is := map[int]bool{}
	for _, n := range made {
		is[n] = true
	}
	var planned []int
	for i, cell := range cells {
		if cell == state.CellLeft && !is[i] {
			planned = append(planned, i)
		}
	}
	p := &event.ChunkPlan{Planned: event.FormatPositions(planned), Done: done}
	if only != "" {
		p.Planned = only
	}
	return p
}

func (s *story) backfillRow(r *state.Backfill) (string, cells) {
	n := func(n int64) string { return count(int32(n)) }
	return "backfill " + s.names[r.BackfillID], cells{
		{"state", string(r.State)},
		{"left", n(r.Left)},
		{"running", n(r.Running)},
		{"done", n(r.Done)},
		{"failed", n(r.Failed)},
		{"skipped", n(r.Skipped)},
		{"cancelled", n(r.Cancelled)},
		{"of", n(r.Cells)},
		{"retries", count(r.Round)},
		{"because", r.PauseReason},
	}
}

func (s *story) chunkRow(r *state.Chunk) (string, cells) {
	stage := count(r.Stage)
	return fmt.Sprintf("chunk %s:%d", s.names[r.BackfillID], r.Chunk), cells{
		{"state", string(r.State)}, {"partitions", r.Cells}, {"stage", stage}, {"try", count(r.Try)}, {"run", s.names[r.RunID]}, {"codes", r.Codes},
	}
}
