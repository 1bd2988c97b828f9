package engine_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
)

// inOneEntry starts calls that append to the ledger, and returns their errors. One entry contains the events of all
// calls, in the order of the calls.
func (w *fixture) inOneEntry(calls ...func() error) []error {
	w.t.Helper()
	release := make(chan struct{})
	var once sync.Once
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "ledger/") {
			once.Do(func() { <-release })
		}
		return faultblob.None
	})
	var running sync.WaitGroup
	running.Go(func() { require.NoError(w.t, w.SetLimit(w.t.Context(), "", 77)) }) // the other calls are queued while this entry is being written
	synctest.Wait()
	errs := make([]error, len(calls))
	for i, call := range calls {
		running.Go(func() { errs[i] = call() })
		synctest.Wait()
	}
	close(release)
	running.Wait()
	return errs
}

// defineSchedule deploys a release with one schedule.
func (w *fixture) defineSchedule(name string) {
	w.t.Helper()
	d := &event.ProjectDeployed{
		DeployID: w.cfg.IDs.New(), Release: strings.Repeat("a", 64), Force: true, Kind: event.DeployRelease, Schedules: "0123456789abcdef",
	}
	w.report(d)
	w.report(&event.SchedulesDefined{DeployID: d.DeployID, Last: true, Set: []event.Schedule{{Name: name, EverySec: 3600, Run: event.RunSpec{All: true}}}})
	require.NotNil(w.t, w.state().Schedules.Get(name))
}

// A command with an outdated edit tag fails, even if a later command in the same ledger entry has changed the
// schedule.
func TestTagIsComparedInSharedEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, false)
		w.defineSchedule("nightly")
		seen := engine.Conditions{Tag: w.state().Schedules.Get("nightly").EditTag()}
		command := func(c engine.Conditions, verb string) func() error {
			return func() error {
				_, err := w.Under(c).CommandSchedule(t.Context(), &event.AutomationCommand{Name: "nightly", Verb: verb})
				return err
			}
		}
		errs := w.inOneEntry(command(seen, event.VerbPause), command(seen, event.VerbResume), command(engine.Conditions{}, event.VerbPause))
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], engine.ErrOutdated)
		require.ErrorContains(t, errs[1], w.state().Schedules.Get("nightly").EditTag(), "it names the current tag")
		require.NoError(t, errs[2])
		require.True(t, w.state().Schedules.Get("nightly").Paused)
	})
}

// A command that has no effect fails, even if another command in the same ledger entry has an effect.
func TestStaleCommandFailsInSharedEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, false)
		w.report(&event.BackfillCreated{
			BackfillID: w.cfg.IDs.New(), Assets: []string{"raw/days"}, ChunksRef: "backfills/acme/prod/" + strings.Repeat("0", 64) + ".json.zst",
			Sizes: []int32{1}, MaxParallel: 1, Only: "missing",
		})
		var id string
		for row := range w.state().Backfills.All {
			id = row.BackfillID
		}
		require.NotEmpty(t, id)
		command := func(verb string) func() error {
			return func() error {
				_, err := w.CommandBackfill(t.Context(), &event.AutomationCommand{Name: id, Verb: verb})
				return err
			}
		}
		errs := w.inOneEntry(command(event.VerbCancel), command(event.VerbResume))
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], engine.ErrNoEffect)
	})
}

// A repeated backfill of a schedule creates no ticks, even if the schedule has been paused in the meantime. It
// returns the number of ticks that the first command created.
func TestScheduleBackfillWithKeyMakesTicksOnce(t *testing.T) {
	w := newFixture(t, false)
	w.defineSchedule("nightly")
	to := w.state().Schedules.Get("nightly").Cursor.Time().Truncate(time.Hour)
	under := func(key string) *engine.Engine { return w.Under(engine.Conditions{Key: key, Fingerprint: "f"}) }
	first, err := under("k").BackfillSchedule(t.Context(), "nightly", to.Add(-3*time.Hour), to)
	require.NoError(t, err)
	require.Equal(t, 3, first.Ticks)
	_, err = w.CommandSchedule(t.Context(), &event.AutomationCommand{Name: "nightly", Verb: event.VerbPause})
	require.NoError(t, err)
	again, err := under("k").BackfillSchedule(t.Context(), "nightly", to.Add(-3*time.Hour), to)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Equal(t, 3, w.state().Ticks.Len())
	_, err = w.Under(engine.Conditions{Key: "k", Fingerprint: "other"}).BackfillSchedule(t.Context(), "nightly", to.Add(-time.Hour), to)
	require.ErrorIs(t, err, engine.ErrConflict)
	_, err = under("k2").BackfillSchedule(t.Context(), "nightly", to.Add(-3*time.Hour), to)
	require.ErrorIs(t, err, engine.ErrPaused)
}
