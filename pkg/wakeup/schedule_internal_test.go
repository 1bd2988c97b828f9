package wakeup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// noon is a minute at which the test's domain has a slot.
var noon = slotAfter(foldtest.Domain, event.At(foldtest.Epoch))

func minutes(n float64) event.Time { return noon.Add(time.Duration(n * float64(time.Minute))) }

// waiting returns a state in which a task waits for its retry. The parameter wait is how long after now the retry is
// due. If the retry is lost, the state is stuck from then on.
func waiting(t *testing.T, now event.Time, wait time.Duration) *state.State {
	t.Helper()
	w := foldtest.New(t)
	w.Now = now.Time()
	def := foldtest.Retrying("a", 2)
	def.RetryInitialDelayMS, def.RetryMaxDelayMS = wait.Milliseconds(), wait.Milliseconds()
	run := w.Run(def)
	w.MustFold(w.Finished(run, "a", 1, event.Failed))
	for _, timer := range w.State.Timers.Rows() {
		w.MustFold(&event.TimerEnqueued{TimerID: timer.TimerID, Generation: timer.Generation, QueueTaskName: timer.QueueTaskName})
	}
	return w.State
}

func TestSlotsOfADomain(t *testing.T) {
	for _, m := range []float64{0, 0.5, 1, 5, 9, 9.99} {
		require.Equal(t, minutes(10), slotAfter(foldtest.Domain, minutes(m)), "%g minutes", m)
	}
	require.Equal(t, minutes(20), slotAfter(foldtest.Domain, minutes(10)))
	offsets := map[event.Time]bool{}
	for _, workspace := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		offsets[slotAfter(ids.Domain{Tenant: "acme", Workspace: workspace}, noon)] = true
	}
	require.Greater(t, len(offsets), 2)
}

func TestNextWakeup(t *testing.T) {
	busy := foldtest.New(t)
	busy.Now = minutes(3).Time()
	busy.Run(foldtest.Task("a"))
	now := minutes(3)
	far := waiting(t, now, 6*time.Hour)
	idle := state.New(foldtest.Domain)
	type at = manifest.Wakeup
	for name, tc := range map[string]struct {
		parent manifest.Wakeup
		state  *state.State
		swept  Swept
		want   manifest.Wakeup
	}{
		"an idle domain":                     {at{}, idle, Swept{}, at{}},
		"work that may get stuck":            {at{}, busy.State, Swept{}, at{At: minutes(10)}},
		"the wakeup stays within a slot":     {at{At: minutes(10)}, idle, Swept{}, at{At: minutes(10)}},
		"a deadline becomes earlier":         {at{At: minutes(360)}, busy.State, Swept{}, at{At: minutes(10)}},
		"a distant timer":                    {at{}, far, Swept{}, at{At: minutes(370)}},
		"a distant wakeup stays":             {at{At: minutes(370)}, idle, Swept{}, at{At: minutes(370)}},
		"an overdue wakeup stays":            {at{At: minutes(-50)}, busy.State, Swept{}, at{At: minutes(-50)}},
		"a wakeup that was lost":             {at{At: minutes(-60)}, busy.State, Swept{}, at{At: minutes(10)}},
		"a sweep releases it":                {at{At: minutes(0)}, idle, Swept{Through: minutes(0)}, at{Through: minutes(0)}},
		"a sweep schedules the next":         {at{At: minutes(0)}, busy.State, Swept{Through: minutes(0)}, at{At: minutes(10), Through: minutes(0)}},
		"a sweep has found something":        {at{At: minutes(0)}, busy.State, Swept{Through: minutes(0), Soon: true}, at{At: minutes(4), Through: minutes(0)}},
		"a sweep has found the end":          {at{At: minutes(0)}, idle, Swept{Through: minutes(0), Soon: true}, at{Through: minutes(0)}},
		"never at a released minute":         {at{Through: minutes(15)}, busy.State, Swept{}, at{At: minutes(16), Through: minutes(15)}},
		"never at a released minute, either": {at{Through: minutes(15)}, busy.State, Swept{Soon: true}, at{At: minutes(16), Through: minutes(15)}},
		"the release never decreases":        {at{Through: minutes(2)}, idle, Swept{Through: minutes(1)}, at{Through: minutes(2)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := Schedule{Domain: foldtest.Domain}
			require.Equal(t, tc.want, s.Next(tc.parent, tc.state, now, tc.swept))
			s.Off = true
			off := s.Next(tc.parent, tc.state, now, tc.swept)
			require.Equal(t, tc.want.Through, off.Through)
			require.Contains(t, []event.Time{0, tc.parent.At}, off.At, "no new wakeup")
		})
	}
}

func TestSweepReleasesWakeups(t *testing.T) {
	idle := state.New(foldtest.Domain)
	require.Equal(t, Swept{Through: minutes(2)}, After(idle, minutes(3), minutes(2), false))
	require.Equal(t, Swept{Through: minutes(2), Soon: true}, After(idle, minutes(3), minutes(2), true))
	require.Equal(t, Swept{Through: minutes(18)}, After(idle, minutes(3), minutes(500), false), "the sweeper's clock is wrong")
	busy := foldtest.New(t)
	busy.Now = noon.Time()
	busy.Run(foldtest.Task("a"))
	require.True(t, After(busy.State, minutes(600), minutes(2), false).Soon, "its dispatch is overdue")
}

func TestSoonKeepsEarlierWakeup(t *testing.T) {
	for name, tc := range map[string]struct{ before, want manifest.Wakeup }{
		"none":            {manifest.Wakeup{}, manifest.Wakeup{At: minutes(4)}},
		"an earlier one":  {manifest.Wakeup{At: minutes(-70)}, manifest.Wakeup{At: minutes(-70)}},
		"a later one":     {manifest.Wakeup{At: minutes(10)}, manifest.Wakeup{At: minutes(4)}},
		"released":        {manifest.Wakeup{At: minutes(1), Through: minutes(2)}, manifest.Wakeup{At: minutes(4), Through: minutes(2)}},
		"released so far": {manifest.Wakeup{Through: minutes(9)}, manifest.Wakeup{At: minutes(10), Through: minutes(9)}},
	} {
		require.Equal(t, tc.want, Soon(tc.before, minutes(3.5)), name)
	}
}

func TestScheduleCreatesEachWakeupOnce(t *testing.T) {
	writes, fail := 0, true
	store := faultblob.New(memblob.New(memblob.Options{Now: noon.Time}), func(faultblob.Op, string) faultblob.Fault {
		writes++
		if fail {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	s := Schedule{Domain: foldtest.Domain, Store: store}
	parent, next := manifest.Wakeup{At: minutes(0)}, manifest.Wakeup{At: minutes(10)}
	create := func() error { return s.Create(t.Context(), parent, next)() }
	require.ErrorIs(t, create(), faultblob.ErrInjected)
	fail = false
	require.NoError(t, create())
	require.NoError(t, create())
	require.Equal(t, 2, writes, "it was created")
	s.Forget()
	require.NoError(t, create())
	require.Equal(t, 3, writes, "another timeline may have deleted it")
	parent = next
	s.Forget()
	require.NoError(t, create())
	next = manifest.Wakeup{}
	require.NoError(t, create())
	require.Equal(t, 3, writes, "the parent has it, and no wakeup is needed")
}
