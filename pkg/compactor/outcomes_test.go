package compactor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// inHistory adds an ended run, moves the rows of the run and its entries to history, and returns the run and the
// entries.
func (w *world) inHistory(c *compactor.Compactor) (run string, entries []compactor.Entry) {
	w.t.Helper()
	run, entries = w.endedRun(c)
	w.clock.pass(20 * time.Minute)
	w.moveClosedToHistory(c)
	require.Empty(w.t, outcome(c, entries[1].ID))
	return run, entries
}

// published gives an engine the newest snapshots of a compactor in the same process.
type published struct{ *snapshot.Latest }

func (p published) Current(context.Context) (*snapshot.Snapshot, error) {
	snap, _ := p.Get()
	return snap, nil
}

func (p published) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	return p.Latest.Await(ctx, func(s *snapshot.Snapshot) bool { return s.Revision > after })
}

// A process that waits for an outcome may be suspended, for example on a closed laptop, until the outcome is in
// history.
func TestWaitFindsOutcomeInHistory(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	_, entries := w.inHistory(c)
	s := engine.Services{Domain: foldtest.Domain, Store: w.blobs, Snapshots: published{c.Latest()}, Clock: clock.System{}}
	_, err := s.Compact(t.Context(), compactor.Request{Entries: entries})
	require.NoError(t, err)
}

// outcomesOf returns the outcome of the only group of each entry.
func outcomesOf(t *testing.T, c *compactor.Compactor, entries ...compactor.Entry) (outcomes []state.EntryOutcome) {
	t.Helper()
	events := make([]view.EventInfo, len(entries))
	for i, e := range entries {
		events[i] = view.EventInfo{Entry: e.ID, Group: compactor.Decode(e.ID, e.Data)[0].ID}
	}
	require.NoError(t, engine.Judge(t.Context(), latest(c), events))
	for _, e := range events {
		outcomes = append(outcomes, e.Outcome)
	}
	return outcomes
}

func TestDamagedHistoryKeepsLiveOutcomes(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	_, old := w.inHistory(c)
	_, fresh := w.endedRun(c)
	require.Equal(t, []state.EntryOutcome{state.Folded, state.Folded}, outcomesOf(t, c, old[1], fresh[1]))
	c.AwaitMerges()
	for key := range w.keys("state/") {
		if strings.Contains(key, "/ledger_entries/history/") && strings.HasSuffix(key, ".parquet") {
			require.NoError(t, w.blobs.Delete(t.Context(), key))
		}
	}
	require.Equal(t, []state.EntryOutcome{"", state.Folded}, outcomesOf(t, c, old[1], fresh[1]))
}

// A lookup of an entry reads only segments that may contain the entry. If no segment can contain it, the lookup reads
// none.
func TestOutcomesReadOnlyMatchingSegments(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	_, old := w.inHistory(c)
	w.inHistory(c)
	c.AwaitMerges()
	reads := w.counts(func(op faultblob.Op, key string) bool {
		return op == faultblob.Get && strings.Contains(key, "/ledger_entries/history/")
	})
	unfolded := compactor.Entry{ID: w.ids.New(), Data: old[1].Data}
	outcomesOf(t, c, unfolded)
	require.Zero(t, reads.Load())
	require.Equal(t, []state.EntryOutcome{state.Folded, ""}, outcomesOf(t, c, old[1], unfolded))
	require.LessOrEqual(t, reads.Load(), int64(2), "the index, and one segment")
}

// A writer abandoned an entry and appended its events again. A rebuild in the recorded order, perhaps months later,
// must not start a run from the abandoned entry.
func TestRebuildSkipsAbandonedEntries(t *testing.T) {
	w := newWorld(t)
	w.options = inUse
	c := w.open("one")
	w.endedRun(c)
	never := w.ids.New()
	run, trigger := w.trigger(foldtest.Task("a"))
	require.NoError(t, w.blobs.Delete(t.Context(), ledger.Key(foldtest.Domain, trigger.ID)))
	w.inHistory(c)
	_, err := w.blobs.Create(t.Context(), ledger.Key(foldtest.Domain, never), trigger.Data)
	require.NoError(t, err)
	w.step(c, compactor.Entry{ID: never})
	require.Nil(t, latest(c).State.Runs.Get(run))
	w.verify()
	result, err := repair.Rebuild(t.Context(), w.repair())
	require.NoError(t, err)
	require.True(t, result.Recorded)
	c = w.open("rebuilt")
	w.clock.pass(2 * time.Minute)
	_, err = c.Step(t.Context(), compactor.Request{Barrier: true}) // lists the whole ledger
	require.NoError(t, err)
	require.Nil(t, latest(c).State.Runs.Get(run))
	w.verify()
}
