package view_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// seconds describes the rows of a drawing. Times are in seconds since the beginning of the drawing.
func seconds(g *view.Gantt) []string {
	var lines []string
	for _, row := range g.Rows {
		var parts []string
		for _, s := range row.Segments {
			parts = append(parts, fmt.Sprintf("%s %d-%d", s.Phase, s.From.Sub(g.From)/time.Second, s.To.Sub(g.From)/time.Second))
		}
		critical := ""
		if row.Critical {
			critical = "*"
		}
		lines = append(lines, fmt.Sprintf("%s%s %d %s: %s", row.Key, critical, row.Tasks, row.State, strings.Join(parts, ", ")))
	}
	return lines
}

// Task a runs for 2 s and b for 1 s. Task c waits for both, and d for b. Task c fails once.
func drawn(t *testing.T) (*foldtest.World, string) {
	t.Helper()
	w := foldtest.New(t)
	def := func(key, asset string, deps ...string) event.TaskDef {
		d := foldtest.Task(key, deps...)
		d.AssetKey = asset
		return d
	}
	run := w.Run(def("a", "x/first"), def("b", "x/first"), def("c", "x/c", "a", "b"), def("d", "x/d", "b"))
	w.MustFold(w.Started(run, "a", 1), w.Started(run, "b", 1))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "b", 1, event.Succeeded))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	w.Pass(2 * time.Second)
	w.MustFold(w.Started(run, "c", 1), w.Started(run, "d", 1))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "d", 1, event.Succeeded))
	w.Pass(2 * time.Second)
	return w, run
}

func TestGanttShowsPhasesAndPath(t *testing.T) {
	w, run := drawn(t)
	g := view.GanttOf(w.State, w.State.Runs.Get(run), event.At(w.Now), view.GanttOptions{Pixels: 1000})
	require.Equal(t, []string{
		"a* 1 SUCCEEDED: SUCCEEDED 0-2",
		"b 1 SUCCEEDED: SUCCEEDED 0-1",
		"d 1 SUCCEEDED: BLOCKED 0-1, QUEUED 1-4, SUCCEEDED 4-5",
		"c* 1 RUNNING: BLOCKED 0-2, QUEUED 2-4, RUNNING 4-7",
	}, seconds(g))
	require.Equal(t, []string{"a", "c"}, g.CriticalPath)
	require.Equal(t, 5*time.Second, g.Unlimited, "a and c without the wait of 2 s")

	w.MustFold(w.Finished(run, "c", 1, event.Succeeded))
	ended := view.GanttOf(w.State, w.State.Runs.Get(run), event.At(w.Now.Add(time.Hour)), view.GanttOptions{Pixels: 1000})
	require.Equal(t, "c* 1 SUCCEEDED: BLOCKED 0-2, QUEUED 2-4, SUCCEEDED 4-7", seconds(ended)[3])
	require.Equal(t, 7*time.Second, ended.To.Sub(ended.From), "final once the run has ended")
}

func TestGanttMergesTasksOfAsset(t *testing.T) {
	w, run := drawn(t)
	g := view.GanttOf(w.State, w.State.Runs.Get(run), event.At(w.Now), view.GanttOptions{Pixels: 1000, ByAsset: true})
	require.True(t, g.ByAsset)
	require.Equal(t, "x/first* 2 SUCCEEDED: SUCCEEDED 0-2", seconds(g)[0])
	require.EqualValues(t, 2, g.Rows[0].Segments[0].Tasks)
}

func TestGanttShowsIntervalOnly(t *testing.T) {
	w, run := drawn(t)
	row := w.State.Runs.Get(run)
	g := view.GanttOf(w.State, row, event.At(w.Now), view.GanttOptions{From: row.CreatedAt.Add(3 * time.Second), To: row.CreatedAt.Add(4 * time.Second), Pixels: 10})
	require.Equal(t, []string{"d 1 SUCCEEDED: QUEUED 0-1, SUCCEEDED 1-1", "c* 1 RUNNING: QUEUED 0-1, RUNNING 1-1"}, seconds(g))
}

func TestGanttShowsRetries(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 3))
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	w.Pass(time.Second)
	g := view.GanttOf(w.State, w.State.Runs.Get(run), event.At(w.Now), view.GanttOptions{Pixels: 1000})
	require.Equal(t, []string{"a 1 RETRY_WAIT: FAILED 0-1, RETRY_WAIT 1-2"}, seconds(g))
}

func TestGanttOfLargeRunIsByAsset(t *testing.T) {
	w := foldtest.New(t)
	var defs []event.TaskDef
	for i := range view.MaxGanttRows + 1 {
		def := foldtest.Task(fmt.Sprintf("t%05d", i))
		def.AssetKey = "x/many"
		defs = append(defs, def)
	}
	run := w.Run(defs...)
	w.Pass(time.Second)
	g := view.GanttOf(w.State, w.State.Runs.Get(run), event.At(w.Now), view.GanttOptions{Pixels: 1000})
	require.True(t, g.ByAsset)
	require.Len(t, g.Rows, 1)
	require.Empty(t, g.CriticalPath)
}

// The run has 100,000 tasks in ten stages. A group node makes each stage wait for the previous one.
func BenchmarkGanttOfLargeRun(b *testing.B) {
	const stages, width = 10, 10_000
	run := &state.Run{RunID: "01JHH4V0000000000000000000", CreatedAt: 1, State: state.RunRunning, TasksTotal: stages * width}
	s := state.New(ids.Domain{Tenant: "acme", Workspace: "prod"})
	s.Runs.Put(run)
	for stage := range stages {
		for i := range width {
			key := fmt.Sprintf("x/stage%d[n=%05d]", stage, i)
			from := event.Time(1+stage) * 1_000_000
			s.Tasks.Put(&state.Task{
				RunID: run.RunID, TaskKey: key, Kind: event.KindTask, AssetKey: fmt.Sprintf("x/stage%d", stage), State: state.TaskSucceeded,
				ReadyAt: from, CompletedAt: from + event.Time(900_000+i),
			})
			s.Attempts.Put(&state.Attempt{
				RunID: run.RunID, TaskKey: key, Attempt: 1, State: state.AttemptClosed, Outcome: string(event.Succeeded),
				CreatedAt: from, StartedAt: from + 1000, FinishedAt: from + event.Time(900_000+i),
			})
			group := fmt.Sprintf("group%d", stage)
			s.Deps.Put(&state.Dep{RunID: run.RunID, Upstream: key, Downstream: group})
			if stage > 0 {
				s.Deps.Put(&state.Dep{RunID: run.RunID, Upstream: fmt.Sprintf("group%d", stage-1), Downstream: key})
			}
		}
		s.Tasks.Put(&state.Task{RunID: run.RunID, TaskKey: fmt.Sprintf("group%d", stage), Kind: event.KindGroup, CompletedAt: event.Time(2+stage) * 1_000_000})
	}
	for b.Loop() {
		g := view.GanttOf(s, run, event.Time(12_000_000), view.GanttOptions{Pixels: 1000})
		require.Len(b, g.CriticalPath, stages)
	}
}
