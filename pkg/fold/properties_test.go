package fold_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/state"
)

// reload returns a new state with the rows of s, as if loaded from files.
func reload(s *state.State) *state.State {
	fresh := state.New(s.Domain)
	fresh.Load(s.All())
	fresh.FoldSeq, fresh.FoldTime = s.FoldSeq, s.FoldTime
	return fresh
}

// This test folds random groups. After each group, the checks of foldtest pass, terminal rows are unchanged, and no
// task was admitted beyond a limit or before its trigger rule was satisfied. This test failed with each of these
// mutants of the fold: it compares the limit of a pool with <=; it does not decrement the counter of the old state;
// it makes a task READY after a skipped upstream; it does not refresh which task of a run is next for admission after
// a task has changed.
func TestRandomWalkKeepsRules(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWalk(r)
		for range rapid.IntRange(5, 60).Draw(r, "steps") {
			if g, err := w.step(); err != nil {
				r.Fatalf("%s: %v\n%s", foldtest.Types(g), err, w.log())
			}
		}
	})
}

// A state that was loaded from rows, or from deltas, makes the same decisions as the original state.
func TestReloadedStateDecidesTheSame(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWalk(r)
		loaded, deltas := state.New(foldtest.Domain), state.New(foldtest.Domain)
		for range rapid.IntRange(5, 60).Draw(r, "steps") {
			if rapid.IntRange(0, 3).Draw(r, "reload") == 0 {
				loaded = reload(w.State)
			}
			w.State.Drain()
			g, err := w.step()
			if err != nil {
				r.Fatalf("%s: %v\n%s", foldtest.Types(g), err, w.log())
			}
			fold.Apply(loaded, g)
			deltas.Load(w.State.Changed())
			want := w.State.All()
			if diff := foldtest.Compare(loaded.All(), want); diff != "" {
				r.Fatalf("after %s, the reloaded state differs: %s", foldtest.Types(g), diff)
			}
			if diff := foldtest.Compare(deltas.All(), want); diff != "" {
				r.Fatalf("after %s, the state of the deltas differs: %s", foldtest.Types(g), diff)
			}
			if err := deltas.Verify(); err != nil {
				r.Fatalf("after %s, state of the deltas: %v", foldtest.Types(g), err)
			}
		}
	})
}

// I-17. Folding the same groups in the same order results in the same rows, in every column. Copies of the state that
// were made in the meantime do not change.
func TestI17ReplayResultsInSameRows(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWalk(r)
		type copied struct {
			state *state.State
			text  string
		}
		var copies []copied
		for range rapid.IntRange(5, 60).Draw(r, "steps") {
			if rapid.IntRange(0, 5).Draw(r, "copy") == 0 {
				copies = append(copies, copied{w.State.Copy(), foldtest.Text(w.State.All())})
			}
			if g, err := w.step(); err != nil {
				r.Fatalf("%s: %v\n%s", foldtest.Types(g), err, w.log())
			}
		}
		replayed := state.New(foldtest.Domain)
		for _, g := range w.groups {
			fold.Apply(replayed, g)
		}
		want := w.State.All()
		if diff := foldtest.Compare(replayed.All(), want); diff != "" {
			r.Fatalf("the replay differs: %s", diff)
		}
		text := foldtest.Text(want)
		if replayed.FoldSeq != w.State.FoldSeq || replayed.FoldTime != w.State.FoldTime {
			r.Fatalf("the replay ended at %d and %s, want %d and %s",
				replayed.FoldSeq, replayed.FoldTime, w.State.FoldSeq, w.State.FoldTime)
		}
		for _, c := range copies {
			if diff := foldtest.Difference(foldtest.Text(c.state.All()), c.text); diff != "" {
				r.Fatalf("a change of the original changed a copy: %s", diff)
			}
			if err := c.state.Verify(); err != nil {
				r.Fatalf("copy: %v", err)
			}
			for _, g := range w.groups { // folding into a copy must not change the original
				fold.Apply(c.state, g)
			}
		}
		if diff := foldtest.Difference(foldtest.Text(w.State.All()), text); diff != "" {
			r.Fatalf("a change of a copy changed the original: %s", diff)
		}
	})
}
