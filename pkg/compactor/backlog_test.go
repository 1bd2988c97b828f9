package compactor_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// atPublish records the backlog of a compactor immediately before the compactor creates its next manifest. The
// returned function returns the recorded backlog.
func (w *world) atPublish(c *compactor.Compactor) func() compactor.Backlog {
	var mu sync.Mutex
	var seen []compactor.Backlog
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "manifests/") {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, c.Backlog())
		}
		return faultblob.None
	})
	return func() compactor.Backlog {
		mu.Lock()
		defer mu.Unlock()
		require.Len(w.t, seen, 1)
		return seen[0]
	}
}

func TestBacklogHasOldestAnnouncedEntry(t *testing.T) {
	w := newWorld(t)
	w.clock.stay = true
	c := w.open("c")
	require.Zero(t, c.Backlog())
	_, first := w.trigger(foldtest.Task("a"))
	w.clock.pass(time.Minute)
	_, second := w.trigger(foldtest.Task("a"))
	c.Announce(compactor.Request{Entries: []compactor.Entry{second, first}})
	require.Equal(t, ids.Time(first.ID), c.Backlog().Oldest, "it waits in the inbox")

	seen := w.atPublish(c)
	stop := w.run(c)
	_, err := c.Compact(t.Context(), compactor.Request{Entries: []compactor.Entry{first}})
	require.NoError(t, err)
	require.Equal(t, ids.Time(first.ID), seen().Oldest, "it is being folded")
	require.Zero(t, c.Backlog().Oldest)
	stop()

	c.Announce(compactor.Request{Entries: []compactor.Entry{first}})
	require.Zero(t, c.Backlog().Oldest, "the notification came again; the entry is folded")
}

func TestBacklogHasOldestListedEntry(t *testing.T) {
	w := newWorld(t)
	c := w.open("c")
	_, entry := w.trigger(foldtest.Task("a"))
	require.Zero(t, c.Backlog().Oldest, "nobody has announced it")
	seen := w.atPublish(c)
	w.barrier(c)
	require.Equal(t, ids.Time(entry.ID), seen().Oldest)
	require.Zero(t, c.Backlog())
}

func TestBacklogKeepsEntryWhilePublishFails(t *testing.T) {
	w := newWorld(t)
	w.options = files
	c := w.open("c")
	_, entry := w.trigger(foldtest.Task("a"))
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "state/") {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err := c.Step(t.Context(), compactor.Request{Barrier: true})
	require.Error(t, err)
	require.Equal(t, ids.Time(entry.ID), c.Backlog().Oldest)
	w.faults(nil)
	w.barrier(c)
	require.Zero(t, c.Backlog())
}

func TestBacklogCountsUnreadableEntries(t *testing.T) {
	w := newWorld(t)
	c := w.open("c")
	_, entry := w.trigger(foldtest.Task("a"))
	w.seal(stored(entry))
	w.barrier(c)
	require.Equal(t, compactor.Backlog{Oldest: ids.Time(entry.ID), Unreadable: 1}, c.Backlog())
	w.faults(nil)
	w.barrier(c)
	require.Zero(t, c.Backlog())
}

func TestBacklogReportsListingLag(t *testing.T) {
	w := withWakeups(t)
	c := w.open("c")
	// A day passes before anything needs to be listed.
	w.clock.pass(24 * time.Hour)
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	require.LessOrEqual(t, c.Backlog().ListingLag, 10*time.Minute, "a wakeup is at most 10 minutes ahead")

	for range 10 { // each round folds an entry, but no round is a sweep
		w.clock.pass(3 * time.Minute)
		_, entry := w.trigger(foldtest.Task("a"))
		w.step(c, entry)
	}
	require.GreaterOrEqual(t, c.Backlog().ListingLag, 30*time.Minute)
	w.sweep(c)
	require.Less(t, c.Backlog().ListingLag, time.Minute)

	w.clock.pass(4 * time.Minute)
	require.Equal(t, 4*time.Minute, c.Backlog().ListingLag.Round(time.Minute))
	w.clock.pass(2 * time.Minute)
	require.Zero(t, c.Backlog().ListingLag, "another instance may have listed: this one does not know")
	w.endOnly(c, run)
	require.NotZero(t, c.Backlog().ListingLag)
}

func TestOnPhaseReportsFoldsAndPublishes(t *testing.T) {
	w := newWorld(t)
	type phase struct {
		name compactor.Phase
		took time.Duration
		err  error
	}
	var phases []phase
	c := w.open("c", func(cfg *compactor.Config) {
		cfg.OnPhase = func(name compactor.Phase, took time.Duration, err error) {
			phases = append(phases, phase{name, took, err})
		}
	})
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "manifests/") {
			w.clock.pass(time.Second)
		}
		return faultblob.None
	})
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	require.Equal(t, []phase{{compactor.PhaseFold, 0, nil}, {compactor.PhasePublish, time.Second, nil}}, phases)

	other := w.open("other")
	_, entry = w.trigger(foldtest.Task("a"))
	w.step(other, entry)
	_, entry = w.trigger(foldtest.Task("a"))
	phases = nil
	w.step(c, entry)
	require.Len(t, phases, 4)
	require.True(t, errors.Is(phases[1].err, manifest.ErrConflict), "the other writer was faster: %v", phases[1].err)
	require.NoError(t, phases[3].err)
}
