package compactor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// withWakeups returns a world whose compactors create wakeups.
func withWakeups(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.options.Wakeups = true
	return w
}

// wakeups returns the minutes of the existing wakeups.
func (w *world) wakeups() []event.Time {
	w.t.Helper()
	var at []event.Time
	for object, err := range w.blobs.List(w.t.Context(), blob.ListOptions{Prefix: wakeup.Prefix}) {
		require.NoError(w.t, err)
		m, err := wakeup.ParseKey(object.Key)
		require.NoError(w.t, err)
		require.Equal(w.t, foldtest.Domain, m.Domain)
		at = append(at, m.At)
	}
	return at
}

// due returns the wakeup fields of the newest revision.
func (w *world) due() manifest.Wakeup {
	w.t.Helper()
	m, err := w.manifests().Load(w.t.Context())
	require.NoError(w.t, err)
	return m.Wakeup
}

// sweep waits until the first wakeup is due and sweeps as a sweeper does, but does not delete the
// wakeup.
func (w *world) sweep(c *compactor.Compactor) compactor.Result {
	w.t.Helper()
	at := w.wakeups()[0]
	w.clock.pass(max(0, at.Sub(event.At(w.clock.Now()))))
	result, err := c.Step(w.t.Context(), compactor.Request{Barrier: true, Sweep: true, Through: at})
	require.NoError(w.t, err)
	return result
}

func (w *world) delete(at event.Time) {
	w.t.Helper()
	require.NoError(w.t, wakeup.Delete(w.t.Context(), w.blobs, wakeup.Wakeup{At: at, Domain: foldtest.Domain}))
}

// endOnly ends the only task of a run.
func (w *world) endOnly(c *compactor.Compactor, run string) {
	w.t.Helper()
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
}

func TestWakeupIsCreatedBeforeTheFirstPublish(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	run, entry := w.trigger(foldtest.Task("a"))
	w.faults(func(_ faultblob.Op, key string) faultblob.Fault {
		if strings.HasPrefix(key, wakeup.Prefix) {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err := c.Step(t.Context(), compactor.Request{Entries: []compactor.Entry{entry}})
	require.ErrorIs(t, err, faultblob.ErrInjected)
	_, err = w.manifests().Load(t.Context())
	require.ErrorIs(t, err, manifest.ErrNone)

	w.faults(nil)
	w.step(c, entry)
	marked := w.wakeups()
	require.Len(t, marked, 1)
	require.Equal(t, manifest.Wakeup{At: marked[0]}, w.due())
	wait := marked[0].Sub(event.At(w.clock.Now()))
	require.Positive(t, wait)
	require.LessOrEqual(t, wait, 11*time.Minute)

	w.endOnly(c, run)
	require.Equal(t, manifest.Wakeup{At: marked[0]}, w.due(), "the wakeup stays until a sweep")
}

// This test fails if each run of a busy domain creates a wakeup.
func TestWakeupIsCreatedOncePerSlot(t *testing.T) {
	w := withWakeups(t)
	creates := 0
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, wakeup.Prefix) {
			creates++
		}
		return faultblob.None
	})
	one, other := w.open("one"), w.open("other")
	for i := range 60 {
		w.clock.pass(time.Minute)
		run, entry := w.trigger(foldtest.Task("a"))
		c := one
		if i%2 == 1 {
			c = other
		}
		w.step(c, entry)
		w.endOnly(c, run)
		if at := w.wakeups()[0]; at <= event.At(w.clock.Now()) {
			w.delete(w.sweep(other).ReleasedThrough)
		}
	}
	require.LessOrEqual(t, creates, 2*7, "per instance; the second create finds the wakeup")
	require.GreaterOrEqual(t, creates, 5)
}

func TestSweepOfIdleDomainReleasesWakeups(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.endOnly(c, run)
	marked := w.wakeups()
	result := w.sweep(c)
	require.Equal(t, marked[0], result.ReleasedThrough)
	require.Equal(t, manifest.Wakeup{Through: marked[0]}, w.due())
	again := w.sweep(w.open("another, which has just started"))
	require.Equal(t, result, again, "nothing new to publish")
	w.delete(marked[0])
	require.Empty(t, w.wakeups())
}

func TestSweepCreatesNextWakeupBeforeRelease(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	def := foldtest.Task("a")
	def.HeartbeatTimeoutSec = 7200
	run, entry := w.trigger(def)
	w.step(c, entry)
	w.step(c, w.append(w.Started(run, "a", 1)))
	for _, row := range stateOf(c).Timers.Rows() {
		w.step(c, w.append(&event.TimerEnqueued{TimerID: row.TimerID, Generation: row.Generation, QueueTaskName: row.QueueTaskName}))
	}
	first := w.wakeups()[0]
	w.faults(func(_ faultblob.Op, key string) faultblob.Fault {
		if strings.HasPrefix(key, wakeup.Prefix) {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err := c.Step(t.Context(), compactor.Request{Barrier: true, Sweep: true, Through: first})
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.Equal(t, manifest.Wakeup{At: first}, w.due(), "no release before the next wakeup exists")

	w.faults(nil)
	require.Equal(t, first, w.sweep(c).ReleasedThrough)
	require.Equal(t, []event.Time{first, first.Add(10 * time.Minute)}, w.wakeups())
	require.Equal(t, manifest.Wakeup{At: first.Add(10 * time.Minute), Through: first}, w.due())
}

func TestSweepAfterFindingRepeatsInAMinute(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.step(c, entry)
	first := w.wakeups()[0]
	w.append(w.Finished(run, "a", 1, event.Succeeded)) // not announced
	result := w.sweep(c)
	require.Equal(t, 1, result.Folded)
	require.Equal(t, manifest.Wakeup{At: first.Add(time.Minute), Through: first}, w.due())
	w.delete(first)
	require.Equal(t, 0, w.sweep(c).Folded)
	require.Equal(t, first.Add(2*time.Minute), w.due().At, "b is ready and its dispatch is overdue")
}

// A later listing does not find a folded entry again. So a sweep that fails after the fold must
// remember that it found an unannounced entry.
func TestFailedSweepRemembersUnannouncedEntries(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	first := w.wakeups()[0]
	ends, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.append(w.Finished(ends, "a", 1, event.Succeeded)) // not announced
	w.clock.pass(first.Sub(event.At(w.clock.Now())))
	w.step(c, w.append(w.Started(run, "a", 1))) // the run has not ended
	for _, row := range stateOf(c).Timers.Rows() {
		w.step(c, w.append(&event.TimerEnqueued{TimerID: row.TimerID, Generation: row.Generation, QueueTaskName: row.QueueTaskName}))
	}
	w.faults(func(_ faultblob.Op, key string) faultblob.Fault {
		if strings.HasPrefix(key, wakeup.Prefix) {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	sweep := compactor.Request{Barrier: true, Sweep: true, Through: first}
	_, err := c.Step(t.Context(), sweep)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	w.faults(nil)
	result, err := c.Step(t.Context(), sweep)
	require.NoError(t, err)
	require.Equal(t, 0, result.Folded, "folded by the failed sweep")
	require.Equal(t, manifest.Wakeup{At: first.Add(time.Minute), Through: first}, w.due())
}

// The announcement of a young entry may be on its way.
func TestYoungEntryDoesNotCountAsUnannounced(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.step(c, entry)
	first := w.wakeups()[0]
	w.clock.pass(first.Sub(event.At(w.clock.Now())))
	w.step(c, w.append(w.Started(run, "a", 1)))
	fresh := w.append(w.Finished(run, "a", 1, event.Succeeded))
	for _, timer := range stateOf(c).Timers.Rows() {
		w.step(c, w.append(&event.TimerEnqueued{TimerID: timer.TimerID, Generation: timer.Generation, QueueTaskName: timer.QueueTaskName}))
	}
	require.Equal(t, 1, w.sweep(c).Folded)
	require.NotEmpty(t, fresh.ID)
	require.Equal(t, manifest.Wakeup{At: first.Add(10 * time.Minute), Through: first}, w.due())
}

func TestDistantTimerGetsLateWakeup(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	waits := foldtest.Retrying("w", 2)
	waits.RetryInitialDelayMS, waits.RetryMaxDelayMS = (6 * time.Hour).Milliseconds(), (6 * time.Hour).Milliseconds()
	retried, entry := w.trigger(waits)
	w.step(c, entry)
	w.step(c, w.append(w.Finished(retried, "w", 1, event.Failed)))
	var fires event.Time
	for _, timer := range stateOf(c).Timers.Rows() {
		if timer.TimerType == event.TimerRetry {
			fires = timer.FireAt
			w.step(c, w.append(&event.TimerEnqueued{TimerID: timer.TimerID, QueueTaskName: timer.QueueTaskName}))
		}
	}
	w.delete(w.sweep(c).ReleasedThrough)
	far := w.due().At
	require.Greater(t, far, fires)
	require.LessOrEqual(t, far.Sub(fires), 13*time.Minute)
	require.Equal(t, []event.Time{far}, w.wakeups())

	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	near := w.due().At
	require.Less(t, near.Sub(event.At(w.clock.Now())), 12*time.Minute, "a deadline has become earlier")
	w.endOnly(c, run)
	w.delete(w.sweep(c).ReleasedThrough)
	require.Equal(t, []event.Time{far}, w.wakeups(), "the distant wakeup still exists")
	require.Equal(t, far, w.due().At)
}

// INV-5, for any interleaving of sweep and publish. A slow writer relies on the wakeup that the parent of its manifest
// names. While the writer publishes, the compactor that serves a sweep publishes that this wakeup may be deleted, and
// the sweeper deletes it. The writer must then create a later wakeup before it publishes again.
func TestINV5PublishReplacesDeletedWakeup(t *testing.T) {
	w := withWakeups(t)
	slow := w.open("slow")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(slow, entry)
	w.endOnly(slow, run)
	quick := w.open("quick")
	first := w.wakeups()[0]
	_, entry = w.trigger(foldtest.Task("a"))
	swept := false
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op != faultblob.Create || swept || !strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) {
			return faultblob.None
		}
		swept = true
		w.clock.pass(first.Sub(event.At(w.clock.Now())))
		result, err := quick.Step(t.Context(), compactor.Request{Sweep: true, Through: first}) // the sweeper listed the wakeups before the publish
		require.NoError(t, err)
		require.Equal(t, first, result.ReleasedThrough)
		w.delete(first)
		require.Empty(t, w.wakeups(), "the domain is idle")
		return faultblob.None
	})
	w.step(slow, entry)
	require.True(t, swept)
	require.Equal(t, []event.Time{w.due().At}, w.wakeups())
	require.Greater(t, w.due().At, first)
}

// A sweep may find and delete a wakeup whose writer has not published yet.
func TestINV5PublishReplacesUnpublishedWakeup(t *testing.T) {
	w := withWakeups(t)
	slow, quick := w.open("slow"), w.open("quick")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(quick, entry)
	w.endOnly(quick, run)
	w.delete(w.sweep(quick).ReleasedThrough)
	_, entry = w.trigger(foldtest.Task("a"))
	swept := false
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op != faultblob.Create || swept || !strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) {
			return faultblob.None
		}
		swept = true
		at := w.wakeups()[0]
		w.clock.pass(at.Sub(event.At(w.clock.Now())))
		result, err := quick.Step(t.Context(), compactor.Request{Sweep: true, Through: at})
		require.NoError(t, err)
		require.Equal(t, at, result.ReleasedThrough)
		w.delete(at)
		return faultblob.None
	})
	w.step(slow, entry)
	require.True(t, swept)
	require.Equal(t, []event.Time{w.due().At}, w.wakeups())
}

func TestFullSweepCreatesMissingWakeup(t *testing.T) {
	w := newWorld(t)
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(w.open("of a build without wakeups"), entry)
	require.Empty(t, w.wakeups())
	w.options.Wakeups = true
	_, err := w.open("c").Step(t.Context(), compactor.Request{Barrier: true, Sweep: true})
	require.NoError(t, err)
	require.Equal(t, []event.Time{w.due().At}, w.wakeups())
}

func TestLostWakeupIsCreatedAgain(t *testing.T) {
	for name, again := range map[string]func(*world, *compactor.Compactor){
		"by a full sweep": func(w *world, c *compactor.Compactor) {
			_, err := c.Step(w.t.Context(), compactor.Request{Barrier: true, Sweep: true})
			require.NoError(w.t, err)
		},
		"by the next publish": func(w *world, c *compactor.Compactor) {
			_, entry := w.trigger(foldtest.Task("b"))
			w.step(c, entry)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := withWakeups(t)
			c := w.open("c")
			_, entry := w.trigger(foldtest.Task("a"))
			w.step(c, entry)
			require.Len(t, w.wakeups(), 1)
			require.NoError(t, w.blobs.Delete(t.Context(), wakeup.Wakeup{At: w.due().At, Domain: foldtest.Domain}.Key()))
			w.clock.pass(2 * time.Hour)
			again(w, c)
			require.Equal(t, []event.Time{w.due().At}, w.wakeups())
		})
	}
}

func TestSweepDoesNotReleaseFutureWakeups(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	result, err := c.Step(t.Context(), compactor.Request{Barrier: true, Sweep: true, Through: event.At(w.clock.Now().Add(1000 * time.Hour))})
	require.NoError(t, err)
	require.Equal(t, wakeup.Minute(event.At(w.clock.Now().Add(15*time.Minute))), result.ReleasedThrough)
	require.Contains(t, w.wakeups(), w.due().At)
}

func stateOf(c *compactor.Compactor) *state.State {
	snap, _ := c.Latest().Get()
	return snap.State
}
