package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// largeBackfill folds all events of a backfill, and counts them.
type largeBackfill struct {
	*backfilling
	t *testing.T

	control, tasks int             // events
	failing        map[string]bool // the keys of the tasks that fail once
	running        []string        // the running runs
}

func (w *largeBackfill) apply(control bool, payloads ...event.Payload) {
	g := w.Group(payloads...)
	r := fold.Apply(w.State, g)
	require.Equal(w.t, state.Folded, r.Row.Outcome, r.Row.Detail)
	if control {
		w.control += len(payloads)
	} else {
		w.tasks += len(payloads)
	}
	b := w.row()
	total := b.Left + b.Done + b.Failed + b.Skipped + b.Cancelled
	require.Equal(w.t, int64(100_000), total, "every partition is in one set")
	require.LessOrEqual(w.t, b.Running, b.Left)
}

// start plans all requested chunks.
func (w *largeBackfill) start() {
	for _, r := range w.pending() {
		trigger, tasks := chunkTrigger(w.World, r, "", "")
		w.apply(true, w.Triggered(trigger, tasks...)...)
		w.running = append(w.running, r.RunID)
	}
}

// step ends the oldest run.
func (w *largeBackfill) step() {
	run := w.running[0]
	w.running = w.running[1:]
	var reports []event.Payload
	w.State.TasksOf(run, func(t *state.Task) bool {
		if t.State.Terminal() {
			return true
		}
		outcome := event.Succeeded
		if w.failing[t.TaskKey] {
			outcome = event.Failed
			delete(w.failing, t.TaskKey)
		}
		reports = append(reports, w.Finished(run, t.TaskKey, t.Attempt, outcome))
		return true
	})
	w.apply(false, reports...)
	w.Pass(time.Second)
}

func (w *largeBackfill) toEnd(steps int) {
	for range steps {
		w.start()
		if w.row().State.Ended() {
			return
		}
		w.step()
	}
}

func (w *largeBackfill) command(verb string, now bool) {
	w.apply(true, &event.AutomationCommand{CommandID: w.ID(), Target: event.TargetBackfill, Name: w.id, Verb: verb, Now: now})
}

// I-30, at the size of years of history: the backfill has 100,000 partitions in 1,000 chunks. It is paused twice, and
// its 37 failures are retried.
func TestI30LargeBackfillAppendsFewEvents(t *testing.T) {
	w := &largeBackfill{backfilling: &backfilling{World: foldtest.New(t)}, t: t, failing: map[string]bool{}}
	p := &event.BackfillCreated{BackfillID: w.ID(), Assets: []string{"test/p"}, ChunksRef: "d", MaxParallel: 3, StopAt: 10_000, Priority: -100}
	for range 1000 {
		p.Sizes = append(p.Sizes, 100)
	}
	for i := range 37 {
		w.failing[fmt.Sprintf("p%d.%03d", 7+27*i, i)] = true
	}
	w.id = p.BackfillID
	w.apply(true, p)
	w.toEnd(200)
	w.start()
	w.command(event.VerbPause, false)
	for len(w.running) > 0 {
		w.step() // this ends the running chunks
	}
	require.Zero(t, w.row().Running)
	w.command(event.VerbResume, false)
	w.toEnd(300)
	w.start()
	w.command(event.VerbPause, true)
	require.Zero(t, w.row().Running, "no task had started, so the runs ended at once")
	again := len(w.running)
	w.running = nil
	w.command(event.VerbResume, false)
	w.toEnd(2000)

	require.Equal(t, state.BackfillFailed, w.row().State)
	require.EqualValues(t, 37, w.row().Failed)
	require.EqualValues(t, 99_963, w.row().Done)
	first := w.control
	require.Equal(t, 1+2*(1000+again)+4, first, "an event for the backfill, two for each chunk and each that ran again, and four commands")
	w.command(event.VerbRetryFailed, false)
	w.toEnd(100)
	require.Equal(t, state.BackfillSucceeded, w.row().State)
	require.EqualValues(t, 100_000, w.row().Done)
	require.Equal(t, first+1+2*37, w.control)
	require.NoError(t, foldtest.CheckTotals(w.State))
	t.Logf("%d control events in the first round, %d with the retry; %d reports of tasks", first, w.control, w.tasks)
}

// Live work is delayed by at most one task of a backfill, regardless of the number of waiting tasks of the backfill.
func TestBackfillGivesWayToLiveWork(t *testing.T) {
	w := newBackfill(t, func(p *event.BackfillCreated) { p.Sizes, p.MaxParallel, p.Priority = []int32{50, 50}, 2, -100 })
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 4})
	for range 2 {
		r := w.pending()[0]
		trigger, tasks := chunkTrigger(w.World, r, "", "")
		for i := range tasks {
			tasks[i].Priority = w.row().Priority
		}
		w.MustFold(w.Triggered(trigger, tasks...)...)
	}
	require.EqualValues(t, 4, w.State.SlotsInUse())
	run := w.Run(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c"))
	require.Zero(t, w.State.SlotsInUseByRun(run), "running tasks are not interrupted")
	for i := range int32(3) {
		var ended *state.Task
		for row := range w.State.Tasks.All {
			if row.AdmittedAt != 0 && row.Priority < 0 {
				ended = row
			}
		}
		w.MustFold(w.Finished(ended.RunID, ended.TaskKey, 1, event.Succeeded))
		require.Equal(t, i+1, w.State.SlotsInUseByRun(run), "every slot that becomes free goes to the live run")
	}
}
