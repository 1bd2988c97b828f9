package fold_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

func setLimit(w *foldtest.World, scope, name string, slots int32) {
	w.MustFold(&event.LimitSet{CommandID: w.ID(), Scope: scope, Name: name, Slots: slots})
}

// pooled returns a task with a pool and a priority.
func pooled(key, pool string, priority int32) event.TaskDef {
	def := foldtest.Task(key)
	def.Pool, def.Priority = pool, priority
	return def
}

// running returns the keys of the tasks with slots, by run and then by key.
func running(w *foldtest.World, runs ...string) string {
	var keys []string
	for _, run := range runs {
		w.State.TasksOf(run, func(t *state.Task) bool {
			if t.AdmittedAt != 0 {
				keys = append(keys, t.TaskKey)
			}
			return true
		})
	}
	return strings.Join(keys, " ")
}

func TestLimitsAreExact(t *testing.T) {
	w := foldtest.New(t)
	setLimit(w, event.ScopeWorkspace, "", 4)
	setLimit(w, event.ScopePool, "db", 2)
	first := w.RunWith(event.RunTriggered{MaxParallelism: 2}, foldtest.Task("a1"), foldtest.Task("a2"), foldtest.Task("a3"))
	require.Equal(t, "a1 a2", running(w, first), "the run's own limit")
	second := w.Run(pooled("b1", "db", 0), pooled("b2", "db", 0), pooled("b3", "db", 0), pooled("c1", "api", 0))
	require.Equal(t, "a1 a2 b1 b2", running(w, first, second), "the workspace and the pool are full")

	w.MustFold(w.Finished(first, "a1", 1, event.Succeeded))
	require.Equal(t, "a2 a3 b1 b2", running(w, first, second), "the run with fewer running tasks goes first")
	w.MustFold(w.Finished(first, "a2", 1, event.Succeeded))
	require.Equal(t, "a3 b1 b2 c1", running(w, first, second), "b3 precedes c1, but its pool is full")
	w.MustFold(w.Finished(first, "a3", 1, event.Succeeded))
	require.Equal(t, "b1 b2 c1", running(w, first, second), "the pool is full though the workspace is not")
	w.MustFold(w.Finished(second, "b1", 1, event.Succeeded))
	require.Equal(t, "b2 b3 c1", running(w, first, second))
}

func TestRetriesAndTimeoutsFreeSlots(t *testing.T) {
	w := foldtest.New(t)
	setLimit(w, event.ScopeWorkspace, "", 1)
	run := w.Run(foldtest.Retrying("a", 2), foldtest.Task("b"))
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	require.Equal(t, "b", running(w, run))
	w.Now = w.Timer(event.TimerRetry).FireAt.Time()
	w.MustFold(w.Fire(w.Timer(event.TimerRetry)))
	require.Equal(t, "b", running(w, run), "a is ready again and waits")
	require.Equal(t, state.TaskReady, w.Task(run, "a").State)
	w.MustFold(w.Started(run, "b", 1))
	fireLiveness(t, w)
	require.Equal(t, "a", running(w, run))
}

func TestFullPoolOrRunDoesNotBlockOthers(t *testing.T) {
	w := foldtest.New(t)
	setLimit(w, event.ScopePool, "db", 1)
	capped := w.RunWith(event.RunTriggered{MaxParallelism: 1}, pooled("a1", "", 9), pooled("a2", "", 9))
	run := w.Run(pooled("b1", "db", 9), pooled("b2", "db", 9), pooled("c", "", 0), pooled("d", "api", -5))
	require.Equal(t, "a1 b1 c d", running(w, capped, run))
}

func TestAdmissionOrder(t *testing.T) {
	w := foldtest.New(t)
	setLimit(w, event.ScopeWorkspace, "", 0)
	first := w.Run(pooled("z", "", 5), pooled("b", "", 0), pooled("a", "", 0))
	w.Pass(time.Second)
	second := w.Run(pooled("y", "", 5), pooled("d", "x", 0), pooled("c", "", 0))
	var order []string
	for slots := int32(1); slots <= 6; slots++ {
		before := strings.Fields(running(w, first, second))
		setLimit(w, event.ScopeWorkspace, "", slots)
		after := strings.Fields(running(w, first, second))
		require.Len(t, after, int(slots))
		for _, key := range after {
			if !strings.Contains(strings.Join(before, " "), key) {
				order = append(order, key)
			}
		}
	}
	require.Equal(t, []string{"z", "y", "a", "c", "b", "d"}, order)
}

func TestLimitBelowSlotsInUseStopsNoTask(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(pooled("a", "db", 0), pooled("b", "db", 0), pooled("c", "db", 0), pooled("d", "db", 0))
	require.Equal(t, "a b c d", running(w, run), "a pool without a limit is not limited")
	setLimit(w, event.ScopePool, "db", 1)
	require.Equal(t, "a b c d", running(w, run), "running tasks continue")
	later := w.Run(pooled("e", "db", 0))
	for _, key := range []string{"a", "b", "c"} {
		w.MustFold(w.Finished(run, key, 1, event.Succeeded))
		require.Empty(t, running(w, later))
	}
	w.MustFold(w.Finished(run, "d", 1, event.Succeeded))
	require.Equal(t, "e", running(w, later))
}

func TestLatestLimitCommandWins(t *testing.T) {
	w := foldtest.New(t)
	early := w.Group(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 1})
	late := w.Group(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopeWorkspace, Slots: 2})
	require.Equal(t, state.Folded, w.Apply(late).Row.Outcome)
	require.Equal(t, state.Stale, w.Apply(early).Row.Outcome)
	late.Entry = w.ID() // the same event, in another entry
	require.Equal(t, state.NoChange, w.Apply(late).Row.Outcome)
	slots, _ := w.State.SlotLimit(event.ScopeWorkspace, "")
	require.Equal(t, int32(2), slots)
}

func TestRemovedLimitStaysRemoved(t *testing.T) {
	w := foldtest.New(t)
	limit := func(slots int32, remove bool) fold.Group {
		return w.Group(&event.LimitSet{CommandID: w.ID(), Scope: event.ScopePool, Name: "db", Slots: slots, Remove: remove})
	}
	first, second, removed := limit(1, false), limit(2, false), limit(1, true)
	require.Equal(t, state.Folded, w.Apply(first).Row.Outcome)
	run := w.Run(pooled("a", "db", 0), pooled("b", "db", 0))
	require.Equal(t, "a", running(w, run))
	require.Equal(t, state.Folded, w.Apply(removed).Row.Outcome)
	require.Equal(t, "a b", running(w, run), "the pool is not limited")

	late := w.Apply(second)
	require.Equal(t, state.Stale, late.Row.Outcome)
	require.Equal(t, "a later command has removed the limit", late.Row.Detail)
	for _, again := range []fold.Group{first, removed} {
		again.Entry = w.ID()
		require.NotEqual(t, state.Folded, w.Apply(again).Row.Outcome)
	}
	_, limited := w.State.SlotLimit(event.ScopePool, "db")
	require.False(t, limited)
	require.Equal(t, state.Folded, w.Apply(limit(3, false)).Row.Outcome)
	slots, limited := w.State.SlotLimit(event.ScopePool, "db")
	require.True(t, limited)
	require.Equal(t, int32(3), slots)
}

func TestDefaultWorkspaceLimit(t *testing.T) {
	slots, limited := foldtest.New(t).State.SlotLimit(event.ScopeWorkspace, "")
	require.True(t, limited)
	require.Equal(t, int32(state.DefaultWorkspaceSlots), slots)
}
