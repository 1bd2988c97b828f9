package compactor_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

const day = 24 * time.Hour

// history returns the rows of the newest revision's history.
func (w *world) history() *state.Rows {
	w.t.Helper()
	rows, err := snapshot.LoadHistory(w.t.Context(), codec, w.manifests(), w.newest())
	require.NoError(w.t, err)
	return rows
}

func TestRunsExpireAfterKeepRuns(t *testing.T) {
	for name, others := range map[string]int{"one, whose segment is merged": 0, "many, whose segment expires": 100} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.options = eager
			w.options.Tiers.KeepRuns = day
			c := w.open("one")
			live, trigger := w.trigger(foldtest.Task("a"))
			w.step(c, trigger)
			old, _ := w.endedRun(c)
			for range others {
				w.endedRun(c)
			}
			w.clock.pass(day - 2*time.Hour)
			w.moveClosedToHistory(c)
			kept, err := latest(c).WithRun(t.Context(), old)
			require.NoError(t, err)
			require.NotNil(t, kept, "the run has not expired")
			require.True(t, latest(c).History.Kept(old))

			w.clock.pass(time.Hour)
			for range 3 { // when the segment is merged with enough other rows, the expired run is dropped
				w.clock.pass(time.Hour)
				w.moveClosedToHistory(c)
			}
			snap := latest(c)
			gone, err := snap.WithRun(t.Context(), old)
			require.NoError(t, err)
			require.Nil(t, gone)
			require.False(t, snap.History.Kept(old))
			rows := w.history()
			require.NotEmpty(t, state.List[state.Run](rows))
			require.NotEmpty(t, state.List[state.Entry](rows), "the rows that a rebuild needs are kept")
			for _, run := range state.List[state.Run](rows) {
				require.Greater(t, run.RunID, old)
			}
			for _, task := range state.List[state.Task](rows) {
				require.Greater(t, task.RunID, old)
			}
			w.verify()

			// An event of the deleted run is recorded as late. It does not wait for the run to appear.
			late := w.append(w.Finished(old, "a", 1, event.Failed))
			w.step(c, late)
			require.Equal(t, state.Late, outcome(c, late.ID))
			// A run that has not ended is kept however old it is. When it ends, it expires immediately.
			w.step(c, w.append(w.Finished(live, "a", 1, event.Succeeded)))
			require.Equal(t, state.RunSucceeded, latest(c).State.Runs.Get(live).State)
			w.clock.pass(time.Hour)
			w.moveClosedToHistory(c)
			require.Nil(t, latest(c).State.Runs.Get(live))
			closed, err := latest(c).History.Has(t.Context(), live)
			require.NoError(t, err)
			require.True(t, closed)
			w.verify()

			result, err := repair.Rebuild(t.Context(), w.repair())
			require.NoError(t, err)
			require.True(t, result.Recorded)
			c = w.open("two")
			w.moveClosedToHistory(c)
			require.False(t, latest(c).History.Kept(old), "also after a rebuild, which reads the whole ledger")
			w.verify()
		})
	}
}

func TestEntryFarAheadExpiresNoRun(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	c := w.open("one")
	old, _ := w.endedRun(c)
	w.clock.pass(time.Hour)
	w.moveClosedToHistory(c)
	w.step(c, w.write(500*day, 500*day, 500*day, &event.LimitSet{CommandID: "c", Scope: event.ScopeWorkspace, Slots: 5}))
	require.LessOrEqual(t, latest(c).State.FoldTime, event.At(w.clock.Now()))
	w.moveClosedToHistory(c)
	kept, err := latest(c).WithRun(t.Context(), old)
	require.NoError(t, err)
	require.NotNil(t, kept)
	run, trigger := w.trigger(foldtest.Task("a"))
	w.step(c, trigger)
	require.NotNil(t, latest(c).State.Runs.Get(run))
	w.verify()
}

func TestTriggerFoldedLateStartsItsRun(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	w.options.Tiers.KeepRuns = day
	c := w.open("one")
	run, trigger := w.trigger(foldtest.Task("a")) // not announced
	w.clock.pass(day + time.Hour)
	w.endedRun(c)
	w.clock.pass(time.Hour)
	w.rebase(c)
	w.rebase(c)
	w.step(c, trigger)
	require.NotNil(t, latest(c).State.Runs.Get(run))
	w.verify()
}

// A replay cannot know whether an expired run ever existed.
func TestReplayTreatsEventsOfExpiredRunsAsLate(t *testing.T) {
	w := newWorld(t)
	w.options = eager
	w.options.Tiers.KeepRuns = day
	c := w.open("one")
	ghost := w.ids.New()
	dead := w.append(&event.RunCancelRequested{RunID: ghost})
	w.step(c, dead)
	require.Equal(t, state.DeadLetter, outcome(c, dead.ID))
	w.clock.pass(2 * day)
	w.moveClosedToHistory(c)
	w.moveClosedToHistory(c)
	require.False(t, latest(c).History.Kept(ghost))
	late := w.append(&event.RunCancelRequested{RunID: ghost})
	w.step(c, late)
	require.Equal(t, state.Late, outcome(c, late.ID))
	w.verify()
	for range 2 {
		result, err := repair.Rebuild(t.Context(), w.repair())
		require.NoError(t, err)
		require.True(t, result.Recorded)
		w.verify()
	}
}
