package compactor_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// reads reports whether a storage operation is a read.
func reads(op faultblob.Op) bool {
	return op == faultblob.Get || op == faultblob.Open || op == faultblob.Head || op == faultblob.List
}

// rebuildConfig returns the configuration of a rebuild in which w.hook decides for every storage operation whether it
// fails.
func (w *world) rebuildConfig() repair.Config {
	cfg := w.repair()
	cfg.Store = w.store()
	return cfg
}

// An earlier build treated a failed read during a rebuild as damage: it folded the ledger in the order of its ids,
// not in the recorded order, and so published a different state.
func TestRebuildReturnsTransientReadErrors(t *testing.T) {
	for name, bare := range map[string]bool{"recorded": false, "bare": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.options = eager
			c := w.open("one")
			run, _ := w.endedRun(c)
			for range 4 {
				w.endedRun(c)
				w.clock.pass(20 * time.Minute)
			}
			w.moveClosedToHistory(c)
			c.AwaitMerges()
			want := w.states(c, run)
			require.NotEmpty(t, want)
			failed := 0
			for n := int64(1); ; n++ {
				before := w.newest().Ref()
				var count atomic.Int64
				w.faults(func(op faultblob.Op, _ string) faultblob.Fault {
					if reads(op) && count.Add(1) == n {
						return faultblob.FailBefore
					}
					return faultblob.None
				})
				cfg := w.rebuildConfig()
				cfg.Bare = bare
				result, err := repair.Rebuild(t.Context(), cfg)
				w.faults(nil)
				if err != nil {
					failed++
					require.ErrorIs(t, err, faultblob.ErrInjected)
					require.Equal(t, before, w.newest().Ref(), "nothing has changed")
					continue
				}
				require.Equal(t, !bare, result.Recorded, "read %d", n)
				if count.Load() < n {
					break
				}
			}
			require.Greater(t, failed, 5)
			require.Equal(t, want, w.states(w.open("two"), run))
			w.verify()
		})
	}
}

func TestRebuildFoldsTheBareLedgerOnlyWhenAsked(t *testing.T) {
	w := newWorld(t)
	w.options = files
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.step(c, w.append(w.Finished(run, "a", 1, event.Succeeded)))
	before := w.newest().Ref()
	damage(t, w, "/ledger_entries/")
	record := new(repair.RecordError)
	_, err := repair.Rebuild(t.Context(), w.repair())
	require.ErrorAs(t, err, &record)
	require.ErrorContains(t, err, "/ledger_entries/")
	require.Equal(t, before, w.newest().Ref())

	cfg := w.repair()
	cfg.Bare = true
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.False(t, result.Recorded)
	require.Equal(t, before.Revision+1, result.Revision, "the newest manifest can be read: no number is skipped")
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(w.open("two"), run))
	w.verify()
}

// In an earlier build, a rebuild ended the live timeline first, and needed exclusive use of the domain.
func TestRebuildSwitchesALiveDomainWithOnePublish(t *testing.T) {
	w := newWorld(t)
	w.options = small
	c := w.open("one")
	first, entry := w.trigger(foldtest.Task("a"), foldtest.Task("b", "a"))
	w.step(c, entry)
	var second string
	folded := false
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) && !folded {
			folded = true // the live compactor publishes shortly before the rebuild does
			w.step(c, w.append(w.Finished(first, "a", 1, event.Succeeded)))
			run, entry := w.trigger(foldtest.Task("c"))
			w.step(c, entry)
			second = run
		}
		return faultblob.None
	})
	before := w.newest()
	result, err := repair.Rebuild(t.Context(), w.rebuildConfig())
	require.NoError(t, err)
	w.faults(nil)
	require.True(t, result.Recorded)
	require.Equal(t, before.Revision+3, result.Revision)
	after := w.newest()
	require.NotEqual(t, before.Timeline, after.Timeline)
	require.Equal(t, result.Revision, after.Revision)

	// The live compactor notices the rebuild when it publishes, and continues on the new timeline.
	w.step(c, w.append(w.Finished(second, "c", 1, event.Succeeded)))
	require.Equal(t, after.Timeline, w.newest().Timeline)
	require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.states(c, first))
	require.Equal(t, []string{"c=SUCCEEDED"}, w.states(c, second))
	require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.states(w.open("two"), first))
	w.verify()
}

// The base that a rebuild writes moves runs that ended long ago to history. If a compactor folds an event of such a
// run during the rebuild, the rebuild must record the event as late. An earlier build made it a dead letter, as if
// the run did not exist.
func TestRebuildKnowsRunsThatItsBaseCloses(t *testing.T) {
	w := newWorld(t)
	w.options = small
	c := w.open("one")
	run := w.closedRun(c)
	var late compactor.Entry
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) && late.ID == "" {
			late = w.append(&event.RunCancelRequested{RunID: run})
			w.step(c, late)
		}
		return faultblob.None
	})
	_, err := repair.Rebuild(t.Context(), w.rebuildConfig())
	require.NoError(t, err)
	w.faults(nil)
	rows := w.rows(w.open("two"), late.ID)
	require.Len(t, rows, 1)
	for _, row := range rows {
		require.Equal(t, state.Late, row.Outcome)
	}
	w.verify()
}

// In an earlier build, entries that live compactors folded during a rebuild of the bare ledger were missing from the
// new timeline until a sweep found them. An active run disappeared until then.
func TestRebuildOfBareLedgerFollowsLiveCompactors(t *testing.T) {
	w := newWorld(t)
	w.options = small
	c := w.open("one")
	first, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	second := ""
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) && second == "" {
			var entry compactor.Entry
			second, entry = w.trigger(foldtest.Task("b"))
			w.step(c, entry, w.append(w.Finished(first, "a", 1, event.Succeeded)))
		}
		return faultblob.None
	})
	cfg := w.rebuildConfig()
	cfg.Bare = true
	_, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	w.faults(nil)
	fresh := w.open("two")
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(fresh, first))
	require.Equal(t, []string{"b=READY"}, w.states(fresh, second))
	w.verify()
}

// Manifests were deleted while compactors ran. One compactor began again with revision 1, and another one continued
// with its own numbers. In an earlier build, the rebuild published revisions below these numbers, and the domain
// stopped permanently when it reached the first of them.
func TestRebuildEndsNumbersAboveMissingManifests(t *testing.T) {
	w := newWorld(t)
	w.options = small
	c := w.open("one")
	for range 5 {
		w.endedRun(c)
	}
	for _, prefix := range []string{manifest.Prefix(foldtest.Domain), "hints/"} {
		for key := range w.keys(prefix) {
			require.NoError(t, w.blobs.Delete(t.Context(), key))
		}
	}
	run, _ := w.endedRun(w.open("two"))
	w.endedRun(c)
	cfg := w.repair()
	cfg.Wakeups = true
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.Greater(t, result.Revision, int64(1<<20), "no writer can create this number without reading the boundary")
	m := w.newest()
	require.Greater(t, m.Wakeup.At, m.Wakeup.Through)
	require.Contains(t, w.wakeups(), m.Wakeup.At)
	require.Equal(t, []string{"a=SUCCEEDED"}, w.states(w.open("three"), run))
}

// The compactor's state in memory contains an event that the ledger has lost. This state must not be merged into the
// rebuilt state.
func TestCompactorAdoptsRebuiltState(t *testing.T) {
	w := newWorld(t)
	w.options = small
	c := w.open("one")
	run, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	finished := w.append(w.Finished(run, "a", 1, event.Succeeded))
	w.step(c, finished)
	cfg := w.repair()
	cfg.AllowLoss = true
	require.NoError(t, w.blobs.Delete(t.Context(), ledger.Key(foldtest.Domain, finished.ID)))
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, 1, result.Lost)
	_, other := w.trigger(foldtest.Task("b"))
	w.step(c, other)
	require.Equal(t, []string{"a=READY"}, w.states(c, run))
	w.verify()
}

// Files of a long rebuild may be collected before it publishes.
func TestRebuildCopiesFilesThatMayBeCollected(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	run, _ := w.endedRun(c)
	for range 4 {
		w.endedRun(c)
		w.clock.pass(20 * time.Minute)
	}
	w.moveClosedToHistory(c)
	c.AwaitMerges()
	want := w.states(c, run)
	slow := false
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, manifest.Prefix(foldtest.Domain)) && !slow {
			slow = true
			for range 3 {
				w.clock.pass(40 * time.Minute)
				_, entry := w.trigger(foldtest.Task("x"))
				w.step(c, entry)
			}
			_, err := c.Maintain(t.Context())
			require.NoError(t, err)
		}
		return faultblob.None
	})
	result, err := repair.Rebuild(t.Context(), w.rebuildConfig())
	require.NoError(t, err)
	w.faults(nil)
	require.True(t, result.Recorded)
	m := w.newest()
	all, err := w.manifests().AllFiles(t.Context(), m)
	require.NoError(t, err)
	require.True(t, manifest.NamedFrom(m.OrphanFloor, all))
	for range 3 { // collections after the rebuild
		w.clock.pass(40 * time.Minute)
		_, entry := w.trigger(foldtest.Task("x"))
		w.step(c, entry)
		_, err := c.Maintain(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, want, w.states(w.open("two"), run))
	w.verify()
}

// A build that did not know an event type refused a group. Earlier rebuilds folded such a group at the place where it
// had been refused, before later events of the ledger, so the result differed from the live state.
func TestRebuildKeepsWhatAnOlderBuildRefused(t *testing.T) {
	w := newWorld(t)
	w.options.Decode = oldBuild
	c := w.open("old")
	w.step(c, w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: event.ScopePool, Name: "p", Slots: 3}))
	require.Len(t, latest(c).State.Waiting(""), 1)
	result, err := repair.Rebuild(t.Context(), w.repair())
	require.NoError(t, err)
	require.True(t, result.Recorded)
	w.verify()
	w.options.Decode = nil
	c = w.open("new")
	require.Len(t, latest(c).State.Waiting(""), 1, "the rebuild has changed no row")
	_, err = c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.NotNil(t, latest(c).State.Limits.Get(state.Key2{A: event.ScopePool, B: "p"}))
	w.verify()
}

// countWrites returns the top-level folders of the bucket to which f writes.
func countWrites(w *world, f func()) map[string]bool {
	written := map[string]bool{}
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if !reads(op) {
			folder, _, _ := strings.Cut(key, "/")
			written[folder] = true
		}
		return faultblob.None
	})
	f()
	w.faults(nil)
	return written
}

// docs/deploy.md lists the rights that a rebuild needs.
func TestRebuildWritesOnlyStateManifestsAndHints(t *testing.T) {
	w := newWorld(t)
	w.options = files
	c := w.open("one")
	_, entry := w.trigger(foldtest.Task("a"))
	w.step(c, entry)
	w.clock.pass(time.Minute)
	written := countWrites(w, func() {
		_, err := repair.Rebuild(t.Context(), w.rebuildConfig())
		require.NoError(t, err)
	})
	require.Equal(t, map[string]bool{"state": true, "manifests": true, "hints": true}, written)
	for object, err := range w.blobs.List(t.Context(), blob.ListOptions{Prefix: "manifests/"}) {
		require.NoError(t, err)
		require.NoError(t, w.blobs.Delete(t.Context(), object.Key))
	}
	w.clock.pass(time.Minute)
	written = countWrites(w, func() {
		cfg := w.rebuildConfig()
		cfg.Bare = true
		_, err := repair.Rebuild(t.Context(), cfg)
		require.NoError(t, err)
	})
	require.Equal(t, map[string]bool{"state": true, "manifests": true, "hints": true, "boundary": true}, written)
}
