package cli

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// shown drives a screen with the states of a fold.
type shown struct {
	*foldtest.World
	screen *screen
	out    *bytes.Buffer
	run    string
}

func show(t *testing.T, terminal bool, defs ...event.TaskDef) *shown {
	t.Helper()
	w := foldtest.New(t)
	run := w.Run(defs...)
	out := &bytes.Buffer{}
	return &shown{w, &screen{w: out, terminal: terminal, width: 50, progress: newProgress(style{}, run)}, out, run}
}

// look shows the current state and returns the output.
func (s *shown) look() string {
	s.out.Reset()
	s.screen.show(s.State, event.At(s.Now))
	return s.out.String()
}

func TestScreenWithoutTerminalPrintsTaskEnds(t *testing.T) {
	s := show(t, false, foldtest.Task("a"), foldtest.Retrying("b", 2), foldtest.Task("c", "b"), foldtest.Task("d", "c"))
	require.Empty(t, s.look(), "nothing has happened")

	s.MustFold(s.Started(s.run, "a", 1))
	require.Empty(t, s.look(), "the start of a task is not reported")

	s.Pass(1500 * time.Millisecond)
	s.MustFold(s.Finished(s.run, "a", 1, event.Succeeded))
	s.MustFold(s.Finished(s.run, "b", 1, event.Failed))
	require.Equal(t,
		"   1.50 s  succeeded  a  1 row, 1.50 s\n"+
			"   1.50 s  retrying   b  attempt 1 of 2: BOOM: it went wrong; again in 1.00 s\n", s.look())
	require.Empty(t, s.look(), "each event is reported once")

	s.Pass(2 * time.Second)
	s.MustFold(s.Fire(s.Timer(event.TimerRetry)))
	s.MustFold(s.Finished(s.run, "b", 2, event.Failed))
	require.Equal(t,
		"   3.50 s  failed     b  attempt 2 of 2: BOOM\n"+
			"   3.50 s  skipped    2 tasks, for example c\n", s.look())
}

func TestScreenWithoutTerminalPrintsHeartbeat(t *testing.T) {
	s := show(t, false, foldtest.Task("a"), foldtest.Task("b", "a"))
	s.MustFold(s.Started(s.run, "a", 1))
	s.Pass(9 * time.Second)
	require.Empty(t, s.look())
	s.Pass(time.Second)
	require.Equal(t, "   10.0 s  0 of 2 done, 1 running\n", s.look())
	s.Pass(5 * time.Second)
	require.Empty(t, s.look())
	s.Pass(5 * time.Second)
	require.Equal(t, "   20.0 s  0 of 2 done, 1 running\n", s.look())
}

func TestScreenOnTerminalRedrawsBlock(t *testing.T) {
	s := show(t, true, foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c", "b"))
	s.MustFold(s.Started(s.run, "a", 1))
	s.MustFold(s.Started(s.run, "b", 1))
	s.Pass(time.Second)
	first := s.look()
	require.Equal(t, "░░░░░░░░░░ RUNNING    1.00 s  0 of 3 done, 2 running\n  a  1.00 s\n  b  1.00 s\n", first)

	s.MustFold(s.Finished(s.run, "a", 1, event.Succeeded))
	s.MustFold(s.Finished(s.run, "b", 1, event.Failed))
	second := s.look()
	require.Contains(t, second, "\x1b[4A\x1b[J", "the head is wider than the terminal: it took two rows")
	require.NotContains(t, second, "succeeded  a", "the counters suffice for a success")
	require.Contains(t, second, "failed     b  attempt 1 of 1: BOOM\n")
	require.Contains(t, second, "3 of 3 done, 1 failed, 1 skipped")
	s.out.Reset()
	s.screen.clear()
	require.Equal(t, "\x1b[2A\x1b[J", s.out.String())
}

func TestSilentProgressSkipsThePast(t *testing.T) {
	s := show(t, false, foldtest.Task("a"), foldtest.Task("b"))
	s.MustFold(s.Finished(s.run, "a", 1, event.Succeeded))
	s.screen.progress.silent = true
	require.Empty(t, s.look())
	s.MustFold(s.Finished(s.run, "b", 1, event.Succeeded))
	require.Contains(t, s.look(), "succeeded  b")
}

func TestSummaryNamesLimits(t *testing.T) {
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
			require.Equal(t, "0 of 3 done, "+c.want, newProgress(style{}, run).summary(w.State))
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
	reports := assetReports(w.State, run)
	require.Len(t, reports, 2)
	require.Equal(t, "x/parts 3 2 2 4 2 SUCCEEDED, 1 FAILED", fmt.Sprint(reports[0].asset, " ", reports[0].tasks, reports[0].succeeded,
		" ", reports[0].rows, reports[0].bytes, " ", reports[0].stateText()))
	require.Equal(t, time.Second, reports[0].last.Sub(reports[0].first))
	require.Equal(t, "SKIPPED", reports[1].stateText())
}

func TestOneLineRemovesControlCharacters(t *testing.T) {
	require.Equal(t, "a b[31mred c", oneLine("a\nb\x1b[31mred\tc"))
	require.Equal(t, "日本…", cut("日本語テキスト", 5))
	require.Equal(t, "abc", plain("\x1b[31ma\x1b[0mb\x1b[1mc"))
}

func TestNumbersAndSizesAreReadable(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1234: "-1,234"} {
		require.Equal(t, want, grouped(n))
	}
	for n, want := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "1.0 kB", 1490: "1.5 kB", 516_200: "516 kB", 999_600: "1.0 MB", 12_345_678: "12.3 MB",
	} {
		require.Equal(t, want, bytesText(n))
	}
}

func TestTaskStatesIgnoreCase(t *testing.T) {
	states, err := taskStates([]string{"failed", "Retry_Wait"})
	require.NoError(t, err)
	require.Equal(t, []state.TaskState{state.TaskFailed, state.TaskRetryWait}, states)
	_, err = taskStates([]string{"FAILD"})
	require.EqualError(t, err, `unknown task state "FAILD": did you mean FAILED?`)
}

func TestProgressReportsAttemptsBetweenObservations(t *testing.T) {
	s := show(t, false, foldtest.Retrying("a", 2))
	require.Empty(t, s.look())
	s.Pass(time.Second)
	s.MustFold(s.Finished(s.run, "a", 1, event.Failed))
	s.Pass(2 * time.Second)
	s.MustFold(s.Fire(s.Timer(event.TimerRetry)))
	s.MustFold(s.Finished(s.run, "a", 2, event.Failed))
	require.Equal(t,
		"   1.00 s  retrying   a  attempt 1 of 2: BOOM: it went wrong\n"+
			"   3.00 s  failed     a  attempt 2 of 2: BOOM\n", s.look())
}
