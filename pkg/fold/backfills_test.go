package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// backfilling is a world with one backfill.
type backfilling struct {
	*foldtest.World
	id string
}

func newBackfill(t foldtest.TB, change func(*event.BackfillCreated)) *backfilling {
	t.Helper()
	w := &backfilling{World: foldtest.New(t)}
	w.id = w.ID()
	p := &event.BackfillCreated{BackfillID: w.id, Assets: []string{"test/p"}, ChunksRef: "backfills/doc", Sizes: []int32{2, 2, 2}, MaxParallel: 1}
	if change != nil {
		change(p)
	}
	w.MustFold(p)
	return w
}

func (w *backfilling) row() *state.Backfill { return w.State.Backfills.Get(w.id) }

func (w *backfilling) chunk(n int32) *state.Chunk {
	return w.State.Chunks.Get(state.ChunkKey{BackfillID: w.id, Chunk: n})
}

func (w *backfilling) pending() []*state.RunRequest {
	var found []*state.RunRequest
	w.State.PendingRequests(func(r *state.RunRequest) bool {
		found = append(found, r)
		return true
	})
	return found
}

// plan starts the run of the oldest pending request. The run has all remaining partitions of its chunk.
func (w *backfilling) plan() string {
	r := w.pending()[0]
	trigger, tasks := chunkTrigger(w.World, r, "", "")
	w.MustFold(w.Triggered(trigger, tasks...)...)
	return r.RunID
}

// finish ends all tasks of a run with an outcome.
func (w *backfilling) finish(run string, outcome event.Outcome) {
	var keys []string
	w.State.TasksOf(run, func(t *state.Task) bool {
		keys = append(keys, t.TaskKey)
		return true
	})
	for _, key := range keys {
		w.Fold(w.Finished(run, key, 1, outcome))
	}
}

func (w *backfilling) command(verb string, change func(*event.AutomationCommand)) fold.Result {
	p := &event.AutomationCommand{CommandID: w.ID(), Target: event.TargetBackfill, Name: w.id, Verb: verb}
	if change != nil {
		change(p)
	}
	return w.Fold(p)
}

func TestBackfillRunsChunksInOrder(t *testing.T) {
	w := newBackfill(t, nil)
	for n := range int32(3) {
		require.Equal(t, state.ChunkRequestID(w.id, n, 0), w.pending()[0].RequestID)
		require.Len(t, w.pending(), 1, "one chunk runs at a time")
		w.finish(w.plan(), event.Succeeded)
	}
	require.Equal(t, state.BackfillSucceeded, w.row().State)
	require.EqualValues(t, 6, w.row().Done)
}

func TestBackfillStageWaitsForEarlierStage(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.MaxParallel, p.Stages = 3, []int32{2} })
	first, second := w.plan(), w.plan()
	require.Empty(t, w.pending(), "the third chunk reads what the first two make")
	w.finish(second, event.Succeeded)
	require.Empty(t, w.pending())
	w.finish(first, event.Failed)
	require.Len(t, w.pending(), 1)
	w.finish(w.plan(), event.Succeeded)
	require.Equal(t, state.BackfillFailed, w.row().State)
}

func TestOrderedBackfillPausesAtFirstFailure(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.Ordered = true })
	w.finish(w.plan(), event.Succeeded)
	w.finish(w.plan(), event.Failed)
	require.Equal(t, state.BackfillPaused, w.row().State)
	require.Contains(t, w.row().PauseReason, "chunk 1 has not succeeded")

	r := w.command(event.VerbResume, nil)
	require.Equal(t, state.Stale, r.Row.Outcome, "the next chunk would read a missing partition")
	require.Contains(t, r.Row.Detail, "retry them")
	require.Contains(t, w.command(event.VerbSet, func(p *event.AutomationCommand) { p.MaxParallel = 2 }).Row.Detail, "one chunk at a time")
	require.Equal(t, state.Folded, w.command(event.VerbRetryFailed, nil).Row.Outcome)
	require.Equal(t, state.ChunkRequestID(w.id, 1, 1), w.pending()[0].RequestID, "the failed chunk comes first")
	w.finish(w.plan(), event.Succeeded)
	w.finish(w.plan(), event.Succeeded)
	require.Equal(t, state.BackfillSucceeded, w.row().State)
}

func TestPauseLetsRunningChunksEnd(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.MaxParallel = 2 })
	run := w.plan()
	group := func() fold.Group {
		trigger, tasks := chunkTrigger(w.World, w.pending()[0], "", "")
		return w.Group(w.Triggered(trigger, tasks...)...)
	}()
	require.Equal(t, state.Folded, w.command(event.VerbPause, func(p *event.AutomationCommand) { p.Reason = "lunch" }).Row.Outcome)
	require.Equal(t, "lunch", w.row().PauseReason)
	require.Equal(t, state.Stale, w.Apply(group).Row.Outcome, "the request was withdrawn while its run was planned")
	require.Equal(t, state.ChunkWaiting, w.chunk(1).State)
	w.finish(run, event.Succeeded)
	require.EqualValues(t, 2, w.row().Done)
	require.Empty(t, w.pending())
	require.Equal(t, state.Folded, w.command(event.VerbResume, nil).Row.Outcome)
	require.Len(t, w.pending(), 2)
}

func TestPauseNowRepeatsOnlyUnfinished(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.Sizes = []int32{3} })
	run := w.plan()
	w.MustFold(w.Started(run, "p0.001", 1))
	w.MustFold(w.Finished(run, "p0.000", 1, event.Succeeded))
	w.command(event.VerbPause, func(p *event.AutomationCommand) { p.Now = true })
	require.Equal(t, "3r", w.chunk(0).Cells, "a task is still running")
	w.command(event.VerbResume, nil)
	require.Empty(t, w.pending(), "two runs must not work on one partition")
	w.Fold(w.Finished(run, "p0.001", 1, event.Cancelled))
	require.Equal(t, "1d2l", w.chunk(0).Cells)
	require.Equal(t, state.ChunkRequestID(w.id, 0, 1), w.pending()[0].RequestID)
	w.finish(w.plan(), event.Succeeded)
	require.Equal(t, state.BackfillSucceeded, w.row().State)
}

func TestCancelledBackfillEndsWithItsLastRun(t *testing.T) {
	w := newBackfill(t, nil)
	run := w.plan()
	w.MustFold(w.Started(run, "p0.001", 1))
	w.MustFold(w.Finished(run, "p0.000", 1, event.Succeeded))
	w.command(event.VerbCancel, nil)
	require.Equal(t, state.BackfillCancelling, w.row().State)
	require.EqualValues(t, 4, w.row().Cancelled, "chunks that wait are cancelled at once")
	require.Equal(t, state.Stale, w.command(event.VerbResume, nil).Row.Outcome)
	w.Fold(w.Finished(run, "p0.001", 1, event.Succeeded))
	require.Equal(t, state.BackfillCancelled, w.row().State)
	require.EqualValues(t, 5, w.row().Cancelled, "a success after the cancel is not visible")
	require.Equal(t, state.Stale, w.command(event.VerbRetryFailed, nil).Row.Outcome)
}

func TestRefusedChunkFailsItsPartitions(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.StopAt = 2 })
	refuse := func(code string) {
		r := w.pending()[0]
		w.MustFold(&event.RequestRefused{RequestID: r.RequestID, Generation: r.Generation, Error: event.Error{Code: code, Message: "why"}})
	}
	refuse("UNPLANNABLE")
	require.Equal(t, "2f", w.chunk(0).Cells)
	require.JSONEq(t, `{"UNPLANNABLE": 2}`, w.chunk(0).Codes)
	require.Equal(t, state.BackfillPaused, w.row().State, "two partitions have failed")
	w.command(event.VerbResume, nil)
	refuse(fold.NothingToDo)
	require.Equal(t, "2s", w.chunk(1).Cells)
	refuse(fold.DefinitionChanged)
	require.Equal(t, "2l", w.chunk(2).Cells)
	require.Equal(t, "why", w.row().PauseReason)
	w.command(event.VerbResume, nil)
	refuse(fold.DocumentDamaged)
	require.Equal(t, "2l", w.chunk(2).Cells)
	require.Equal(t, state.BackfillPaused, w.row().State)
}

func TestBackfillStopsAtFailures(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.StopAt = 3 })
	w.finish(w.plan(), event.Failed)
	require.Equal(t, state.BackfillRunning, w.row().State)
	w.finish(w.plan(), event.Failed)
	require.Equal(t, state.BackfillPaused, w.row().State)
	require.Equal(t, "4 partitions have failed", w.row().PauseReason)
	require.Empty(t, w.row().PausedBy)
	w.command(event.VerbResume, nil)
	require.Zero(t, w.row().Failures, "failures count from zero after a resume")
	w.finish(w.plan(), event.Failed)
	require.Equal(t, state.BackfillFailed, w.row().State, "nothing is left, so there is nothing to pause")
}

func TestPausedBackfillIsReported(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.StopAt = 1 })
	rule := event.AlertRule{Name: "paused", On: []string{event.CauseBackfillPaused, event.CauseRecovered}, To: []string{"oncall"}, GroupSec: 60}
	w.MustFold(&event.ProjectDeployed{DeployID: w.ID(), Release: hash("1"), Kind: event.DeployRelease, Alerts: []event.AlertRule{rule}})
	w.command(event.VerbPause, nil)
	require.Zero(t, w.State.Notifications.Len(), "a person paused it")
	w.command(event.VerbResume, nil)
	w.finish(w.plan(), event.Failed)
	require.Equal(t, state.BackfillPaused, w.row().State)
	causes := func() (found []string) {
		for n := range w.State.Notifications.All {
			require.Equal(t, "backfill:"+w.id, n.Subject)
			found = append(found, n.Cause)
		}
		return found
	}
	require.Equal(t, []string{event.CauseBackfillPaused}, causes())
	w.Pass(time.Second)
	w.command(event.VerbRetryFailed, nil)
	require.ElementsMatch(t, []string{event.CauseBackfillPaused, event.CauseRecovered}, causes())
}

func TestRunCancelledByHandSkipsItsPartitions(t *testing.T) {
	w := newBackfill(t, nil)
	w.MustFold(&event.RunCancelRequested{RunID: w.plan(), Force: true})
	require.Equal(t, "2s", w.chunk(0).Cells)
	require.JSONEq(t, `{"CANCELLED": 2}`, w.chunk(0).Codes)
	require.Equal(t, state.BackfillRunning, w.row().State)
}

func TestChunkRejectsPlanOfOtherPartitions(t *testing.T) {
	w := newBackfill(t, nil)
	trigger, tasks := triggerOf(w.pending()[0], &event.ChunkPlan{Planned: "0-2"})
	r := w.Fold(w.Triggered(trigger, tasks...)...)
	require.Equal(t, state.Stale, r.Row.Outcome)
	require.Contains(t, r.Row.Detail, "only 2 partitions")
	trigger.Chunk = nil
	require.Equal(t, state.Stale, w.Fold(w.Triggered(trigger, tasks...)...).Row.Outcome)

	trigger.Chunk = &event.ChunkPlan{Planned: "0-1"}
	w.MustFold(w.Triggered(trigger, tasks...)...)
	require.Equal(t, fold.CodePlanUnreadable, w.State.Runs.Get(trigger.RunID).ErrorCode)
	require.Equal(t, "2f", w.chunk(0).Cells)
}

func TestRequestOfChunkIsNotCancelled(t *testing.T) {
	w := newBackfill(t, nil)
	r := w.Fold(cancelled(w.World, w.pending()[0]))
	require.Equal(t, state.Stale, r.Row.Outcome)
	require.Contains(t, r.Row.Detail, "pause or cancel the backfill")
}

func TestBackfillCommandsFoldInAnyOrder(t *testing.T) {
	w := newBackfill(t, nil)
	early := &event.AutomationCommand{CommandID: w.ID(), Target: event.TargetBackfill, Name: w.id, Verb: event.VerbPause}
	w.command(event.VerbSet, func(p *event.AutomationCommand) { p.MaxParallel = 3 })
	require.Len(t, w.pending(), 3)
	require.Equal(t, state.Stale, w.Fold(early).Row.Outcome, "a later command is folded already")
	require.Equal(t, state.BackfillRunning, w.row().State)
}

func TestBackfillsAreLimited(t *testing.T) {
	w := newBackfill(t, nil)
	create := func() *event.BackfillCreated {
		return &event.BackfillCreated{BackfillID: w.ID(), Assets: []string{"test/p"}, ChunksRef: "d", Sizes: []int32{1}, MaxParallel: 1}
	}
	for range state.MaxBackfills - 1 {
		w.MustFold(create())
	}
	r := w.Fold(create())
	require.Equal(t, state.Conflict, r.Row.Outcome)
	require.Contains(t, r.Row.Detail, "100 backfills have not ended")
}

func TestLateBackfillIsStale(t *testing.T) {
	w := newBackfill(t, nil)
	late := &event.BackfillCreated{BackfillID: w.ID(), Assets: []string{"test/p"}, ChunksRef: "d", Sizes: []int32{1}, MaxParallel: 1}
	w.Pass(state.MaxRunAge + time.Second)
	require.Equal(t, state.Stale, w.Fold(late).Row.Outcome)
}

// backfillWalk draws events about backfills.
type backfillWalk struct {
	*backfilling
	r      *rapid.T
	groups []fold.Group
	// control is the number of events that control backfills: triggers, plans, refusals and commands. allowed is the
	// number that I-30 allows.
	control, allowed int
	requests         map[string]bool // whether a request has ended
}

func (w *backfillWalk) int(label string, most int) int {
	return rapid.IntRange(0, most).Draw(w.r, label)
}

func (w *backfillWalk) apply(payloads ...event.Payload) {
	g := w.Group(payloads...)
	w.groups = append(w.groups, g)
	w.Apply(g)
	for row := range w.State.Requests.All {
		_, _, ok := state.ParseChunkRequest(row.RequestID)
		ended, known := w.requests[row.RequestID]
		switch {
		case ok && !known:
			w.allowed += 2
		case ended && !row.State.Ended():
			w.r.Fatalf("request %s has ended, and is %s", row.RequestID, row.State)
		}
		w.requests[row.RequestID] = row.State.Ended()
	}
}

// answer plans or refuses the oldest waiting request.
func (w *backfillWalk) answer() {
	r := w.pending()[0]
	p := chunkPlan(w.World, r.RequestID, "", "")
	left, _ := event.ParsePositions(p.Planned)
	var planned, done []int
	for _, n := range left {
		switch w.int("partition", 5) {
		case 0:
			done = append(done, n)
		case 1:
		default:
			planned = append(planned, n)
		}
	}
	p = &event.ChunkPlan{Planned: event.FormatPositions(planned), Done: event.FormatPositions(done)}
	code := fold.NothingToDo
	if len(planned) > 0 {
		code = rapid.SampledFrom([]string{"", "", "", "", "UNPLANNABLE", fold.DefinitionChanged, fold.DocumentDamaged}).Draw(w.r, "refusal")
	}
	if code != "" {
		if p.Planned = ""; code != fold.NothingToDo {
			p = nil
		}
		w.control++
		w.apply(&event.RequestRefused{RequestID: r.RequestID, Generation: r.Generation, Error: event.Error{Code: code, Message: "why"}, Chunk: p})
		return
	}
	trigger, tasks := triggerOf(r, p)
	if w.int("mismatch", 20) == 0 {
		tasks = append(tasks, foldtest.Task("other"))
	}
	w.control += 2
	w.apply(w.Triggered(trigger, tasks...)...)
}

// report draws a worker's report that starts or ends an unfinished task.
func (w *backfillWalk) report() {
	var open []*state.Task
	for t := range w.State.Tasks.All {
		if !t.State.Terminal() {
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return
	}
	t := open[w.int("task", len(open)-1)]
	if w.int("report", 3) == 0 {
		w.apply(w.Started(t.RunID, t.TaskKey, 1))
		return
	}
	outcome := rapid.SampledFrom([]event.Outcome{event.Succeeded, event.Succeeded, event.Failed, event.Skipped}).Draw(w.r, "outcome")
	w.apply(w.Finished(t.RunID, t.TaskKey, 1, outcome))
}

func (w *backfillWalk) step() {
	w.Pass(time.Duration(w.int("seconds", 40)) * time.Second)
	if w.row().State.Ended() && w.int("new", 2) == 0 {
		w.create()
	}
	switch kind := w.int("kind", 11); {
	case kind <= 3 && len(w.pending()) > 0:
		w.answer()
	case kind == 4:
		verb := rapid.SampledFrom([]string{event.VerbPause, event.VerbPause, event.VerbResume, event.VerbRetryFailed, event.VerbSet, event.VerbCancel}).Draw(w.r, "verb")
		p := &event.AutomationCommand{CommandID: w.ID(), Target: event.TargetBackfill, Name: w.id, Verb: verb}
		p.Now = verb == event.VerbPause && w.int("now", 1) == 0
		if verb == event.VerbSet {
			p.MaxParallel = int32(1 + w.int("parallel", 3))
		}
		w.control++
		w.allowed += 2
		w.apply(p)
	case kind == 5:
		if run := w.State.Runs.Last(); run != nil && w.int("by hand", 3) == 0 {
			w.apply(&event.RunCancelRequested{RunID: run.RunID, Force: true})
		}
	case kind == 6:
		if timer := w.Timer(event.TimerLiveness); timer != nil && timer.State == state.TimerScheduled {
			w.Now = timer.FireAt.Time()
			w.apply(w.Fire(timer))
		}
	case kind == 7 && len(w.groups) > 0:
		again := w.groups[w.int("again", len(w.groups)-1)]
		again.Entry = w.ID()
		w.Apply(again)
	default:
		w.report()
	}
}

func (w *backfillWalk) create() {
	p := &event.BackfillCreated{BackfillID: w.ID(), Assets: []string{"test/p"}, ChunksRef: "d", MaxParallel: int32(1 + w.int("parallel", 3))}
	for range 1 + w.int("chunks", 5) {
		p.Sizes = append(p.Sizes, int32(1+w.int("size", 4)))
	}
	switch w.int("mode", 2) {
	case 0:
		p.Ordered, p.MaxParallel = true, 1
	case 1:
		if len(p.Sizes) > 1 {
			p.Stages = []int32{int32(1 + w.int("stage", len(p.Sizes)-2))}
		}
	}
	p.StopAt = int64(w.int("stop", 4))
	w.id = p.BackfillID
	w.control++
	w.allowed++
	w.apply(p)
}

// I-30. After every group, foldtest.Check compares the totals of backfills with their chunks. This test failed when a
// requeued chunk kept the id of its request, and when partitions of a refused chunk kept the state [state.CellLeft].
func TestI30RandomBackfillsAddUp(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := &backfillWalk{backfilling: &backfilling{World: foldtest.New(r)}, r: r, requests: map[string]bool{}}
		w.create()
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			w.step()
		}
		if w.control > w.allowed {
			r.Fatalf("%d control events, at most %d are allowed", w.control, w.allowed)
		}
		w.rebuildBare()
	})
}

// rebuildBare folds the groups without the recorded order: the decisions of timers come last.
func (w *backfillWalk) rebuildBare() {
	bare := state.New(foldtest.Domain)
	for _, timers := range []bool{false, true} {
		for _, g := range w.groups {
			if event.HasFiredTimer(g.Events) != timers {
				continue
			}
			g.Bare, g.Inputs = true, map[string]int64{}
			fold.Apply(bare, g)
			if err := foldtest.CheckTotals(bare); err != nil {
				w.r.Fatalf("in a bare rebuild: %v", err)
			}
		}
	}
}

func TestBackfillMovesToHistoryWithItsChunks(t *testing.T) {
	for outcome, kept := range map[event.Outcome]time.Duration{event.Succeeded: state.BackfillKept, event.Failed: state.RetryableFor} {
		w := newBackfill(t, func(p *event.BackfillCreated) { p.Sizes = []int32{1} })
		w.finish(w.plan(), outcome)
		cutoff := func() state.Cutoff {
			return state.Cutoff{Seq: w.State.FoldSeq, Time: event.At(w.Now), Entries: w.ID(), Partitions: w.ID()}
		}
		w.Pass(kept - time.Second)
		w.State.Evict(cutoff())
		require.NotNil(t, w.row())
		w.Pass(2 * time.Second)
		rows := w.State.Evict(cutoff())
		require.Len(t, state.List[state.Backfill](rows), 1)
		require.Len(t, state.List[state.Chunk](rows), 1)
		require.Nil(t, w.chunk(0))
		require.NoError(t, w.State.Verify())
		r := w.command(event.VerbRetryFailed, nil)
		require.Equal(t, state.Stale, r.Row.Outcome, fmt.Sprint(outcome))
	}
}
