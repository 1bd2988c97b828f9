package compactor_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// oldBuild decodes entries like a build that does not know LimitSet.
func oldBuild(entry string, data []byte) []fold.Group {
	groups := compactor.Decode(entry, data)
	for i := range groups {
		if len(groups[i].Events) > 0 {
			if _, ok := groups[i].Events[0].Payload.(*event.LimitSet); ok {
				groups[i].Reason, groups[i].Detail = event.ReasonUnsupported, "event_type: not known"
				groups[i].Events = nil
			}
		}
	}
	return groups
}

// An entry has two groups: one waits for a newer build, and the row of the other moves to history.
func TestGroupInHistoryIsNotFoldedAgain(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	w.options.Decode = oldBuild
	c := w.open("old")
	holder := w.ids.New()
	w.Now = w.clock.Now()
	w.step(c, w.append(w.Triggered(&event.RunTriggered{RunID: holder, RunKey: "daily", Fingerprint: "f"}, foldtest.Task("a"))...))
	w.step(c, w.append(w.Finished(holder, "a", 1, event.Succeeded)))

	// This entry contains a limit that this build does not know, and a run that is refused because another run has its
	// run key.
	refused := w.ids.New()
	limit := w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: event.ScopePool, Name: "p", Slots: 3})
	again := w.append(w.Triggered(&event.RunTriggered{RunID: refused, RunKey: "daily", Fingerprint: "f"}, foldtest.Task("a"))...)
	id := w.ids.New()
	data := append(bytes.Clone(limit.Data), again.Data...)
	for _, e := range []compactor.Entry{limit, again} {
		require.NoError(t, w.blobs.Delete(t.Context(), ledger.Key(foldtest.Domain, e.ID)))
	}
	_, err := w.blobs.Create(t.Context(), ledger.Key(foldtest.Domain, id), data)
	require.NoError(t, err)
	w.step(c, compactor.Entry{ID: id, Data: data})
	require.Nil(t, latest(c).State.Runs.Get(refused))
	require.Len(t, latest(c).State.Waiting(""), 1)

	w.clock.pass(31 * 24 * time.Hour) // the key is free again
	w.moveClosedToHistory(c)
	require.Greater(t, w.newest().BaseSnapshot.EntriesFrom, id)

	w.options.Decode = nil // the newer build decodes all entries
	c = w.open("new")
	_, err = c.Step(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Nil(t, latest(c).State.Runs.Get(refused), "a run that was refused a month ago must not start")
	w.verify()
}

// The primary key of run_key_conflicts contains the run. So a conflict that is reported twice has only one row.
func TestRepeatedRunKeyConflictIsOneRow(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	w.Now = w.clock.Now()
	w.step(c, w.append(w.Triggered(&event.RunTriggered{RunKey: "daily", Fingerprint: "f"}, foldtest.Task("a"))...))
	other := event.RunTriggered{RunID: w.ids.New(), RunKey: "daily", Fingerprint: "other"}
	w.step(c, w.append(w.Triggered(&other, foldtest.Task("a"))...))
	require.Equal(t, 1, latest(c).State.Conflicts.Len())
	w.clock.pass(2 * state.ClosedAfter)
	w.rebase(c)
	w.rebase(c)
	require.Zero(t, latest(c).State.Conflicts.Len())
	w.verify()
	w.step(c, w.append(w.Triggered(&other, foldtest.Task("a"))...))
	w.verify()
}

func (w *world) closedRun(c *compactor.Compactor) string {
	w.t.Helper()
	run, _ := w.endedRun(c)
	w.clock.pass(2 * state.ClosedAfter)
	w.rebase(c)
	w.rebase(c)
	c.AwaitMerges()
	require.Nil(w.t, latest(c).State.Runs.Get(run))
	return run
}

// In an earlier version, a late report of a run in a lost segment blocked all other runs.
func TestLostSegmentDoesNotBlockFolding(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	run := w.closedRun(c)
	files, err := w.manifests().HistoryFiles(t.Context(), w.newest())
	require.NoError(t, err)
	for _, f := range files {
		if f.Table == "runs" {
			require.NoError(t, w.blobs.Delete(t.Context(), f.Key))
		}
	}
	c = w.open("two")
	_, other := w.trigger(foldtest.Task("a"))
	_, err = c.Step(t.Context(), compactor.Request{Entries: []compactor.Entry{w.append(w.Beat(run, "a", 1)), other}})
	require.NoError(t, err, "an unrelated run must not be blocked")
}

// In an earlier version, unreadable pins were never deleted, not even after a rebuild.
func TestLostIndexOfPinDoesNotBlockCollection(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	w.closedRun(c)
	index := w.newest().History["runs"].Key
	for range 4 {
		w.clock.pass(time.Hour)
		w.endedRun(c)
		c.AwaitMerges()
		for more := true; more; {
			var err error
			more, err = c.Maintain(t.Context())
			require.NoError(t, err)
		}
	}
	var pinned string
	for key := range w.keys(manifest.PinPrefix(foldtest.Domain)) {
		pinned = max(pinned, key)
	}
	require.NotEmpty(t, pinned)
	_ = index
	for key := range w.keys(manifest.StatePrefix(foldtest.Domain)) {
		if strings.Contains(key, "/history/") && strings.HasSuffix(key, ".json") {
			require.NoError(t, w.blobs.Delete(t.Context(), key))
		}
	}
	cfg := w.repair()
	cfg.Bare = true // the index of the history of ledger_entries is gone, too
	_, err := repair.Rebuild(t.Context(), cfg)
	require.NoError(t, err)
	c = w.open("two")
	for range 40 {
		w.clock.pass(24 * time.Hour)
		w.endedRun(c)
		c.AwaitMerges()
		_, err = c.Maintain(t.Context())
	}
	require.NoError(t, err, "forty days after it was rebuilt")
}

// Without a cache, each late report would read a whole segment.
func TestLateReportsReadEachSegmentOnce(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	run := w.closedRun(c)
	reads := w.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Get && strings.Contains(key, "/runs/history/") && strings.HasSuffix(key, ".parquet")
	})
	var entries []compactor.Entry
	for range 50 {
		entries = append(entries, w.append(w.Beat(run, "a", 1)))
	}
	w.step(c, entries...)
	require.LessOrEqual(t, reads.Load(), int64(2))
}

func TestNewestRunIsFoundInLiveState(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	w.closedRun(c)
	w.endedRun(c)
	reads := w.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Get && strings.Contains(key, "/history/")
	})
	for range 5 {
		_, err := latest(c).Runs(t.Context(), 1, func(*state.Run) bool { return true })
		require.NoError(t, err)
	}
	require.Zero(t, reads.Load())
}

func TestExplainOfClosedRunIncludesLimits(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	w.step(c, w.append(&event.LimitSet{CommandID: w.ids.New(), Scope: event.ScopeWorkspace, Slots: 7}))
	run, _ := w.endedRun(c)
	explain := func() *view.Explanation {
		e, err := engine.ExplainTask(t.Context(), w.blobs, latest(c), event.At(w.clock.Now()), run, "a")
		require.NoError(t, err)
		return e
	}
	before := explain()
	w.clock.pass(2 * time.Hour)
	w.moveClosedToHistory(c)
	require.Nil(t, latest(c).State.Runs.Get(run))
	after := explain()
	require.Equal(t, before.Limits, after.Limits)
}
