package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/backfill"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
)

// drawBackfills draws backfills in a quarter of the worlds.
func (c *World) drawBackfills() {
	r := random(c.Seed, "backfills", 0)
	if r.IntN(4) > 0 || c.Overtaken > 0 {
		return
	}
	c.Backfills = 1 + r.IntN(3)
	c.Tasks = min(c.Tasks, 16)
}

// drawBackfills inserts backfills, and commands about them, into scripts.
func (l *workload) drawBackfills() {
	if l.w.cfg.Backfills == 0 {
		return
	}
	r := random(l.w.cfg.Seed, "commands of backfills", 0)
	insert := func(a ask, first bool) {
		client := fmt.Sprintf("client%d", r.IntN(l.w.cfg.Clients))
		at := r.IntN(len(l.scripts[client]) + 1)
		if first {
			at = 0
		}
		l.scripts[client] = slices.Insert(l.scripts[client], at, a)
	}
	after := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most) + 1)) }
	for range l.w.cfg.Backfills {
		insert(ask{after: after(l.w.cfg.horizon() / 10), verb: askBackfill, project: l.projects[r.IntN(len(l.projects))], only: -1}, r.IntN(2) == 0)
		for range 3 + r.IntN(5) {
			insert(ask{after: after(2 * time.Minute), verb: askCommandBackfill, project: l.projects[r.IntN(len(l.projects))], only: -1}, false)
		}
	}
	if l.w.cfg.Schedules == 0 { // in worlds with schedules, releases are deployed first
		for _, p := range l.projects {
			insert(ask{after: after(20 * time.Second), verb: askDeploy, project: p}, true)
		}
	}
}

// createBackfill creates a backfill of all assets of a project.
func (c *client) createBackfill(ctx context.Context, e *clientEngine, a ask) error {
	w := c.p.machine.w
	current, err := e.CurrentDeployment(ctx)
	if err != nil || current.Release == "" {
		return err
	}
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	r := engine.BackfillRequest{
		Plan:  plan.Request{Assets: a.project.coded(w.load.version(e.domain, current.Release)), All: true, AllowIncomplete: c.rng.IntN(2) == 0},
		Chunk: w.cfg.chunk(c.rng), MaxParallel: int32(1+c.rng.IntN(3)) * w.cfg.moreChunks(), Priority: engine.BackfillPriority, //nolint:gosec // small
		StopAfter: []string{"never", "never", "1", "2", "50%"}[c.rng.IntN(5)],
	}
	switch c.rng.IntN(4) {
	case 0:
		r.Ordered, r.MaxParallel = true, 1
	case 1:
		r.Newest = true
	}
	if c.rng.IntN(3) == 0 {
		r.Need = []engine.Need{engine.NeedStale, engine.NeedMissing, engine.NeedFailed}[c.rng.IntN(3)]
	}
	if c.rng.IntN(2) == 0 {
		r.Release = current.Release
	}
	if w.cfg.Large > 0 && r.Need == "" { // all projects of large worlds have partitioned assets
		r.Plan.Partitions = []plan.Selection{{Everything: true}}
	}
	planned, err := engine.PlanBackfill(ctx, snap, r, c.p.now())
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, errUnavailable) || errors.Is(err, errLost) {
			return err
		}
		w.fault("backfill of nothing")
		return nil
	}
	w.fault("backfill created")
	if len(planned.Chunks.Stages) > 0 {
		w.fault("backfill with stages")
	}
	_, err = e.CreateBackfill(ctx, planned)
	return err
}

// conditions returns random conditions for a command: often none, sometimes an idempotency key that other commands
// also use, and sometimes an edit tag that matches no object.
func (c *client) conditions(p *event.AutomationCommand) (to engine.Conditions) {
	switch c.rng.IntN(8) {
	case 0:
		c.p.machine.w.fault("command with a key")
		to.Key, to.Fingerprint = fmt.Sprintf("idem:%d", c.rng.IntN(4)), p.Name+p.Verb
	case 1:
		c.p.machine.w.fault("command with another tag")
		to.Tag = "0000000000000000"
	}
	return to
}

// commandBackfill issues a random command about a random backfill.
func (c *client) commandBackfill(ctx context.Context, e *clientEngine) error {
	w := c.p.machine.w
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	rows := snap.State.Backfills.Rows()
	if len(rows) == 0 {
		return nil
	}
	p := &event.AutomationCommand{Name: rows[c.rng.IntN(len(rows))].BackfillID}
	switch n := c.rng.IntN(20); {
	case n < 6:
		p.Verb, p.Now = event.VerbPause, c.rng.IntN(2) == 0
	case n < 11:
		p.Verb = event.VerbResume
	case n < 16:
		p.Verb = event.VerbRetryFailed
	case n < 18:
		p.Verb, p.MaxParallel = event.VerbSet, int32(1+c.rng.IntN(4)) //nolint:gosec // small
	default:
		p.Verb = event.VerbCancel
	}
	_, err = e.Under(c.conditions(p)).CommandBackfill(ctx, p)
	switch {
	case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrOutdated):
		w.fault("backfill command under conditions")
		return nil
	case errors.Is(err, engine.ErrNoEffect), errors.Is(err, engine.ErrNotFound):
		w.fault("backfill command without effect")
		return nil
	case err == nil:
		w.fault("backfill " + p.Verb)
	}
	return err
}

// cancelledWithBackfill are the reasons for which a command about a backfill cancels the run of a chunk. A rebuild
// from the bare ledger folds the trigger of such a run after the command, because the trigger waits for a report that
// names the plan. So the rebuilt state may lack the run if no worker had begun one of its tasks.
var cancelledWithBackfill = []string{"the backfill was paused", "the backfill was cancelled"}

// addsUp is the name of the invariant about backfills.
const addsUp = "I-30 backfills add up"

// checkBackfills checks the changes of backfills in a revision.
func (o *oracle) checkBackfills(f *followed, before, after *state.State, rebuilt bool) {
	if after.Backfills.Len() == 0 {
		return
	}
	for is := range after.Backfills.All {
		was := before.Backfills.Get(is.BackfillID)
		total := is.Left + is.Done + is.Failed + is.Skipped + is.Cancelled
		switch {
		case total != is.Cells || is.Running > is.Left:
			o.violation(addsUp, "backfill %s of %s has %d partitions, but its counts of left, done, failed, skipped and cancelled partitions add up to %d; %d of %d left partitions are running",
				is.BackfillID, f.domain, is.Cells, total, is.Running, is.Left)
		case (is.Left == 0) != is.State.Ended():
			o.violation(addsUp, "backfill %s of %s is %s, but %d partitions are left", is.BackfillID, f.domain, is.State, is.Left)
		case was != nil && !rebuilt && is.Round == was.Round && (is.Failed < was.Failed || is.Done < was.Done):
			o.violation(addsUp, "backfill %s of %s had %d done and %d failed partitions, but now has %d and %d", is.BackfillID, f.domain, was.Done, was.Failed, is.Done, is.Failed)
		}
		if was == nil || was.State != is.State {
			o.w.fault("backfill is " + string(is.State))
		}
	}
	o.checkChunkRuns(f, after)
	if rebuilt || f.unordered {
		return
	}
	for is := range changed(f, after.Chunks) {
		if was := before.Chunks.Get(is.Key()); was != nil && was != is && was.State == state.ChunkRunning && is.State != state.ChunkRunning && is.RunID == was.RunID {
			o.checkEndedChunk(f, after, was, is)
		}
	}
}

// checkChunkRuns checks that a chunk has at most one live run, and that each request of a chunk has at most one run.
func (o *oracle) checkChunkRuns(f *followed, s *state.State) {
	live, ofRequest := map[state.ChunkKey]string{}, map[string]string{}
	for run := range s.Runs.All {
		key, _, ok := state.ParseChunkRequest(run.RequestID)
		if !ok || f.unordered { // a rebuild from the bare ledger may fold the end of a run after the trigger of the next run
			continue
		}
		if other := ofRequest[run.RequestID]; other != "" {
			o.violation(addsUp, "runs %s and %s both belong to request %s of %s", other, run.RunID, run.RequestID, f.domain)
		}
		ofRequest[run.RequestID] = run.RunID
		if run.State.Terminal() {
			continue
		}
		if other := live[key]; other != "" {
			o.violation(addsUp, "runs %s and %s of chunk %d of backfill %s of %s are live at once", other, run.RunID, key.Chunk, key.BackfillID, f.domain)
		}
		live[key] = run.RunID
	}
}

// checkEndedChunk checks a chunk whose run has ended: the state of each partition must match the state of its task. The
// document of the backfill names the partitions of the chunk.
func (o *oracle) checkEndedChunk(f *followed, s *state.State, was, is *state.Chunk) {
	b, run := s.Backfills.Get(is.BackfillID), s.Runs.Get(is.RunID)
	doc, err := o.chunksOf(b)
	var cells []backfill.Cell
	if err == nil {
		cells, err = doc.Chunk(is.Chunk)
	}
	before, err2 := state.ParseCells(was.Cells)
	after, err3 := state.ParseCells(is.Cells)
	if err = errors.Join(err, err2, err3); err != nil || len(cells) != len(before) || len(cells) != len(after) {
		o.violation(addsUp, "chunk %d of backfill %s of %s has %d partitions in its document, but its row says %s: %v", is.Chunk, b.BackfillID, f.domain, len(cells), is.Cells, err)
		return
	}
	batches := batchTasks(s, is.RunID)
	for i, cell := range cells {
		if before[i] != state.CellRunning {
			continue
		}
		t := taskOf(s, is.RunID, cell, batches)
		want := "f" // a run whose plan cannot be read has no tasks: all its partitions fail
		if t != nil {
			want = map[state.TaskState]string{
				state.TaskSucceeded: "d", state.TaskFailed: "f", state.TaskSkipped: "ds", state.TaskCancelled: "lcsf",
			}[t.State]
		}
		ok := false
		for _, letter := range []byte(want) {
			// A chunk may be requested and planned again in the same revision.
			ok = ok || after[i] == letter || letter == 'l' && (after[i] == state.CellRunning || is.State != state.ChunkEnded) || is.Try > was.Try && after[i] != state.CellCancelled
		}
		if !ok {
			o.violation(addsUp, "backfill %s of %s, chunk %d: partition %s has the state %q after run %s, but its task in this run is %v", b.BackfillID, f.domain, is.Chunk, cell.Task, after[i:i+1], is.RunID, taskStateOf(t))
		}
		o.w.fault("partition of a backfill " + string(after[i:i+1]))
	}
	_ = run
}

// chunksOf returns the document of a backfill. It caches the documents, because they never change.
func (o *oracle) chunksOf(b *state.Backfill) (*backfill.Document, error) {
	if known := o.chunks[b.ChunksRef]; known != nil {
		return known, nil
	}
	doc, err := engine.ReadChunks(context.Background(), o.w.blobs, b.ChunksRef)
	if err == nil {
		o.chunks[b.ChunksRef] = doc
	}
	return doc, err
}

func taskStateOf(t *state.Task) string {
	if t == nil {
		return "unknown"
	}
	return string(t.State) + " " + t.ErrorCode
}

// leftBackfills returns the backfills that have work left and are not paused. A state at rest has none.
func leftBackfills(s *state.State) (left []string) {
	for b := range s.Backfills.All {
		if !b.State.Ended() && b.State != state.BackfillPaused {
			left = append(left, fmt.Sprintf("backfill %s is %s: %d of %d partitions are left", b.BackfillID, b.State, b.Left, b.Cells))
		}
	}
	return left
}

// checkChunkRequests checks, at the end, that the runs of a backfill come from at most one request for each try of a
// chunk. It skips a domain whose state was rebuilt after the folding order was lost.
func (o *oracle) checkChunkRequests(f *followed) {
	if f.unordered || f.state.Backfills.Len() == 0 {
		return
	}
	requests, ids := map[string]int{}, map[string]bool{}
	for run := range f.state.Runs.All {
		ids[run.RequestID] = true
	}
	for id := range ids {
		if key, _, ok := state.ParseChunkRequest(id); ok {
			requests[key.BackfillID]++
		}
	}
	for b := range f.state.Backfills.All {
		tries := 0
		for chunk := range f.state.Chunks.All {
			if chunk.BackfillID == b.BackfillID {
				tries += 1 + int(chunk.Try)
			}
		}
		if requests[b.BackfillID] > tries {
			o.violation(addsUp, "backfill %s of %s has runs of %d requests, but its chunks were requested only %d times", b.BackfillID, f.domain, requests[b.BackfillID], tries)
		}
	}
}
