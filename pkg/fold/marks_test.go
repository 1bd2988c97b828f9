package fold_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// marking returns a command that marks the output of test/a from a run.
func marking(w *foldtest.World, run, mark string) *event.PartitionsMarked {
	return &event.PartitionsMarked{
		CommandID: w.ID(), Asset: "test/a", Mark: mark, ObservedSeq: w.State.FoldSeq, Reason: "because",
		Partitions: []event.MarkedPartition{{MaterializationID: ids.MaterializationID(foldtest.Domain, run, "a")}},
	}
}

func markOf(w *foldtest.World, run string) *state.Mark {
	return w.State.Marks.Get(state.Key3{A: "test/a", C: ids.MaterializationID(foldtest.Domain, run, "a")})
}

// made runs test/a and returns its run.
func made(w *foldtest.World) string {
	run := w.Run(foldtest.Task("a"))
	w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
	w.Pass(time.Second)
	return run
}

func TestMarkRecordsWhoWhenAndWhy(t *testing.T) {
	w := foldtest.New(t)
	run := made(w)
	seen := w.State.FoldSeq
	w.MustFold(marking(w, run, event.MarkFresh))
	row := markOf(w, run)
	require.Equal(t, event.MarkFresh, row.Mark)
	require.Equal(t, seen, row.InputsSeq)
	require.Equal(t, w.State.FoldSeq, row.MarkedSeq)
	require.Equal(t, event.At(w.Now), row.MarkedAt)
	require.Equal(t, "because", row.Reason)
	require.False(t, w.State.Hidden(visible(w)))
}

// A writer may claim to have seen events that are not folded yet. The fold must not believe this.
func TestMarkBoundsWhatItsWriterSaw(t *testing.T) {
	w := foldtest.New(t)
	run := made(w)
	p := marking(w, run, event.MarkFresh)
	p.ObservedSeq = 1 << 40
	w.MustFold(p)
	require.Equal(t, w.State.FoldSeq-1, markOf(w, run).InputsSeq)
}

func TestMarkOfGreatestCommandWins(t *testing.T) {
	for _, swapped := range []bool{false, true} {
		w := foldtest.New(t)
		run := made(w)
		first, second := marking(w, run, event.MarkStale), marking(w, run, event.MarkFresh)
		if swapped {
			w.MustFold(second)
			require.Equal(t, state.Stale, w.Fold(first).Row.Outcome)
		} else {
			w.MustFold(first, second)
		}
		require.Equal(t, event.MarkFresh, markOf(w, run).Mark)
		require.Equal(t, state.NoChange, w.Fold(second).Row.Outcome, "a duplicate changes nothing")
	}
}

// A hidden output stays hidden, because readers may have relied on the mark.
func TestMarkMissingIsFinal(t *testing.T) {
	w := foldtest.New(t)
	run := made(w)
	early := marking(w, run, event.MarkMissing)
	w.MustFold(marking(w, run, event.MarkStale))
	w.MustFold(early)
	require.True(t, w.State.Hidden(visible(w)))
	hidden := markOf(w, run).MarkedSeq
	require.Equal(t, state.Stale, w.Fold(marking(w, run, event.MarkFresh)).Row.Outcome)
	require.Equal(t, state.NoChange, w.Fold(marking(w, run, event.MarkMissing)).Row.Outcome)
	require.Equal(t, hidden, markOf(w, run).MarkedSeq, "its version stays")
}

func TestMarkEndsWithLaterOutput(t *testing.T) {
	w := foldtest.New(t)
	older := w.Run(foldtest.Task("a"))
	w.Pass(time.Second)
	run := made(w)
	w.MustFold(marking(w, run, event.MarkMissing))
	w.MustFold(w.Finished(older, "a", 1, event.Succeeded))
	require.True(t, w.State.Hidden(visible(w)), "an older run shows nothing")
	made(w)
	require.Zero(t, w.State.Marks.Len())
	require.False(t, w.State.Hidden(visible(w)))
}

func TestMarkEndsWithApproval(t *testing.T) {
	w := foldtest.New(t)
	run := made(w)
	w.MustFold(marking(w, run, event.MarkMissing))
	next := w.Run(guarded("a", event.Quarantine{ExpiresSec: hour}))
	w.MustFold(blockedBy(w, next, "a"))
	require.True(t, w.State.Hidden(visible(w)))
	decide(w, next, event.DecisionApprove)
	require.Zero(t, w.State.Marks.Len())
}

func TestMarksAreLimited(t *testing.T) {
	w := foldtest.New(t)
	run := made(w)
	for w.State.Marks.Len() <= state.MaxMarks-event.MaxMarked {
		p := marking(w, run, event.MarkStale)
		p.Partitions = nil
		for range event.MaxMarked {
			p.Partitions = append(p.Partitions, event.MarkedPartition{MaterializationID: w.ID()})
		}
		w.MustFold(p)
	}
	p := marking(w, run, event.MarkStale)
	require.Equal(t, state.Conflict, w.Fold(p).Row.Outcome)
	require.Nil(t, markOf(w, run))
	require.Contains(t, fold.MarkLimit(w.State, 1), "cannot mark 1 more partitions: 100000 are marked")
	require.Empty(t, fold.MarkLimit(w.State, 0))
}
