package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// forgetting returns a command that forgets test/a.
func forgetting(w *foldtest.World) *event.AssetsForgotten {
	return &event.AssetsForgotten{CommandID: w.ID(), Assets: []string{"test/a"}, Release: w.State.Release(), Reason: "because"}
}

func TestForgettingHidesOutputsOfEarlierRuns(t *testing.T) {
	w := foldtest.New(t)
	made(w)
	require.NotNil(t, w.State.Statistics.Get("test/a"))
	p := forgetting(w)
	w.MustFold(p)
	row := w.State.Forgotten.Get("test/a")
	require.Equal(t, p.CommandID, row.CommandID)
	require.Equal(t, event.At(w.Now), row.ForgottenAt)
	require.Equal(t, "because", row.Reason)
	require.True(t, w.State.Hidden(visible(w)))
	m := w.State.MarkOf(visible(w))
	require.Equal(t, w.State.FoldSeq, m.MarkedSeq)
	require.Equal(t, event.At(w.Now), m.MarkedAt)
	require.Nil(t, w.State.Statistics.Get("test/a"))
	require.Equal(t, state.NoChange, w.Fold(p).Row.Outcome, "a duplicate changes nothing")

	w.Pass(time.Second)
	made(w)
	require.False(t, w.State.Hidden(visible(w)), "the asset came back, and this output is of a later run")
}

func TestForgettingOfGreatestCommandWins(t *testing.T) {
	for _, swapped := range []bool{false, true} {
		w := foldtest.New(t)
		made(w)
		first := forgetting(w)
		if !swapped {
			w.MustFold(first)
		}
		w.Pass(time.Second)
		made(w)
		require.False(t, w.State.Hidden(visible(w)), "the later run is not concerned")
		second := forgetting(w)
		w.MustFold(second)
		if swapped {
			require.Equal(t, state.NoChange, w.Fold(first).Row.Outcome)
		}
		require.True(t, w.State.Hidden(visible(w)))
		require.Equal(t, second.CommandID, w.State.Forgotten.Get("test/a").CommandID)
	}
}

// An asset that may be in use cannot be forgotten.
func TestForgettingConflicts(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	result := w.Fold(forgetting(w))
	require.Equal(t, state.Conflict, result.Row.Outcome)
	require.Contains(t, result.Row.Detail, "the live run "+run+" has tasks of test/a")
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))

	p := forgetting(w)
	p.Release = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	require.Equal(t, state.Conflict, w.Fold(p).Row.Outcome, "another release is deployed")
	require.Nil(t, w.State.Forgotten.Get("test/a"))
	require.False(t, w.State.Hidden(visible(w)))
	w.MustFold(forgetting(w))
	require.True(t, w.State.Hidden(visible(w)))
}

// In a rebuild without the recorded order, a run that a timer ended may still be live when the command is folded.
func TestBareRebuildObeysEveryForgetting(t *testing.T) {
	w := foldtest.New(t)
	made(w)
	w.Run(foldtest.Task("a"))
	p := forgetting(w)
	p.Release = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	g := w.Group(p)
	g.Bare, g.Proven = true, true
	require.Equal(t, state.Folded, w.Apply(g).Row.Outcome)
	require.True(t, w.State.Hidden(visible(w)))
}

// The clock of the command's writer is fast by almost an hour.
func TestForgettingFollowsOrderOfLedger(t *testing.T) {
	w := foldtest.New(t)
	made(w)
	p := forgetting(w)
	p.CommandID = ids.AtTime(w.Now.Add(50 * time.Minute))
	w.MustFold(p)
	require.True(t, w.State.Hidden(visible(w)))
	w.Pass(time.Second)
	run := made(w)
	require.Less(t, run, p.CommandID)
	require.False(t, w.State.Hidden(visible(w)), "the output was made after the command")
	require.NotNil(t, w.State.Statistics.Get("test/a"))
	require.Empty(t, w.State.Forgotten.Get("test/a").RunsBelow)
}

// A rebuild without the recorded order may fold a report after a command, although the command's writer has seen the
// report.
func TestBareRebuildHidesOutputsOfSmallerRuns(t *testing.T) {
	w := foldtest.New(t)
	run := w.Run(foldtest.Task("a"))
	p := forgetting(w)
	g := w.Group(p)
	g.Bare, g.Proven = true, true
	w.Apply(g)
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	require.True(t, w.State.Hidden(visible(w)))
	w.Pass(time.Second)
	made(w)
	require.False(t, w.State.Hidden(visible(w)))
}
