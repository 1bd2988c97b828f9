package fold_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/state"
)

// reload is a state made of another's rows, as from files.
func reload(s *state.State) *state.State {
	fresh := state.New(s.Domain)
	fresh.Load(s.All())
	fresh.FoldSeq, fresh.FoldTime = s.FoldSeq, s.FoldTime
	return fresh
}

// Whatever is folded, in whatever order, every oracle of foldtest holds after
// each group, terminal rows stay as they are, and nothing is admitted beyond a
// limit or before its rule. Seen to fail with each of these broken: the limit of
// a pool compared with <=, the counter of a state not taken down, READY given
// for a skipped upstream, and index.task not looking anew at its run's candidates.
func TestRandomWalkKeepsRules(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := newWalk(r)
		for range rapid.IntRange(5, 60).Draw(r, "steps") {
			if g, err := w.step(); err != nil {
				r.Fatalf("%s: %v\n%s", foldtest.Types(g), err, w.told())
			}
		}
	})
}

// A state loaded from its rows, or from one delta after the other, decides as
// the one that wrote them.
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
				r.Fatalf("%s: %v\n%s", foldtest.Types(g), err, w.told())
			}
			fold.Apply(loaded, g)
			deltas.Load(w.State.Changed())
			want := w.State.All()
			if diff := foldtest.Compare(loaded.All(), want); diff != "" {
				r.Fatalf("after %s a reloaded state has something else: %s", foldtest.Types(g), diff)
			}
			if diff := foldtest.Compare(deltas.All(), want); diff != "" {
				r.Fatalf("after %s the deltas give something else: %s", foldtest.Types(g), diff)
			}
			if err := deltas.Verify(); err != nil {
				r.Fatalf("after %s, of the deltas: %v", foldtest.Types(g), err)
			}
		}
	})
}

// I-17: folding the recorded groups again, in their order, gives the same rows,
// every column of them; and a copy taken on the way is as it was.
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
				r.Fatalf("%s: %v\n%s", foldtest.Types(g), err, w.told())
			}
		}
		replayed := state.New(foldtest.Domain)
		for _, g := range w.groups {
			fold.Apply(replayed, g)
		}
		want := w.State.All()
		if diff := foldtest.Compare(replayed.All(), want); diff != "" {
			r.Fatalf("a replay gives something else: %s", diff)
		}
		text := foldtest.Text(want)
		if replayed.FoldSeq != w.State.FoldSeq || replayed.FoldTime != w.State.FoldTime {
			r.Fatalf("a replay comes to %d at %s", replayed.FoldSeq, replayed.FoldTime)
		}
		for _, c := range copies {
			if diff := foldtest.Difference(foldtest.Text(c.state.All()), c.text); diff != "" {
				r.Fatalf("a copy saw what happened to the original: %s", diff)
			}
			if err := c.state.Verify(); err != nil {
				r.Fatalf("of a copy: %v", err)
			}
			for _, g := range w.groups { // and the original does not see what happens to the copy
				fold.Apply(c.state, g)
			}
		}
		if diff := foldtest.Difference(foldtest.Text(w.State.All()), text); diff != "" {
			r.Fatalf("the original saw what happened to a copy: %s", diff)
		}
	})
}
