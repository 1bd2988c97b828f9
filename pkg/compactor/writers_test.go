package compactor_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// publishes counts the attempts to create a manifest, including the attempts that lose a race.
func (w *world) publishes() *int {
	n := new(int)
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if _, _, err := manifest.ParseKey(key); err == nil && op == faultblob.Create {
			*n++
		}
		return faultblob.None
	})
	return n
}

// Two instances receive entries in turn. This test fails if Step does not reload first.
func TestSharedCompactorReloadsBeforeFolding(t *testing.T) {
	for shared, want := range map[bool]int{true: 4, false: 5} {
		w := newWorld(t)
		w.options.Shared = shared
		one, other := w.open("one"), w.open("other")
		run, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
		w.step(one, entry)
		_, entry = w.trigger(foldtest.Task("a"))
		w.step(other, entry) // this instance does not know that others publish, and loses a race
		n := w.publishes()
		w.step(one, w.append(w.Finished(run, "a", 1, event.Succeeded))) // this instance also loses a race
		w.step(other, w.append(w.Finished(run, "b", 1, event.Succeeded)))
		w.clock.pass(6 * time.Second)
		_, entry = w.trigger(foldtest.Task("a"))
		w.step(other, entry)
		require.Equal(t, want, *n, "shared: %v", shared)
		w.verify()
	}
}

// Two instances learn of an entry: one from the entry's writer, the other from a notification. The second instance
// must find that the entry is already folded.
func TestNotifiedEntryLingersForOtherWriter(t *testing.T) {
	w := newWorld(t)
	w.options.Shared, w.clock.stay = true, true
	one, other := w.open("one"), w.open("other")
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(one, entry)
	// Now the first compactor knows of another writer.
	w.step(other, w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: event.ScopeWorkspace, Slots: 9}))
	stop := w.run(other)
	defer stop()

	_, entry = w.trigger(foldtest.Task("a"))
	began := w.clock.Now()
	w.step(one, entry)
	n := w.publishes()
	result, err := other.Compact(t.Context(), compactor.Request{Entries: []compactor.Entry{{ID: entry.ID}}, Notified: true})
	require.NoError(t, err)
	require.Zero(t, result.Folded)
	require.Zero(t, *n)
	require.GreaterOrEqual(t, w.clock.Now().Sub(began), 300*time.Millisecond)

	_, entry = w.trigger(foldtest.Task("a"))
	began = w.clock.Now()
	result, err = other.Compact(t.Context(), compactor.Request{Entries: []compactor.Entry{entry}})
	require.NoError(t, err)
	require.Equal(t, 1, result.Folded)
	require.Less(t, w.clock.Now().Sub(began), 300*time.Millisecond, "handed-over entries do not linger")

	_, entry = w.trigger(foldtest.Task("a"))
	result, err = other.Compact(t.Context(), compactor.Request{Entries: []compactor.Entry{{ID: entry.ID}}, Notified: true})
	require.NoError(t, err)
	require.Equal(t, 1, result.Folded, "no other writer had it")
}

func TestLoneCompactorDoesNotLinger(t *testing.T) {
	w := newWorld(t)
	w.options.Shared, w.clock.stay = true, true
	c := w.open("alone")
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	stop := w.run(c)
	defer stop()
	_, entry = w.trigger(foldtest.Task("a"))
	began := w.clock.Now()
	_, err := c.Compact(t.Context(), compactor.Request{Entries: []compactor.Entry{{ID: entry.ID}}, Notified: true})
	require.NoError(t, err)
	require.Less(t, w.clock.Now().Sub(began), 300*time.Millisecond)
}

// run runs a compactor until stop is called.
func (w *world) run(c *compactor.Compactor) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := c.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}
