package state_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

func run(id string, seq int64) *state.Run {
	return &state.Run{RunID: id, State: state.RunRunning, Meta: state.Meta{Seq: seq}}
}

func TestChangedSinceDrainIncludesTombstones(t *testing.T) {
	s := state.New(domain)
	s.Runs.Put(run("b", 1))
	s.Runs.Put(run("a", 2))
	require.Equal(t, []*state.Run{run("a", 2), run("b", 1)}, state.List[state.Run](s.Changed()))
	require.Equal(t, 2, s.Changed().Len())
	s.Drain()
	require.Zero(t, s.Changed().Len())

	gone := run("a", 3)
	gone.Deleted = true
	s.Runs.Put(gone)
	s.Runs.Put(run("c", 4))
	s.Runs.Put(run("c", 5))
	require.Equal(t, []*state.Run{gone, run("c", 5)}, state.List[state.Run](s.Changed()), "the last row of each key")
	require.Equal(t, []*state.Run{run("b", 1), run("c", 5)}, s.Runs.Rows())
	require.Nil(t, s.Runs.Get("a"))
	require.Equal(t, 2, s.Runs.Len())
}

// A late report can end a run at a time so far in the past that the run counts as closed at the time of the cutoff.
// If the report was folded after the cutoff, the row of the run must nevertheless stay in the live state.
func TestEvictKeepsRowsChangedAfterCut(t *testing.T) {
	ended := run("r", 5)
	ended.State, ended.CompletedAt = state.RunFailed, event.At(time.Unix(1_000, 0))
	at := ended.CompletedAt.Add(2 * state.ClosedAfter)
	for seq, evicted := range map[int64]int{4: 0, 5: 1} {
		s := state.New(domain)
		s.Runs.Put(ended)
		require.Len(t, state.List[state.Run](s.Evict(state.Cutoff{Seq: seq, Time: at})), evicted, "the cutoff is %d", seq)
		require.Equal(t, 1-evicted, s.Runs.Len())
	}
}

func TestLoadedRowsAreNotChanges(t *testing.T) {
	s := state.New(domain)
	s.Load(state.Set(&state.Rows{}, []*state.Run{run("a", 1), run("b", 1)}))
	gone := run("a", 2)
	gone.Deleted = true
	s.Load(state.Set(&state.Rows{}, []*state.Run{gone, run("b", 3)}))
	require.Zero(t, s.Changed().Len())
	require.Equal(t, []*state.Run{run("b", 3)}, state.List[state.Run](s.All()))
	require.Equal(t, 1, s.LiveRuns())
}

func TestCopyIsIndependentOfItsOriginal(t *testing.T) {
	s := state.New(domain)
	s.Runs.Put(run("a", 1))
	s.Tasks.Put(&state.Task{RunID: "a", TaskKey: "t", State: state.TaskReady})
	c := s.Copy()
	require.Zero(t, c.Changed().Len(), "a new copy has no changes")
	c.Runs.Put(run("b", 2))
	c.Tasks.Put(&state.Task{RunID: "a", TaskKey: "t", State: state.TaskReady, AdmittedAt: 1})
	s.Runs.Put(run("c", 3))
	require.Equal(t, []*state.Run{run("a", 1), run("b", 2)}, c.Runs.Rows())
	require.Equal(t, []*state.Run{run("a", 1), run("c", 3)}, s.Runs.Rows())
	require.Equal(t, []int32{0, 1}, []int32{s.SlotsInUse(), c.SlotsInUse()})
	require.NotNil(t, s.NextAdmissible())
	require.Nil(t, c.NextAdmissible())
	require.NoError(t, s.Verify())
	require.NoError(t, c.Verify())
}

func TestRangesStayInTheirRunAndTask(t *testing.T) {
	s := state.New(domain)
	for _, key := range []state.Key3{{A: "q", B: "b", C: "1"}, {A: "r", B: "a", C: "1"}, {A: "r", B: "b", C: "1"}, {A: "r", B: "b", C: "2"}, {A: "r", B: "ba", C: "1"}} {
		s.Deps.Put(&state.Dep{RunID: key.A, Upstream: key.B, Downstream: key.C})
		s.Tasks.Put(&state.Task{RunID: key.A, TaskKey: key.B + key.C})
		for n := range int32(2) {
			s.Attempts.Put(&state.Attempt{RunID: key.A, TaskKey: key.B + key.C, Attempt: 11 - n})
		}
	}
	var found []string
	s.TasksOf("r", func(t *state.Task) bool {
		found = append(found, t.TaskKey)
		return true
	})
	require.Equal(t, []string{"a1", "b1", "b2", "ba1"}, found)
	found = nil
	s.Downstream("r", "b", func(d *state.Dep) bool {
		found = append(found, d.Downstream)
		return true
	})
	require.Equal(t, []string{"1", "2"}, found)
	var attempts []int32
	s.AttemptsOf("r", "b1", func(a *state.Attempt) bool {
		attempts = append(attempts, a.Attempt)
		return true
	})
	require.Equal(t, []int32{10, 11}, attempts, "first to last")
}

func TestWaitingListsGroupsOfOneRun(t *testing.T) {
	s := state.New(domain)
	put := func(entry, group, run string, outcome state.EntryOutcome) {
		s.Entries.Put(&state.Entry{Entry: entry, Group: group, RunID: run, Outcome: outcome})
	}
	put("e2", "g", "r", state.DeadLetter)
	put("e1", "g", "r", state.DeadLetter)
	put("e1", "g", "s", state.DeadLetter) // the group now waits for another run
	put("e3", "g", "ra", state.DeadLetter)
	require.Equal(t, []state.Key2{{A: "e2", B: "g"}}, s.Waiting("r"))
	put("e2", "g", "", state.Folded)
	require.Empty(t, s.Waiting("r"))
	require.NoError(t, s.Verify())
}

func TestTaskAndRunStatesRankAndEnd(t *testing.T) {
	ranks := map[state.TaskState]int{
		state.TaskPlanned: 0, state.TaskBlocked: 1, state.TaskReady: 2, state.TaskDispatched: 3, state.TaskRunning: 4,
		state.TaskRetryWait: 5, state.TaskSkipped: 10, state.TaskCancelled: 11, state.TaskFailed: 12, state.TaskSucceeded: 13,
		"NONSENSE": -1,
	}
	for s, rank := range ranks {
		require.Equal(t, rank, s.Rank(), s)
		require.Equal(t, rank >= 10, s.Terminal(), s)
	}
	for s, terminal := range map[state.RunState]bool{
		state.RunPending: false, state.RunRunning: false, state.RunPaused: false, state.RunCancelling: false,
		state.RunSucceeded: true, state.RunFailed: true, state.RunCancelled: true, state.RunTimedOut: true,
	} {
		require.Equal(t, terminal, s.Terminal(), s)
	}
}

func TestLivenessSkipsOtherTimerTypes(t *testing.T) {
	s := state.New(domain)
	require.Nil(t, s.Liveness())
	s.Timers.Put(&state.Timer{TimerID: "timer:liveness:!", TimerType: "OTHER"})
	require.Nil(t, s.Liveness())
	s.Timers.Put(&state.Timer{TimerID: "timer:liveness:::0:1", TimerType: event.TimerLiveness, State: state.TimerFired})
	require.Equal(t, state.TimerFired, s.Liveness().State)
}
