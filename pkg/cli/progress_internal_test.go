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

// shown updates a screen with the states that a fold produces.
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

func TestScreenCountsSuccessesOfLargeRuns(t *testing.T) {
	defs := []event.TaskDef{foldtest.Task("bad")}
	for i := range mostLines {
		defs = append(defs, foldtest.Task(fmt.Sprintf("t%03d", i)))
	}
	s := show(t, false, defs...)
	s.MustFold(s.Finished(s.run, "t000", 1, event.Succeeded))
	s.MustFold(s.Finished(s.run, "bad", 1, event.Failed))
	require.Contains(t, s.look(), "failed     bad")
	require.NotContains(t, s.out.String(), "t000")
	s.Pass(heartbeatEvery)
	require.Contains(t, s.look(), "2 of 101 done, 1 failed")
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

func TestSummaryNamesLimits(t *testing.T) {
	s := show(t, false, foldtest.Task("a"))
	w := s.World
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 1})
	run := w.Run(foldtest.Task("b"), foldtest.Task("c"))
	require.Equal(t, "0 of 2 done, 2 wait for one of the workspace's 1 slots", newProgress(style{}, run).summary(w.State))
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
	s.screen.progress.Silent = true
	require.Empty(t, s.look())
	s.MustFold(s.Finished(s.run, "b", 1, event.Succeeded))
	require.Contains(t, s.look(), "succeeded  b")
}

func TestTextsAreCutByColumns(t *testing.T) {
	require.Equal(t, "日本…", cut("日本語テキスト", 5))
	require.Equal(t, "abc", plain("\x1b[31ma\x1b[0mb\x1b[1mc"))
}

func TestSizesAreReadable(t *testing.T) {
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
