package compactor_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// With the options inUse, a compactor keeps entries for the default times, and writes bases early.
var inUse = compactor.Options{Tiers: tiers.Options{MaxDeltas: 4, MaxInline: -1, MinBase: 1}}

// age lets two weeks pass, and moves all earlier entries to history and to the archive.
func (w *world) age(c *compactor.Compactor) {
	w.t.Helper()
	w.clock.pass(15 * 24 * time.Hour)
	w.moveClosedToHistory(c)
	w.clock.pass(2 * time.Hour) // after this time, no kept revision lists the old entries
	w.endedRun(c)
	w.endedRun(c)
	w.maintain(c)
}

func (w *world) inLedger(entry string) bool {
	for key := range w.keys(ledger.Prefix(foldtest.Domain)) {
		if key == ledger.Key(foldtest.Domain, entry) {
			return true
		}
	}
	return false
}

// reads returns a counter of all later reads of ledger and archive.
func (w *world) reads() *atomic.Int64 {
	var n atomic.Int64
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Get && (strings.HasPrefix(key, "ledger/") || strings.HasPrefix(key, "archive/")) {
			n.Add(1)
		}
		return faultblob.None
	})
	return &n
}

func outcomeOf(s *state.State, entry string) (outcome state.EntryOutcome) {
	s.Entries.Ascend(state.Key2{A: entry}, func(row *state.Entry) bool {
		if row.Entry == entry {
			outcome = row.Outcome
		}
		return false
	})
	return outcome
}

func TestArchivedEntriesBehaveAsInTheLedger(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	run, entries := w.endedRun(c)
	coming := ids.AtTime(w.clock.Now().Add(15*24*time.Hour + 2*time.Hour)) // the id of a run that has an event long before its trigger
	dead := w.append(w.Finished(coming, "a", 1, event.Succeeded))
	_, err := c.Step(t.Context(), compactor.Request{Entries: []compactor.Entry{dead}, Barrier: true})
	require.NoError(t, err)
	stale := w.open("stale")
	never := w.ids.New() // the name of an entry that appears below the cutoff
	w.age(c)
	for _, e := range append(entries, dead) {
		require.False(t, w.inLedger(e.ID))
	}
	from := w.newest().BaseSnapshot.EntriesFrom
	for key := range w.keys(ledger.Prefix(foldtest.Domain)) {
		require.Greater(t, key, ledger.Key(foldtest.Domain, from[:10]), "whole days below the cutoff are archived")
	}
	w.verify()
	c = w.open("two")

	t.Run("entries announced again change and read nothing", func(t *testing.T) {
		reads, revision := w.reads(), latest(c).Revision
		for _, e := range append(entries, dead) {
			w.step(c, compactor.Entry{ID: e.ID})
		}
		require.Equal(t, revision, latest(c).Revision)
		require.Zero(t, reads.Load())
		w.faults(nil)
	})
	t.Run("an abandoned entry is not folded", func(t *testing.T) {
		_, err := w.blobs.Create(t.Context(), ledger.Key(foldtest.Domain, never), entries[1].Data)
		require.NoError(t, err)
		revision := latest(c).Revision
		w.step(c, compactor.Entry{ID: never})
		_, err = c.Step(t.Context(), compactor.Request{Barrier: true})
		require.NoError(t, err)
		require.Equal(t, revision, latest(c).Revision)
		w.maintain(w.open("passes by"))
		require.False(t, w.inLedger(never), "it is archived with the others")
	})
	t.Run("events of an old run are late", func(t *testing.T) {
		late := w.append(w.Finished(run, "a", 2, event.Failed))
		w.step(c, late)
		require.Equal(t, state.Late, outcomeOf(latest(c).State, late.ID))
	})
	t.Run("a waiting dead letter is read from the archive", func(t *testing.T) {
		require.Len(t, latest(c).State.Waiting(coming), 1)
		w.Now = w.clock.Now()
		w.step(c, w.append(w.Triggered(&event.RunTriggered{RunID: coming}, foldtest.Task("a"))...))
		require.Equal(t, []string{"a=SUCCEEDED"}, w.states(c, coming))
		w.verify()
	})
	t.Run("explain of an old run", func(t *testing.T) {
		x, err := engine.ExplainTask(t.Context(), w.blobs, latest(c), event.At(w.clock.Now()), run, "a")
		require.NoError(t, err)
		require.Len(t, x.Events, 4, "including the abandoned entry")
		for _, e := range x.Events {
			require.Equal(t, e.Entry == never, e.Outcome == "", "outcomes are found in history")
		}
		found, more, err := engine.Events(t.Context(), w.blobs, foldtest.Domain, nil, engine.Filter{Entry: entries[1].ID})
		require.NoError(t, err)
		require.False(t, more)
		require.Len(t, found, 1)
		all, more, err := engine.Events(t.Context(), w.blobs, foldtest.Domain, nil, engine.Filter{Limit: 3})
		require.NoError(t, err)
		require.True(t, more)
		require.Len(t, all, 3)
		require.Equal(t, entries[0].ID, all[0].Entry)
	})
	t.Run("a suspended process loads the published state", func(t *testing.T) {
		_, err := stale.Step(t.Context(), compactor.Request{Barrier: true})
		require.NoError(t, err)
		require.Equal(t, w.newest().Revision, latest(stale).Revision)
		require.Empty(t, state.Diff(latest(c).State, latest(stale).State, 5))
	})
	t.Run("I-17: rebuild, in recorded order and from the bare ledger", func(*testing.T) {
		w.rebuilds(run, coming)
	})
}

// rebuilds checks two rebuilds: the first one with the manifests, the second one without any state.
func (w *world) rebuilds(runs ...string) {
	w.t.Helper()
	before, err := repair.Verify(w.t.Context(), w.repair())
	require.NoError(w.t, err)
	result, err := repair.Rebuild(w.t.Context(), w.repair())
	require.NoError(w.t, err)
	require.True(w.t, result.Recorded)
	require.Equal(w.t, before.Rows, result.Rows, "without the abandoned entry")
	w.verify()
	for _, prefix := range []string{"state/", "manifests/", "hints/", "boundary/"} {
		remove(w.t, w, prefix)
	}
	_, err = compactor.Open(w.t.Context(), compactor.Config{
		Handle: w.handle(w.store()),
	})
	require.ErrorContains(w.t, err, "servo admin rebuild", "the remaining ledger is incomplete")
	rebuildBare(w.t, w)
	c := w.open("rebuilt")
	for _, run := range runs {
		require.Equal(w.t, []string{"a=SUCCEEDED"}, w.states(c, run))
	}
	w.verify()
	require.NoError(w.t, foldtest.Check(latest(c).State))
	w.age(c)
	require.Less(w.t, latest(c).State.Entries.Len(), 200)
	w.verify()
}

func TestRefusedEntryIsFoldedFromTheArchive(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	w.options.Decode = oldBuild
	c := w.open("old")
	limit := w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: event.ScopePool, Name: "p", Slots: 3})
	w.step(c, limit)
	require.Len(t, latest(c).State.Waiting(""), 1)
	w.age(c)
	require.False(t, w.inLedger(limit.ID))
	w.options.Decode = nil // the newer build decodes the entries
	c = w.open("new")
	_, err := c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.NotNil(t, latest(c).State.Limits.Get(state.Key2{A: event.ScopePool, B: "p"}))
	require.Empty(t, latest(c).State.Waiting(""))
	w.verify()
}

// Archiving uses the cutoff of the oldest existing revision, because a process that still uses this revision lists the
// entries above the cutoff of this revision.
func TestArchivingKeepsEntriesOfLiveRevisions(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	_, entries := w.endedRun(c)
	w.clock.pass(15 * 24 * time.Hour)
	w.moveClosedToHistory(c)
	require.Greater(t, w.newest().BaseSnapshot.EntriesFrom, entries[1].ID)
	w.maintain(c)
	require.True(t, w.inLedger(entries[0].ID), "for an hour, a revision exists that does not recognize it by name")
	w.clock.pass(2 * time.Hour)
	w.endedRun(c)
	w.endedRun(c)
	w.maintain(c)
	require.False(t, w.inLedger(entries[0].ID))
}

// Invariant I-16: maintenance of a domain reads little when no day of entries is old enough to archive.
func TestI16MaintenanceWithoutDueDaysReadsLittle(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	w.endedRun(c)
	w.age(c)
	w.endedRun(c)
	c.AwaitMerges() // do not count the writes of merges
	before := w.blobs.Stats()
	w.maintain(c)
	idle := w.blobs.Stats().Sub(before)
	collector := manifest.NewCollector(w.manifests(), manifest.Policy{})
	_, err := collector.Retain(t.Context())
	require.NoError(t, err)
	before = w.blobs.Stats()
	_, err = collector.Retain(t.Context())
	require.NoError(t, err)
	alone := w.blobs.Stats().Sub(before)
	require.LessOrEqual(t, idle.Reads(), alone.Reads()+2, "the boundary and the oldest revision")
	require.LessOrEqual(t, idle.Writes(), alone.Writes()+1)
	archived, err := archive.Any(t.Context(), w.blobs, foldtest.Domain)
	require.NoError(t, err)
	require.True(t, archived)
}

func TestArchivingIsLimitedPerProcess(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	w.archiving = make(chan struct{}, 1)
	c := w.open("one")
	_, entries := w.endedRun(c)
	w.archiving <- struct{}{} // another compactor is archiving
	w.age(c)
	require.True(t, w.inLedger(entries[0].ID))
	<-w.archiving
	w.maintain(c)
	require.False(t, w.inLedger(entries[0].ID))
	require.Empty(t, w.archiving)
}

// In an earlier build, a damaged archive file ended every verification and every rebuild, even a rebuild that was
// allowed to leave out lost events.
func TestRebuildForgetsDamagedArchiveFile(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	old, _ := w.endedRun(c)
	w.age(c)
	run, trigger := w.trigger(foldtest.Task("a"))
	w.step(c, trigger)
	damaged := 0
	for key := range w.keys("archive/") {
		_, err := w.blobs.Put(t.Context(), key, []byte("garbage"))
		require.NoError(t, err)
		damaged++
	}
	require.NotZero(t, damaged)
	report, err := repair.Verify(t.Context(), w.repair())
	require.NoError(t, err)
	require.NotZero(t, report.Lost)
	require.Contains(t, report.Problems[0], "the archive file is damaged")
	cfg := w.repair()
	_, err = repair.Rebuild(t.Context(), cfg)
	lost := new(repair.LostError)
	require.ErrorAs(t, err, &lost)
	require.Len(t, lost.Groups, report.Lost)

	w.faults(func(op faultblob.Op, key string) faultblob.Fault { // a failed read proves no damage: another read may succeed
		if op == faultblob.Get && strings.HasPrefix(key, "archive/") {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	cfg.Handle, cfg.AllowLoss = w.handle(w.store()), true
	_, err = repair.Rebuild(t.Context(), cfg)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	w.faults(nil)
	result, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, report.Lost, result.Lost)
	c = w.open("two")
	require.Empty(t, w.states(c, old))
	require.Equal(t, []string{"a=READY"}, w.states(c, run))
	w.verify()

	cfg.Bare, cfg.AllowLoss = true, false
	_, err = repair.Rebuild(t.Context(), cfg)
	require.ErrorAs(t, err, &lost)
	require.Len(t, lost.Groups, damaged)
	cfg.AllowLoss = true
	result, err = repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, damaged, result.Lost)
	require.Equal(t, []string{"a=READY"}, w.states(w.open("three"), run))
	w.verify()
}
