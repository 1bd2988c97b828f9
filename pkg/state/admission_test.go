package state_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

var domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

// searchAll visits every task, without the index, to find the next task to admit. The test compares its result with
// that of the index.
func searchAll(s *state.State) *state.Task {
	runs := map[string]int32{}
	pools := map[string]int32{}
	all := int32(0)
	for t := range s.Tasks.All {
		if t.AdmittedAt != 0 {
			all++
			runs[t.RunID]++
			pools[t.Pool]++
		}
	}
	var best *state.Task
	for t := range s.Tasks.All {
		run := s.Runs.Get(t.RunID)
		workspace, _ := s.SlotLimit(event.ScopeWorkspace, "")
		pool, limited := s.SlotLimit(event.ScopePool, t.Pool)
		admits := run != nil && (run.State == state.RunPending || run.State == state.RunRunning)
		switch {
		case t.State != state.TaskReady || t.AdmittedAt != 0 || !admits:
		case all >= workspace || limited && pools[t.Pool] >= pool || run.MaxParallelism > 0 && runs[t.RunID] >= run.MaxParallelism:
		case best == nil || cmp.Or(
			cmp.Compare(best.Priority, t.Priority), cmp.Compare(runs[t.RunID], runs[best.RunID]),
			cmp.Compare(t.ReadyAt, best.ReadyAt), cmp.Compare(t.RunID, best.RunID), cmp.Compare(t.TaskKey, best.TaskKey),
		) < 0:
			best = t
		}
	}
	return best
}

// change changes a random run, task or limit.
func change(r *rapid.T, s *state.State) {
	n := func(label string, most int) int { return rapid.IntRange(0, most).Draw(r, label) }
	meta := state.Meta{Deleted: n("deleted", 9) == 0}
	run := fmt.Sprintf("run%d", n("run", 2))
	switch n("what", 5) {
	case 0:
		states := []state.RunState{state.RunPending, state.RunRunning, state.RunCancelling, state.RunSucceeded}
		s.Runs.Put(&state.Run{RunID: run, State: states[n("state", 3)], MaxParallelism: int32(n("parallelism", 2)), Meta: meta})
	case 1:
		limit := &state.Limit{Scope: event.ScopePool, Name: string(rune('a' + n("pool", 2))), Slots: int32(n("slots", 3)), Meta: meta}
		if limit.Name == "c" {
			limit.Scope, limit.Name = event.ScopeWorkspace, ""
		}
		s.Limits.Put(limit)
	default:
		key := n("key", 7)
		t := &state.Task{
			RunID: run, TaskKey: fmt.Sprint(key), Pool: []string{"", "a", "b"}[key%3], State: state.TaskReady,
			Priority: int32(n("priority", 2) - 1), ReadyAt: event.Time(1 + n("ready", 2)), Meta: meta,
		}
		switch n("task state", 3) {
		case 0:
			t.AdmittedAt = 1
		case 1:
			t.State = state.TaskBlocked
		}
		s.Tasks.Put(t)
	}
}

func TestNextAdmissibleEqualsFullSearch(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := state.New(domain)
		for range rapid.IntRange(1, 60).Draw(r, "changes") {
			change(r, s)
			if have, want := s.NextAdmissible(), searchAll(s); have != want {
				r.Fatalf("NextAdmissible returned %+v, want %+v", have, want)
			}
			if err := s.Verify(); err != nil {
				r.Fatalf("%v", err)
			}
		}
	})
}

func TestReadyTasksFollowAdmissionOrder(t *testing.T) {
	s := state.New(domain)
	put := func(run, key, pool string, priority int32, readyAt event.Time) {
		s.Tasks.Put(&state.Task{RunID: run, TaskKey: key, Pool: pool, Priority: priority, ReadyAt: readyAt, State: state.TaskReady})
	}
	put("r", "late", "", 0, 2)
	put("r", "b", "", 0, 1)
	put("r", "a", "", 0, 1)
	put("r", "first", "", 1, 9)
	put("r", "pooled", "db", 5, 1)
	put("q", "other", "", 0, 1)
	var keys []string
	list := func(t *state.Task) bool {
		keys = append(keys, t.TaskKey)
		return true
	}
	s.ReadyTasks("r", list)
	require.Equal(t, []string{"first", "a", "b", "late", "pooled"}, keys)
	keys = nil
	s.ReadyTasks("r", func(t *state.Task) bool { return list(t) && len(keys) < 2 })
	require.Equal(t, []string{"first", "a"}, keys)
}

func TestSlotsInUseAreCounted(t *testing.T) {
	s := state.New(domain)
	for i, pool := range []string{"a", "a", "b"} {
		s.Tasks.Put(&state.Task{RunID: "r", TaskKey: fmt.Sprint(i), Pool: pool, State: state.TaskRunning, AdmittedAt: 1})
	}
	s.Tasks.Put(&state.Task{RunID: "q", TaskKey: "x", Pool: "a", State: state.TaskReady, AdmittedAt: 1})
	count := func() []int32 {
		return []int32{s.SlotsInUse(), s.SlotsInUseByRun("r"), s.SlotsInUseByRun("q"), s.SlotsInUseInPool("a"), s.SlotsInUseInPool("b"), s.SlotsInUseInPool("")}
	}
	require.Equal(t, []int32{4, 3, 1, 3, 1, 0}, count())
	s.Tasks.Put(&state.Task{RunID: "r", TaskKey: "0", Pool: "a", State: state.TaskSucceeded})
	s.Tasks.Put(&state.Task{RunID: "q", TaskKey: "x", Pool: "a", Meta: state.Meta{Deleted: true}})
	require.Equal(t, []int32{2, 2, 0, 1, 1, 0}, count())
	require.NoError(t, s.Verify())
}

func TestDueDeadlinesAreSorted(t *testing.T) {
	s := state.New(domain)
	s.Runs.Put(&state.Run{RunID: "r", State: state.RunRunning, TimeoutSec: 100, CreatedAt: 1_000_000})
	s.Tasks.Put(&state.Task{
		RunID: "r", TaskKey: "a", State: state.TaskRunning, StartedAt: 2_000_000, AdmittedAt: 1, TimeoutSec: 5, HeartbeatTimeoutSec: 7,
	})
	s.Heartbeats.Put(&state.Heartbeat{RunID: "r", TaskKey: "a", LastHeartbeatAt: 3_000_000})
	s.Heartbeats.Put(&state.Heartbeat{RunID: "r", TaskKey: "unknown", LastHeartbeatAt: 1})
	due := s.Due(17_000_000)
	require.Equal(t, []state.DeadlineKind{state.DeadlineHeartbeat, state.DeadlineTask}, []state.DeadlineKind{due[0].Kind, due[1].Kind})
	require.Equal(t, []event.Time{10_000_000, 17_000_000}, []event.Time{due[0].At, due[1].At})
	require.Len(t, s.Due(16_999_999), 1)
	next, ok := s.NextDeadline()
	require.True(t, ok)
	require.Equal(t, due[0], next)
	s.Runs.Put(&state.Run{RunID: "r", State: state.RunCancelling, CancelRequestedAt: 1_000_000, CancelGraceSec: 2})
	require.Equal(t, state.DeadlineCancel, s.Due(3_000_000)[0].Kind)
	require.NoError(t, s.Verify())
}

func TestExpiredRunKeysOldestFirst(t *testing.T) {
	s := state.New(domain)
	for i, key := range []string{"c", "a", "b"} {
		s.RunKeys.Put(&state.RunKey{RunKey: key, ExpiresAt: event.Time(i + 1)})
	}
	keys := func(now event.Time, limit int) []string {
		var found []string
		for _, row := range s.ExpiredRunKeys(now, limit) {
			found = append(found, row.RunKey)
		}
		return found
	}
	require.Equal(t, []string{"c", "a"}, keys(2, 9))
	require.Equal(t, []string{"c"}, keys(9, 1))
	s.RunKeys.Put(&state.RunKey{RunKey: "c", ExpiresAt: 9})
	require.Equal(t, []string{"a", "b", "c"}, keys(9, 9))
	require.True(t, slices.IsSorted(keys(9, 9)))
	require.NoError(t, s.Verify())
}
