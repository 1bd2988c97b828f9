package view_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

func gantt(w *foldtest.World, run string, byAsset bool) *view.Gantt {
	return view.GanttOf(w.State, w.State.Runs.Get(run), event.At(w.Now), view.GanttOptions{Pixels: 1000, ByAsset: byAsset})
}

// phases returns the phases of a row with their durations in seconds.
func phases(t *testing.T, g *view.Gantt, key string) (names []view.Phase, seconds []float64) {
	t.Helper()
	for i := range g.Rows {
		if g.Rows[i].Key == key {
			for _, s := range g.Rows[i].Segments {
				names, seconds = append(names, s.Phase), append(seconds, s.To.Sub(s.From).Seconds())
			}
			return names, seconds
		}
	}
	t.Fatalf("no row %s", key)
	return nil, nil
}

func TestGanttSaysWhatTasksWaitFor(t *testing.T) {
	w := foldtest.New(t)
	run := w.RunWith(event.RunTriggered{MaxParallelism: 1}, foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c", "a", "b"))
	w.Pass(time.Second)
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(4 * time.Second)
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	w.Pass(2 * time.Second)
	w.MustFold(w.Started(run, "b", 1))
	w.Pass(3 * time.Second)

	names, seconds := phases(t, gantt(w, run, false), "b")
	require.Equal(t, []view.Phase{view.PhaseLimited, view.PhaseQueued, view.PhaseRunning}, names)
	require.Equal(t, []float64{5, 2, 3}, seconds)
	names, seconds = phases(t, gantt(w, run, false), "c")
	require.Equal(t, []view.Phase{view.PhaseBlocked}, names)
	require.Equal(t, []float64{10}, seconds)

	w.MustFold(w.Finished(run, "b", 1, event.Succeeded))
	w.MustFold(w.Started(run, "c", 1))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "c", 1, event.Succeeded))
	g := gantt(w, run, false)
	require.Equal(t, []string{"b", "c"}, g.CriticalPath, "c waited for b last")
	require.Equal(t, 11*time.Second, g.Critical)
	require.Equal(t, 5*time.Second, g.Unlimited, "a takes 4 s and c 1 s if b does not wait for a")
	require.Equal(t, []string{"a", "b", "c"}, []string{g.Rows[0].Key, g.Rows[1].Key, g.Rows[2].Key}, "by their first attempt")
}

func TestGanttShowsEveryAttempt(t *testing.T) {
	w := foldtest.New(t)
	def := foldtest.Task("a")
	def.MaxAttempts, def.RetryInitialDelayMS = 2, 5000
	run := w.Run(def)
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	w.Pass(time.Second)
	g := gantt(w, run, false)
	names, seconds := phases(t, g, "a")
	require.Equal(t, []view.Phase{view.PhaseFailed, view.PhaseRetryWait}, names)
	require.Equal(t, []float64{1, 1}, seconds)
	require.Empty(t, g.CriticalPath, "no task has ended")
}

func TestGanttFoldsTasksByAsset(t *testing.T) {
	w := foldtest.New(t)
	var defs []event.TaskDef
	for _, key := range []string{"p1", "p2", "p3", "q1"} {
		def := foldtest.Task(key)
		def.AssetKey = "raw/" + key[:1]
		defs = append(defs, def)
	}
	run := w.Run(defs...)
	for _, def := range defs {
		w.MustFold(w.Started(run, def.TaskKey, 1))
		w.Pass(time.Second)
	}
	w.MustFold(w.Finished(run, "p2", 1, event.Failed))
	g := gantt(w, run, true)
	require.Len(t, g.Rows, 2)
	require.Equal(t, "raw/p", g.Rows[0].Key)
	require.EqualValues(t, 3, g.Rows[0].Tasks)
	require.EqualValues(t, 1, g.Rows[0].Failed)
	require.Equal(t, state.TaskFailed, g.Rows[0].State)
	require.Nil(t, g.Rows[0].Task)
}

// Task b is skipped as soon as a has failed. The run lasts so long that this wait is shorter than a pixel.
func TestGanttKeepsTaskThatWaitedBriefly(t *testing.T) {
	w := foldtest.New(t)
	b := foldtest.Task("b", "a")
	b.AssetKey = "b"
	run := w.Run(foldtest.Task("a"), b, foldtest.Task("c"))
	w.MustFold(w.Started(run, "a", 1), w.Started(run, "c", 1))
	w.Pass(time.Millisecond)
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	w.Pass(time.Hour)
	w.MustFold(w.Finished(run, "c", 1, event.Succeeded))
	for _, byAsset := range []bool{false, true} {
		names, seconds := phases(t, gantt(w, run, byAsset), "b")
		require.Equal(t, []view.Phase{view.PhaseBlocked}, names)
		require.Equal(t, []float64{0.001}, seconds)
	}
}

func TestGanttLeavesOutRowsThatSucceeded(t *testing.T) {
	const tasks = view.MaxGanttRows + 2
	run := &state.Run{RunID: "01JHH4V0000000000000000000", CreatedAt: 1, CompletedAt: 1 + tasks, State: state.RunFailed, TasksTotal: tasks}
	s := state.New(ids.Domain{Tenant: "acme", Workspace: "prod"})
	s.Runs.Put(run)
	for i := range tasks {
		key := fmt.Sprintf("raw/t%05d", i)
		begin := event.Time(1 + i)
		task := &state.Task{RunID: run.RunID, TaskKey: key, Kind: event.KindTask, AssetKey: key, State: state.TaskSucceeded, CreatedAt: 1, CompletedAt: begin + 1}
		attempt := &state.Attempt{RunID: run.RunID, TaskKey: key, Attempt: 1, State: state.AttemptClosed, Outcome: string(event.Succeeded), CreatedAt: begin, StartedAt: begin, FinishedAt: begin + 1}
		if i == tasks-1 {
			task.State, attempt.Outcome = state.TaskFailed, string(event.Failed)
		}
		s.Tasks.Put(task)
		s.Attempts.Put(attempt)
	}
	g := view.GanttOf(s, run, 1+tasks, view.GanttOptions{})
	require.True(t, g.ByAsset)
	require.Len(t, g.Rows, view.MaxGanttRows)
	require.Equal(t, 2, g.LeftOut)
	require.Equal(t, "raw/t00000", g.Rows[0].Key, "in the order of their begin")
	require.Equal(t, state.TaskFailed, g.Rows[view.MaxGanttRows-1].State, "the newest of the rows that succeeded are left out")
}
