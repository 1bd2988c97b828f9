package fold

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A backfill is a list of chunks, and each chunk is materialized by one run. When the fold ends the run of a chunk, it
// also requests the next chunk, so a backfill needs no events of its own to advance. The fold never reads the list of a
// chunk's partitions. It knows only their number. The trigger of a run contains positions in the list of the chunk: the
// n-th partition of the run, in the order of task keys, is at the n-th of these positions.

// Codes of backfills, in addition to the codes of tasks and refusals.
const (
	// NotPlanned: the planner omitted the partition, for example because one of its inputs is missing.
	NotPlanned = "NOT_PLANNED"
	// DefinitionChanged: the request of a chunk was refused, because an asset of the backfill is missing in the current
	// release or is partitioned differently there. Such a refusal pauses the backfill.
	DefinitionChanged = "DEFINITION_CHANGED"
	// DocumentDamaged: a request was refused, because the release or the list of partitions that it needs is missing
	// or damaged. The backfill is paused until the document is restored.
	DocumentDamaged = "DOCUMENT_DAMAGED"
)

// checkBackfill rejects a new backfill if too many backfills are still active.
func (f *folder) checkBackfill(p *event.BackfillCreated, c *checked) verdict {
	if f.st.Backfills.Get(p.BackfillID) != nil {
		return verdict{}
	}
	if c.backfills++; f.st.OpenBackfills()+c.backfills > state.MaxBackfills {
		return verdict{outcome: state.Conflict, detail: fmt.Sprintf("%d backfills have not ended: at most %d are allowed: wait for one, or cancel one",
			f.st.OpenBackfills(), state.MaxBackfills)}
	}
	return verdict{}
}

// backfillCreated creates a backfill with its chunks, and requests the first of them.
func (f *folder) backfillCreated(p *event.BackfillCreated) verdict {
	if f.st.Backfills.Get(p.BackfillID) != nil {
		return noChange
	}
	if v := f.repeated(p.CommandKey, p.BackfillID, p.Fingerprint); v.outcome != "" {
		return v
	}
	f.remember(p.CommandKey, p.BackfillID, p.Fingerprint)
	b := &state.Backfill{
		BackfillID: p.BackfillID, CreatedBy: f.ev.Actor, Assets: jsonOf(p.Assets), Selection: jsonOfList(p.Partitions), Only: p.Only,
		ChunksRef: p.ChunksRef, Release: p.Release, Priority: p.Priority, Pool: p.Pool, AllowIncomplete: p.AllowIncomplete,
		Ordered: p.Ordered, Order: orDefault(p.Order, event.OldestFirst), MaxParallel: p.MaxParallel, StopAt: p.StopAt,
		State: state.BackfillRunning, CreatedSeq: f.seq, Chunks: int32(len(p.Sizes)), CreatedAt: f.at(), //nolint:gosec // at most event.MaxChunks
	}
	stage, starts := int32(0), p.Stages
	for i, size := range p.Sizes {
		chunk := int32(i) //nolint:gosec // at most event.MaxChunks
		if len(starts) > 0 && starts[0] == chunk || p.Ordered && i > 0 {
			stage++
			starts = starts[min(1, len(starts)):]
		}
		cells := state.NewCells(size)
		b.Cells += int64(size)
		f.putChunk(b, nil, &state.Chunk{BackfillID: b.BackfillID, Chunk: chunk, Stage: stage, State: state.ChunkWaiting}, nil, cells)
	}
	f.startChunks(b)
	put(f, f.st.Backfills, b)
	return folded
}

// putChunk writes a chunk with the states of its partitions (cells), and updates the totals of its backfill. The caller
// must write the row of the backfill.
func (f *folder) putChunk(b *state.Backfill, old, row *state.Chunk, was, is state.Cells) {
	for sign, cells := range map[int64]state.Cells{-1: was, 1: is} {
		running := cells.Count(state.CellRunning)
		b.Left += sign * (cells.Count(state.CellLeft) + running)
		b.Running += sign * running
		b.Done += sign * cells.Count(state.CellDone)
		b.Failed += sign * cells.Count(state.CellFailed)
		b.Skipped += sign * cells.Count(state.CellSkipped)
		b.Cancelled += sign * cells.Count(state.CellCancelled)
	}
	if old != nil && old.State == state.ChunkEnded {
		b.ChunksEnded--
	}
	if row.State == state.ChunkEnded {
		b.ChunksEnded++
	}
	row.Cells = is.String()
	put(f, f.st.Chunks, row)
}

// cellsOf decodes the states of a chunk's partitions.
func cellsOf(row *state.Chunk) state.Cells {
	cells, err := state.ParseCells(row.Cells)
	if err != nil {
		panic(fmt.Sprintf("fold: chunk %d of backfill %s: %v", row.Chunk, row.BackfillID, err)) // putChunk writes only valid cells
	}
	return cells
}

// startChunks requests the next chunks until MaxParallel chunks are live. Chunks of different stages are never live
// at the same time.
func (f *folder) startChunks(b *state.Backfill) {
	for b.State == state.BackfillRunning {
		live := f.st.LiveChunks(b.BackfillID)
		next := f.st.NextChunk(b.BackfillID)
		if next == nil || len(live) >= int(b.MaxParallel) ||
			slices.ContainsFunc(live, func(r *state.Chunk) bool { return r.Stage != next.Stage }) {
			return
		}
		row := *next
		row.State, row.RequestID, row.RequestedAt = state.ChunkRequested, state.ChunkRequestID(b.BackfillID, row.Chunk, row.Try), f.at()
		put(f, f.st.Chunks, &row)
		f.expireRequests(maxExpired)
		f.pend(&state.RunRequest{RequestID: row.RequestID, Actor: b.CreatedBy, Spec: "{}", CreatedAt: f.at()})
	}
}

// chunkOf returns copies of the backfill and the chunk of a request. It returns nil if the request is not for a
// chunk, or if the backfill is not known.
func (f *folder) chunkOf(requestID string) (*state.Backfill, *state.Chunk) {
	key, _, ok := state.ParseChunkRequest(requestID)
	if !ok {
		return nil, nil
	}
	b, row := f.st.Backfills.Get(key.BackfillID), f.st.Chunks.Get(key)
	if b == nil || row == nil {
		return nil, nil
	}
	backfill, chunk := *b, *row
	return &backfill, &chunk
}

// checkChunk rejects the trigger of a chunk's run if it names positions that the chunk does not have.
func (f *folder) checkChunk(requestID string, p *event.ChunkPlan) verdict {
	b, row := f.chunkOf(requestID)
	switch {
	case b == nil && p != nil:
		return stale("request " + requestID + " belongs to no backfill that is known")
	case b == nil:
		return verdict{}
	case p == nil:
		return stale("request " + requestID + " is for a chunk, but the event does not name the planned partitions")
	}
	most := len(cellsOf(row))
	for _, text := range []string{p.Planned, p.Done} {
		if positions := positionsIn(text); len(positions) > 0 && positions[len(positions)-1] >= most {
			return stale(fmt.Sprintf("chunk %d of backfill %s has only %d partitions", row.Chunk, b.BackfillID, most))
		}
	}
	return verdict{}
}

// positionsIn decodes a list of positions, which were already checked with their event.
func positionsIn(text string) []int {
	positions, err := event.ParsePositions(text)
	if err != nil {
		panic("fold: " + err.Error())
	}
	return positions
}

// assign sets the states of a chunk's remaining partitions according to its plan: planned partitions become running,
// those that need no run become done, and all others become skipped.
func (f *folder) assign(row *state.Chunk, cells state.Cells, p *event.ChunkPlan) {
	assigned := make(map[int]byte, len(cells))
	for _, n := range positionsIn(p.Planned) {
		assigned[n] = state.CellRunning
	}
	for _, n := range positionsIn(p.Done) {
		assigned[n] = state.CellDone
	}
	skipped := map[string]int64{}
	for i, was := range cells {
		is, known := assigned[i]
		switch {
		case was != state.CellLeft && !f.bare: // the state of the partition was decided earlier
		case known:
			cells[i] = is
		case was == state.CellLeft || was == state.CellRunning:
			cells[i] = state.CellSkipped
			skipped[NotPlanned]++
		}
	}
	addCodes(row, skipped)
}

// addCodes adds to a chunk's counts of partitions by error code.
func addCodes(row *state.Chunk, more map[string]int64) {
	if len(more) == 0 {
		return
	}
	codes := map[string]int64{}
	if row.Codes != "" {
		if err := json.Unmarshal([]byte(row.Codes), &codes); err != nil {
			panic("fold: codes of a chunk: " + err.Error()) // only addCodes writes the text
		}
	}
	for code, n := range more {
		codes[code] += n
	}
	row.Codes = jsonOfMap(codes)
}

// startChunk records the run of a chunk.
//
// In a rebuild without the recorded order, the run may be folded before the request of the chunk, or before the
// cancellation of the chunk's earlier run. The newest run decides which partitions are done, because its trigger
// names them.
func (f *folder) startChunk(run *state.Run, p *event.RunTriggered) {
	b, row := f.chunkOf(p.RequestID)
	if b == nil {
		return
	}
	old, cells := *row, cellsOf(row)
	_, try, _ := state.ParseChunkRequest(p.RequestID)
	if f.bare && row.State == state.ChunkRunning && row.RunID > run.RunID {
		return
	}
	is := slices.Clone(cells)
	f.assign(row, is, p.Chunk)
	row.State, row.RequestID, row.RunID, row.StartedAt, row.EndedAt, row.Requeue = state.ChunkRunning, "", run.RunID, f.at(), 0, false
	row.Try = max(row.Try, try)
	f.putChunk(b, &old, row, cells, is)
	switch { // in a bare rebuild, the backfill may end before this run is folded
	case b.State == state.BackfillCancelled:
		b.State, b.EndedAt = state.BackfillCancelling, 0
	case b.State.Ended():
		b.State, b.EndedAt = state.BackfillRunning, 0
	}
	put(f, f.st.Backfills, b)
}

// plannedCells returns how many partitions of a chunk a run materializes. It returns false if the run is not the
// current run of a chunk.
func (f *folder) plannedCells(run *state.Run) (int64, bool) {
	_, row := f.chunkOf(run.RequestID)
	if row == nil || row.RunID != run.RunID {
		return 0, false
	}
	return cellsOf(row).Count(state.CellRunning), true
}

// mismatch compares the number of partitions in a plan with the number in the trigger of the chunk's run. If they
// differ, it returns a text that describes the difference, otherwise "".
func (f *folder) mismatch(run *state.Run, defs []event.TaskDef) string {
	planned, ok := f.plannedCells(run)
	if !ok {
		return ""
	}
	tasks := int64(0)
	for i := range defs {
		if defs[i].Kind != event.KindGroup {
			tasks += max(int64(len(defs[i].Partitions)), 1)
		}
	}
	if tasks == planned {
		return ""
	}
	return fmt.Sprintf("the plan materializes %d partitions, but the trigger of its run names %d partitions of the chunk", tasks, planned)
}

// chunkEnded records the results of a chunk's run, and starts the next chunk. It returns false if the run does not
// belong to a chunk.
func (f *folder) chunkEnded(run *state.Run) bool {
	b, row := f.chunkOf(run.RequestID)
	if b == nil {
		_, _, is := state.ParseChunkRequest(run.RequestID)
		return is
	}
	if row.RunID != run.RunID || row.State != state.ChunkRunning {
		return true // a rebuild has adopted a later run of the chunk
	}
	old, was := *row, cellsOf(row)
	is := slices.Clone(was)
	f.settle(b, row, run, is)
	failed := is.Count(state.CellFailed) - was.Count(state.CellFailed)
	skipped := is.Count(state.CellSkipped) - was.Count(state.CellSkipped)
	if is.Count(state.CellLeft) > 0 { // a pause of the backfill cancelled the run
		f.requeue(row)
	} else {
		row.State, row.EndedAt = state.ChunkEnded, f.at()
	}
	row.Requeue = false
	f.putChunk(b, &old, row, was, is)
	b.Failures += failed
	f.afterChunk(b, row, failed+skipped > 0)
	put(f, f.st.Backfills, b)
	return true
}

// requeue puts a chunk back into the state WAITING. It increments the chunk's try, so that the next request gets a
// new id: each id is used only once.
func (f *folder) requeue(row *state.Chunk) {
	row.State, row.RequestID, row.EndedAt = state.ChunkWaiting, "", 0
	row.Try++
}

// settle sets the new states of a chunk's running partitions after the run of the chunk has ended.
func (f *folder) settle(b *state.Backfill, row *state.Chunk, run *state.Run, cells state.Cells) {
	tasks := f.tasksByPartition(run)
	codes := map[string]int64{}
	for i, at := 0, 0; i < len(cells); i++ {
		if cells[i] != state.CellRunning {
			continue
		}
		if at == len(tasks) { // the run failed before it had tasks
			cells[i] = state.CellFailed
			codes[orDefault(run.ErrorCode, CodePlanUnreadable)]++
			continue
		}
		cell, code := cellAfter(b, row, run, tasks[at])
		cells[i] = cell
		if code != "" {
			codes[code]++
		}
		at++
	}
	addCodes(row, codes)
}

// cellAfter derives the new state of a partition from the state of its task. It also returns the error code if the
// partition failed or was skipped.
func cellAfter(b *state.Backfill, row *state.Chunk, run *state.Run, t *state.Task) (cell byte, code string) {
	switch t.State {
	case state.TaskSucceeded:
		return state.CellDone, ""
	case state.TaskFailed:
		return state.CellFailed, t.ErrorCode
	case state.TaskSkipped:
		if t.ErrorCode == CodeUpstreamFailed || t.ErrorCode == CodeUpstreamDegraded {
			return state.CellSkipped, t.ErrorCode
		}
		return state.CellDone, "" // the task or its upstream had nothing to do
	case state.TaskCancelled, state.TaskPlanned, state.TaskBlocked, state.TaskReady, state.TaskDispatched, state.TaskRunning, state.TaskRetryWait:
	}
	switch {
	case b.State == state.BackfillCancelling:
		return state.CellCancelled, ""
	case row.Requeue:
		return state.CellLeft, ""
	case run.State == state.RunTimedOut:
		return state.CellFailed, CodeRunTimeout
	}
	return state.CellSkipped, CodeCancelled // a person cancelled the run
}

// afterChunk ends, pauses or continues a backfill after one of its chunks has changed.
func (f *folder) afterChunk(b *state.Backfill, row *state.Chunk, incomplete bool) {
	switch {
	case f.endBackfill(b):
	case b.State == state.BackfillRunning && b.Ordered && incomplete:
		f.pauseBackfill(b, "", fmt.Sprintf("chunk %d has not succeeded, and the next one depends on it", row.Chunk))
	case b.State == state.BackfillRunning && b.StopAt > 0 && b.Failures >= b.StopAt:
		f.pauseBackfill(b, "", fmt.Sprintf("%d partitions have failed", b.Failures))
	default:
		f.startChunks(b)
	}
}

// endBackfill ends a backfill if no partition is left to run. It reports whether none is left.
func (f *folder) endBackfill(b *state.Backfill) bool {
	if b.Left > 0 || b.State.Ended() {
		return b.Left == 0
	}
	switch {
	case b.State == state.BackfillCancelling:
		b.State = state.BackfillCancelled
	case b.Failed+b.Skipped > 0:
		b.State = state.BackfillFailed
	default:
		b.State = state.BackfillSucceeded
	}
	b.EndedAt = f.at()
	f.endPause(b)
	return true
}

// pauseBackfill prevents further chunks from starting. It withdraws requests that have not become runs.
func (f *folder) pauseBackfill(b *state.Backfill, by, reason string) {
	b.State, b.PausedAt, b.PausedBy, b.PauseReason = state.BackfillPaused, f.at(), by, reason
	if by == "" && reason != "" {
		f.alert(transition{
			subject: subjectBackfill + b.BackfillID, causes: []string{event.CauseBackfillPaused}, item: itemPaused, once: true, code: "PAUSED", message: reason,
		})
	}
	for _, live := range f.st.LiveChunks(b.BackfillID) {
		if live.State == state.ChunkRequested {
			row := *live
			f.withdraw(&row)
			put(f, f.st.Chunks, &row)
		}
	}
}

// withdraw cancels the request of a chunk, so that the chunk waits again. The caller must write the row of the chunk.
func (f *folder) withdraw(row *state.Chunk) {
	if r := f.st.Requests.Get(row.RequestID); r != nil && !r.State.Ended() {
		f.endRequest(r, state.RequestCancelled, "", "")
	}
	f.requeue(row)
}

// refuseChunk handles a chunk that cannot be planned.
func (f *folder) refuseChunk(requestID string, p *event.RequestRefused) {
	b, row := f.chunkOf(requestID)
	if b == nil || row.RequestID != requestID {
		return
	}
	old, was := *row, cellsOf(row)
	if p.Error.Code == DefinitionChanged || p.Error.Code == DocumentDamaged {
		f.requeue(row)
		f.putChunk(b, &old, row, was, was)
		if b.State == state.BackfillRunning {
			f.pauseBackfill(b, "", p.Error.Message)
		}
		put(f, f.st.Backfills, b)
		return
	}
	is := slices.Clone(was)
	f.assign(row, is, orDefault(p.Chunk, &event.ChunkPlan{}))
	if p.Error.Code != NothingToDo {
		row.Codes = old.Codes
		codes := map[string]int64{}
		for i, cell := range is {
			if was[i] == state.CellLeft && cell == state.CellSkipped {
				is[i] = state.CellFailed
				codes[p.Error.Code]++
			}
		}
		addCodes(row, codes)
	}
	row.State, row.RequestID, row.EndedAt = state.ChunkEnded, "", f.at()
	f.putChunk(b, &old, row, was, is)
	failed := is.Count(state.CellFailed) - was.Count(state.CellFailed)
	b.Failures += failed
	f.afterChunk(b, row, is.Count(state.CellDone) < was.Count(state.CellDone)+was.Count(state.CellLeft))
	put(f, f.st.Backfills, b)
}

// commandBackfill applies a command about a backfill. The command with the greatest id wins.
func (f *folder) commandBackfill(p *event.AutomationCommand) verdict {
	old := f.st.Backfills.Get(p.Name)
	switch {
	case old == nil || old.Closed(f.st.FoldTime):
		return stale("the backfill does not exist, or ended long ago")
	case p.CommandID == old.CommandID:
		return noChange
	case p.CommandID < old.CommandID:
		return stale("a later command has changed the backfill")
	}
	b := *old
	if detail := f.applyToBackfill(&b, p); detail != "" {
		return stale(detail)
	}
	b.CommandID = p.CommandID
	put(f, f.st.Backfills, &b)
	return folded
}

// applyToBackfill applies a command to a backfill. If the command has no effect, it returns the reason.
func (f *folder) applyToBackfill(b *state.Backfill, p *event.AutomationCommand) string {
	is := "the backfill is " + string(b.State)
	switch {
	case p.Verb == event.VerbRetryFailed:
		return f.retryBackfill(b)
	case b.State.Ended() || b.State == state.BackfillCancelling:
		return is
	case p.Verb == event.VerbPause:
		if b.State == state.BackfillPaused && !p.Now {
			return is
		}
		f.pauseBackfill(b, f.ev.Actor, p.Reason)
		if p.Now {
			f.stopChunks(b, "the backfill was paused")
		}
	case p.Verb == event.VerbResume:
		return f.resumeBackfill(b)
	case p.Verb == event.VerbCancel:
		f.cancelBackfill(b)
	case p.Verb == event.VerbSet:
		if b.Ordered && p.MaxParallel > 1 {
			return "the backfill is ordered: it runs one chunk at a time"
		}
		b.MaxParallel = p.MaxParallel
		f.startChunks(b)
	}
	return ""
}

// resumeBackfill starts chunks again, and sets the count of failures to 0.
func (f *folder) resumeBackfill(b *state.Backfill) string {
	switch {
	case b.State != state.BackfillPaused:
		return "the backfill is " + string(b.State)
	case b.Ordered && b.Failed+b.Skipped > 0:
		return fmt.Sprintf("%d partitions of an ordered backfill have not succeeded, and the next chunk depends on them: retry them", b.Failed+b.Skipped)
	}
	f.continueBackfill(b)
	return ""
}

func (f *folder) continueBackfill(b *state.Backfill) {
	b.State, b.Failures = state.BackfillRunning, 0
	f.endPause(b)
	f.startChunks(b)
}

// endPause clears the fields of a pause that has ended, and reports the recovery.
func (f *folder) endPause(b *state.Backfill) {
	b.PausedAt, b.PausedBy, b.PauseReason = 0, "", ""
	f.recovered(subjectBackfill+b.BackfillID, "", []string{event.CauseBackfillPaused}, itemPaused)
}

// stopChunks cancels the runs of a backfill's chunks. When such a run ends, its unfinished partitions get the state
// [state.CellLeft], or [state.CellCancelled] if the backfill is being cancelled.
func (f *folder) stopChunks(b *state.Backfill, reason string) {
	for _, live := range f.st.LiveChunks(b.BackfillID) {
		if live.State != state.ChunkRunning {
			continue
		}
		row := *live
		row.Requeue = true
		put(f, f.st.Chunks, &row)
		if run := f.peekRun(row.RunID); run != nil && !run.State.Terminal() && run.State != state.RunCancelling {
			f.cancelRun(f.run(row.RunID), reason, false)
		}
	}
}

// cancelBackfill cancels the remaining partitions and the runs of the chunks. The backfill ends when the last of
// these runs ends.
func (f *folder) cancelBackfill(b *state.Backfill) {
	f.pauseBackfill(b, "", "")
	b.State = state.BackfillCancelling
	f.endPause(b)
	for next := f.st.NextChunk(b.BackfillID); next != nil; next = f.st.NextChunk(b.BackfillID) {
		row, was := *next, cellsOf(next)
		is := slices.Clone(was)
		for i := range is {
			if is[i] == state.CellLeft {
				is[i] = state.CellCancelled
			}
		}
		row.State, row.EndedAt = state.ChunkEnded, f.at()
		f.putChunk(b, next, &row, was, is)
	}
	f.stopChunks(b, "the backfill was cancelled")
	f.endBackfill(b)
}

// retryBackfill resets failed and skipped partitions to the state [state.CellLeft], and continues the backfill. It
// does not change the partitions of chunks that are still running.
func (f *folder) retryBackfill(b *state.Backfill) string {
	if b.State == state.BackfillCancelling || b.State == state.BackfillCancelled {
		return "the backfill is " + string(b.State)
	}
	var chunks []*state.Chunk
	f.st.ChunksOf(b.BackfillID, func(row *state.Chunk) bool {
		if row.State == state.ChunkEnded || row.State == state.ChunkWaiting {
			chunks = append(chunks, row)
		}
		return true
	})
	retried := false
	for _, old := range chunks {
		row, was := *old, cellsOf(old)
		is := slices.Clone(was)
		for i := range is {
			if is[i] == state.CellFailed || is[i] == state.CellSkipped {
				is[i], retried = state.CellLeft, true
			}
		}
		if string(is) == string(was) {
			continue
		}
		if row.Codes = ""; row.State == state.ChunkEnded {
			f.requeue(&row)
		}
		f.putChunk(b, old, &row, was, is)
	}
	if !retried {
		return "no partition of an ended chunk has failed or was skipped"
	}
	b.Round++
	b.EndedAt = 0
	f.continueBackfill(b)
	return ""
}
