package compactor_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// With the options eager, every publish starts a base, so that runs are closed as early as possible.
var eager = compactor.Options{Tiers: tiers.Options{MaxDeltas: 4, MaxInline: -1, MinBase: 1, KeepEntries: time.Hour}}

// endedRun adds a run whose only task has ended.
func (w *world) endedRun(c *compactor.Compactor) (run string, entries []compactor.Entry) {
	w.t.Helper()
	run, trigger := w.trigger(foldtest.Task("a"))
	finished := w.append(w.Finished(run, "a", 1, event.Succeeded))
	w.step(c, trigger, finished)
	return run, []compactor.Entry{trigger, finished}
}

// rebase adds runs until a new base is published.
func (w *world) rebase(c *compactor.Compactor) {
	w.t.Helper()
	before := w.newest().BaseSnapshot.ID
	for range 20 {
		w.endedRun(c)
		c.AwaitMerges()
		if w.newest().BaseSnapshot.ID != before {
			return
		}
	}
	w.t.Fatal("no new base was published")
}

// moveClosedToHistory moves all closed rows to history. First, a barrier lists the ledger completely up to a recent
// time. Then runs are added until two new bases are published, because the first base may be built from an earlier
// state.
func (w *world) moveClosedToHistory(c *compactor.Compactor) {
	w.t.Helper()
	w.endedRun(c)
	w.clock.pass(2 * time.Minute)
	_, err := c.Step(w.t.Context(), compactor.Request{Barrier: true})
	require.NoError(w.t, err)
	w.rebase(c)
	w.rebase(c)
}

// outcome returns the outcome of an entry that has one group.
func outcome(c *compactor.Compactor, entry string) (found state.EntryOutcome) {
	latest(c).State.Entries.Ascend(state.Key2{A: entry}, func(row *state.Entry) bool {
		if row.Entry == entry {
			found = row.Outcome
		}
		return false
	})
	return found
}

func latest(c *compactor.Compactor) *snapshot.Snapshot {
	snap, _ := c.Latest().Get()
	return snap
}

func TestClosedRunMovesToHistory(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	live, trigger := w.trigger(foldtest.Task("a"))
	w.step(c, trigger)
	run, _ := w.endedRun(c)
	was, err := latest(c).WithRun(t.Context(), run)
	require.NoError(t, err)
	wanted := state.New(foldtest.Domain)
	wanted.Load(was.All().OfRun(run))
	reader := snapshot.NewReader(foldtest.Domain, codec, w.manifests(), w.clock)

	w.clock.pass(state.ClosedAfter - time.Minute)
	w.rebase(c)
	require.NotNil(t, latest(c).State.Runs.Get(run), "it is not closed yet")
	_, err = reader.Current(t.Context())
	require.NoError(t, err)
	w.clock.pass(2 * time.Minute)
	w.rebase(c)
	w.rebase(c) // the first base may come from an earlier state

	snap := latest(c)
	require.Nil(t, snap.State.Runs.Get(run))
	require.NotNil(t, snap.State.Runs.Get(live), "it has not ended")
	require.Less(t, w.newest().RowCounts["runs"], int64(snap.RunCount()))
	follower, err := reader.Current(t.Context())
	require.NoError(t, err)
	cold := w.open("cold")
	for name, other := range map[string]*snapshot.Snapshot{"a reader that follows": follower, "a cold start": latest(cold)} {
		require.Empty(t, state.Diff(snap.State, other.State, 5), name)
		closed, err := other.WithRun(t.Context(), run)
		require.NoError(t, err, name)
		require.Empty(t, state.Diff(wanted, closed, 5), name)
	}
	none, err := snap.WithRun(t.Context(), w.ids.New())
	require.NoError(t, err)
	require.Nil(t, none)
	runs, err := snap.Runs(t.Context(), 1000, func(*state.Run) bool { return true })
	require.NoError(t, err)
	require.Len(t, runs, snap.RunCount())
	require.Equal(t, live, runs[len(runs)-1].RunID)
	require.Equal(t, run, runs[len(runs)-2].RunID)
	newest, err := snap.Runs(t.Context(), 2, func(r *state.Run) bool { return r.RunID <= run })
	require.NoError(t, err)
	require.Equal(t, []string{run, live}, []string{newest[0].RunID, newest[1].RunID})
	since, err := snap.RunsSince(t.Context(), run, 1000, func(*state.Run) bool { return true })
	require.NoError(t, err)
	require.Equal(t, runs[:len(runs)-1], since, "without the live run, which is older")
	w.verify()
}

// An event of a closed run changes nothing. This holds while the run is in the live state, after it has moved to
// history, and in a replay of the ledger.
func TestEventOfClosedRunIsLate(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	gone, old := w.endedRun(c)
	w.clock.pass(2 * state.ClosedAfter)
	w.rebase(c)
	w.rebase(c)
	require.Nil(t, latest(c).State.Runs.Get(gone))
	w.options.Tiers.MinBase = 1 << 30
	c = w.open("two") // this compactor makes no bases
	there, recent := w.endedRun(c)
	w.clock.pass(2 * state.ClosedAfter)
	w.endedRun(c) // this advances the fold time
	for name, run := range map[string]string{"in history": gone, "in the live state": there} {
		for _, p := range []event.Payload{
			&event.RunTriggered{RunID: run, PlanID: w.ids.New(), Trigger: event.Trigger{Type: "manual"}, RunKey: "again"},
			&event.RunCancelRequested{RunID: run},
			w.Started(run, "a", 1),
			w.Beat(run, "a", 2),
			w.Finished(run, "a", 2, event.Failed),
			w.Finished(run, "b", 1, event.Succeeded),
		} {
			before := latest(c).State
			entry := w.append(p)
			w.step(c, entry)
			after := latest(c).State
			for _, line := range state.Diff(before, after, 10) {
				require.True(t, strings.HasPrefix(line, "ledger_entries: "), "%s: %s: %s", name, p.Type(), line)
			}
			require.Equal(t, before.Runs.Len(), after.Runs.Len(), "%s: %s", name, p.Type())
			require.Equal(t, state.Late, outcome(c, entry.ID), "%s: %s", name, p.Type())
			require.Nil(t, after.RunKeys.Get("again"))
		}
	}
	// Folded entries are not folded again.
	revision := latest(c).Revision
	w.step(c, append(old, recent...)...)
	require.Equal(t, revision, latest(c).Revision)
	w.verify()
}

func TestEntriesInHistoryAreRecognizedByName(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	_, entries := w.endedRun(c)
	dead := w.append(w.Started(w.ids.New(), "a", 1)) // a dead letter that waits for its run
	_, err := c.Step(t.Context(), compactor.Request{Entries: []compactor.Entry{dead}, Barrier: true})
	require.NoError(t, err)
	w.clock.pass(2 * time.Hour)
	w.moveClosedToHistory(c)
	s := latest(c).State
	require.Greater(t, w.newest().BaseSnapshot.EntriesFrom, dead.ID)
	require.Nil(t, s.Entries.Get(state.Key2{A: entries[0].ID, B: "line-1"}))
	require.Less(t, s.Entries.Len(), 60)
	waits := 0
	for row := range s.Entries.All {
		if row.Entry == dead.ID {
			waits++
		}
	}
	require.Equal(t, 1, waits, "a waiting dead letter stays")
	revision := latest(c).Revision
	w.step(c, entries...)
	require.Equal(t, revision, latest(c).Revision, "announced again")
	w.verify()
	report, err := repair.Verify(t.Context(), w.repair())
	require.NoError(t, err)
	require.Greater(t, report.Groups, s.Entries.Len(), "including those in history")
}

// A rebuild produces the same state, and moves closed runs to history again.
func TestRebuildRestoresHistory(t *testing.T) {
	for _, part := range []string{"nothing", "state/", "manifests/", "/history/"} {
		t.Run(part, func(t *testing.T) {
			w := newWorld(t)
			w.options = eager
			c := w.open("one")
			run, _ := w.endedRun(c)
			w.clock.pass(2 * time.Hour)
			w.rebase(c)
			w.rebase(c)
			require.Nil(t, latest(c).State.Runs.Get(run))
			runs := latest(c).RunCount()
			c.AwaitMerges()
			for key := range w.keys("") {
				if part != "nothing" && strings.Contains(key, part) {
					require.NoError(t, w.blobs.Delete(t.Context(), key))
				}
			}
			cfg := w.repair()
			cfg.Bare = part == "state/" || part == "manifests/"
			_, err := repair.Rebuild(t.Context(), cfg)
			require.NoError(t, err)
			w.verify()
			again := w.open("again")
			require.Equal(t, runs, latest(again).RunCount())
			require.Nil(t, latest(again).State.Runs.Get(run), "the live state does not contain history")
			closed, err := latest(again).WithRun(t.Context(), run)
			require.NoError(t, err)
			require.NotNil(t, closed)
			w.verify()
			w.rebase(again)
			w.verify()
		})
	}
}

// A process may die at any write of a base and its history. The next process must find every run exactly once.
func TestHistorySurvivesDeathAtAnyWrite(t *testing.T) {
	const most = 40
	for n := 1; n < most; n++ {
		w := newWorld(t)
		w.options = compactor.Options{Tiers: tiers.Options{MaxDeltas: 4, MaxInline: -1, MinBase: 1 << 30}}
		c := w.open("one")
		for range 5 {
			w.endedRun(c)
		}
		w.clock.pass(2 * state.ClosedAfter)
		w.endedRun(c)
		w.options = eager
		c = w.open("two")
		var writes atomic.Int64
		w.faults(func(op faultblob.Op, key string) faultblob.Fault {
			if op == faultblob.Create && strings.Contains(key, "state/") {
				if writes.Add(1) >= int64(n) {
					return faultblob.FailBefore
				}
			}
			return faultblob.None
		})
		_, trigger := w.trigger(foldtest.Task("a"))
		ctx, cancel := context.WithCancel(t.Context())
		_, err := c.Step(ctx, compactor.Request{Entries: []compactor.Entry{trigger}})
		c.AwaitMerges()
		cancel()
		died := writes.Load() >= int64(n)
		w.faults(nil)
		if err == nil && !died {
			require.Greater(t, n, 10, "base and history are several files")
			return
		}
		c = w.open("three")
		w.rebase(c)
		w.rebase(c)
		w.rebase(c)
		ids := map[string]bool{}
		runs, err := latest(c).Runs(t.Context(), 1000, func(*state.Run) bool { return true })
		require.NoError(t, err)
		for _, run := range runs {
			require.False(t, ids[run.RunID], "run %s exists twice", run.RunID)
			ids[run.RunID] = true
		}
		require.Len(t, runs, latest(c).RunCount())
		w.verify()
	}
	t.Fatal("it never came to the end")
}

// A base of one compactor, published after another compactor's base, would lose the rows that the other base moved to
// history. This test fails if the method ready accepts a merge that began with another base.
func TestOvertakenBaseIsDropped(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	one := w.open("one")
	for range 3 {
		w.endedRun(one)
	}
	w.clock.pass(2 * state.ClosedAfter)
	w.endedRun(one)
	one.AwaitMerges()
	two := w.open("two")
	w.endedRun(two)
	two.AwaitMerges()
	w.endedRun(one)
	w.endedRun(two)
	w.endedRun(two)
	require.NotEmpty(t, w.newest().History)
	runs, err := latest(two).Runs(t.Context(), 1000, func(*state.Run) bool { return true })
	require.NoError(t, err)
	require.Len(t, runs, 8)
	w.verify()
}

// The event that ends a run may be folded long after the time in the event. A base that was begun before the event was
// folded must not move the run to history. This test fails if the cutoff considers only time.
func TestRunWithLateEndEventIsKept(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	run, trigger := w.trigger(foldtest.Task("a"))
	w.step(c, trigger)
	finished := w.append(w.Finished(run, "a", 1, event.Succeeded))
	w.clock.pass(2 * state.ClosedAfter)
	w.endedRun(c)
	w.endedRun(c)
	c.AwaitMerges()
	base := w.newest().BaseSnapshot.ID
	w.step(c, finished)
	require.NotEqual(t, base, w.newest().BaseSnapshot.ID, "the publish contains the earlier base")
	closed, err := latest(c).WithRun(t.Context(), run)
	require.NoError(t, err)
	require.NotNil(t, closed)
	require.Equal(t, state.RunSucceeded, closed.Runs.Get(run).State)
	w.verify()
}
