package view_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestWaitsNameLimits(t *testing.T) {
	pooled := func(key string) event.TaskDef {
		def := foldtest.Task(key)
		def.Pool = "charts"
		return def
	}
	for name, c := range map[string]struct {
		limit event.LimitSet
		most  int32
		want  string
	}{
		"a pool":        {event.LimitSet{Scope: event.ScopePool, Name: "charts", Slots: 1}, 0, "2 wait for pool charts (1 of 1 taken)"},
		"the run":       {event.LimitSet{Scope: event.ScopePool, Name: "charts", Slots: 9}, 2, "1 waits for one of the run's 2 slots"},
		"the workspace": {event.LimitSet{Scope: event.ScopeWorkspace, Slots: 1}, 0, "2 wait for one of the workspace's 1 slots"},
	} {
		t.Run(name, func(t *testing.T) {
			w := foldtest.New(t)
			c.limit.CommandID = w.ID()
			w.MustFold(&c.limit)
			run := w.RunWith(event.RunTriggered{MaxParallelism: c.most}, pooled("a"), pooled("b"), pooled("c"))
			waits := view.Waits(w.State, w.State.Runs.Get(run))
			require.Len(t, waits, 1)
			require.Equal(t, c.want, waits[0].String())
		})
	}
}

func TestAssetReportsSumTasks(t *testing.T) {
	w := foldtest.New(t)
	part := func(key string) event.TaskDef { return event.TaskDef{TaskKey: key, AssetKey: "x/parts"} }
	run := w.Run(part("p1"), part("p2"), part("p3"), event.TaskDef{TaskKey: "z", AssetKey: "x/z", DependsOn: []string{"p1", "p2", "p3"}})
	w.Pass(time.Second)
	w.MustFold(w.Started(run, "p1", 1))
	w.Pass(time.Second)
	w.MustFold(w.Finished(run, "p1", 1, event.Succeeded))
	w.MustFold(w.Finished(run, "p2", 1, event.Succeeded))
	w.MustFold(w.Finished(run, "p3", 1, event.Failed))
	reports := view.AssetReports(w.State, run)
	require.Len(t, reports, 2)
	require.Equal(t, "x/parts: 3 tasks, 2 rows, 4 bytes, 2 SUCCEEDED, 1 FAILED",
		fmt.Sprintf("%s: %d tasks, %d rows, %d bytes, %s", reports[0].Asset, reports[0].Tasks, reports[0].Rows, reports[0].Bytes, reports[0].State()))
	require.Equal(t, time.Second, reports[0].Took())
	require.Equal(t, "SKIPPED", reports[1].State())
}

func TestProgressFindsAttemptsBetweenObservations(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Retrying("a", 2))
	p := view.NewProgress(run)
	require.Empty(t, p.Observe(w.State))
	w.MustFold(w.Started(run, "a", 1))
	require.Empty(t, p.Observe(w.State), "the start of a task is not reported")
	require.Len(t, p.Running, 1)
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	w.Pass(2 * time.Second)
	w.MustFold(w.Fire(w.Timer(event.TimerRetry)))
	w.MustFold(w.Finished(run, "a", 2, event.Failed))
	happened := p.Observe(w.State)
	require.Len(t, happened, 2)
	require.Equal(t, state.TaskRetryWait, happened[0].State)
	require.Equal(t, "BOOM: it went wrong", happened[0].Error)
	require.Zero(t, happened[0].RetryAt, "the retry has started")
	require.Equal(t, state.TaskFailed, happened[1].State)
	require.Empty(t, p.Running)
	require.Empty(t, p.Observe(w.State), "each event is reported once")
}

func TestProgressJoinsTasksThatDidNotRun(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c", "b"), foldtest.Task("d", "c"))
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	p := view.NewProgress(run)
	p.Silent = true
	require.Empty(t, p.Observe(w.State), "a happened before")
	w.MustFold(w.Finished(run, "b", 1, event.Failed))
	happened := p.Observe(w.State)
	require.Len(t, happened, 2)
	require.Equal(t, state.TaskSkipped, happened[1].State)
	require.Equal(t, 2, happened[1].Tasks)
	require.Equal(t, "c", happened[1].Task.TaskKey)
}

func TestFailuresGroupTasksByError(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c"))
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	w.MustFold(w.Finished(run, "b", 1, event.Succeeded))
	w.MustFold(w.Finished(run, "c", 1, event.Failed))
	failures := view.Failures(w.State, run)
	require.Len(t, failures, 1)
	require.Equal(t, "BOOM", failures[0].Code)
	require.Len(t, failures[0].Tasks, 2)
}

func TestStatusListsWaitsInWords(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 1})
	run := w.Run(foldtest.Task("a"), foldtest.Retrying("b", 2), foldtest.Task("c"))
	w.MustFold(w.Started(run, "a", 1))
	w.Pass(time.Second)
	status := view.StatusOf(w.State, w.State.Runs.Get(run), event.At(w.Now))
	require.Equal(t, map[string]int32{"RUNNING": 1, "READY": 2}, status.Tasks)
	require.Equal(t, "a", status.Running[0].TaskKey)
	require.InDelta(t, 1, status.Seconds, 0)
	encoded, err := json.Marshal(status)
	require.NoError(t, err)
	require.Contains(t, string(encoded), `"waits":["2 wait for one of the workspace's 1 slots"]`)
	require.Contains(t, string(encoded), `"partitions":[]`)
}

func TestNumbersAndErrorsAreReadable(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234"} {
		require.Equal(t, want, view.Grouped(n))
	}
	require.Equal(t, "a b[31mred c", view.OneLine("a\nb\x1b[31mred\tc"))
	require.Equal(t, "CODE: the first line …", view.ErrorLine("CODE", "the first line\nthe second\n"))
	require.Equal(t, "no error message", view.ErrorLine("", ""))
}
