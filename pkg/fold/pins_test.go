package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// pinning returns a command that pins a revision for some time. If that time is 0, the command ends the pin.
func pinning(w *foldtest.World, revision int64, span time.Duration) *event.RevisionPinned {
	return &event.RevisionPinned{CommandID: w.ID(), Revision: revision, Until: event.At(w.Now.Add(span)), Reason: "because"}
}

func TestPinRecordsWhoWhenAndWhy(t *testing.T) {
	w := foldtest.New(t)
	p := pinning(w, 7, time.Hour)
	w.MustFold(p)
	row := w.State.PinnedAt(event.At(w.Now))[7]
	require.Equal(t, p.Until, row.Until)
	require.Equal(t, event.At(w.Now), row.PinnedAt)
	require.Equal(t, "because", row.Reason)
	require.Equal(t, state.NoChange, w.Fold(p).Row.Outcome, "a duplicate changes nothing")
	require.Empty(t, w.State.PinnedAt(event.At(w.Now.Add(time.Hour))), "it has ended")
}

func TestPinOfGreatestCommandWins(t *testing.T) {
	for _, swapped := range []bool{false, true} {
		w := foldtest.New(t)
		first, second := pinning(w, 7, time.Hour), pinning(w, 7, 0)
		if swapped {
			w.MustFold(second)
			require.Equal(t, state.Stale, w.Fold(first).Row.Outcome)
		} else {
			w.MustFold(first, second)
		}
		require.Empty(t, w.State.PinnedAt(event.At(w.Now)))
	}
}

func TestPinsAreLimited(t *testing.T) {
	w := foldtest.New(t)
	for i := range int64(state.MaxPins) {
		w.MustFold(pinning(w, i+1, time.Hour))
	}
	require.Equal(t, state.Conflict, w.Fold(pinning(w, 100, time.Hour)).Row.Outcome)
	require.Contains(t, fold.PinLimit(state.MaxPins), "10 revisions are pinned: at most 10 are allowed")
	w.MustFold(pinning(w, 3, 2*time.Hour)) // this extends the pin
	w.MustFold(pinning(w, 4, 0))           // this ends the pin
	w.MustFold(pinning(w, 100, time.Hour))
	require.Equal(t, state.Conflict, w.Fold(pinning(w, 101, time.Hour), pinning(w, 102, time.Hour)).Row.Outcome)
	w.Pass(90 * time.Minute)
	require.Len(t, w.State.PinnedAt(event.At(w.Now)), 1)
}

func TestEndedPinsLeaveTheState(t *testing.T) {
	w := foldtest.New(t)
	w.MustFold(pinning(w, 1, time.Hour))
	w.Pass(29 * 24 * time.Hour)
	w.MustFold(pinning(w, 2, time.Hour))
	require.Equal(t, 2, w.State.Pins.Len())
	w.Pass(3 * 24 * time.Hour)
	w.MustFold(pinning(w, 3, time.Hour))
	require.Equal(t, 2, w.State.Pins.Len())
	require.Nil(t, w.State.Pins.Get("1"))
}
