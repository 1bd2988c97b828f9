package fold_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

func changed(w *foldtest.World, set string, add, remove []string) *event.PartitionsChanged {
	return &event.PartitionsChanged{CommandID: w.ID(), KeySet: set, Add: add, Remove: remove}
}

func TestKeySetsHaveWhatCommandsLeft(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		w := foldtest.New(t)
		long := strings.Repeat("x", rapid.SampledFrom([]int{1, 100, 240}).Draw(r, "length"))
		model := map[string]map[string]bool{"a": {}, "b": {}}
		changes := map[string]map[string]int64{"a": {}, "b": {}}
		for range rapid.IntRange(1, 12).Draw(r, "commands") {
			set := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "set")
			first, n := rapid.IntRange(0, 300).Draw(r, "first"), rapid.IntRange(1, 120).Draw(r, "keys")
			var keys []string
			for i := range n {
				keys = append(keys, fmt.Sprintf("%03d%s", (first+i*7)%400, long))
			}
			remove := rapid.Bool().Draw(r, "remove")
			if remove {
				w.Fold(changed(w, set, nil, keys))
			} else {
				w.Fold(changed(w, set, keys, nil))
			}
			for _, key := range keys {
				has, known := model[set][key]
				if known && has == remove && (has || changes[set][key] > 0) {
					changes[set][key] = w.State.FoldSeq
				}
				model[set][key] = !remove
			}
		}
		for set, keys := range model {
			maps.DeleteFunc(changes[set], func(_ string, seq int64) bool { return seq == 0 })
			if have := w.State.KeyChanges(set); len(have)+len(changes[set]) > 0 {
				require.Equal(r, changes[set], have)
			}
			maps.DeleteFunc(keys, func(_ string, has bool) bool { return !has })
			require.Equal(r, slices.Sorted(maps.Keys(keys)), w.State.Keys(set))
		}
		for row := range w.State.KeySets.All {
			require.LessOrEqual(r, len(row.Keys), 5000, "a change of a key writes a small row")
		}
	})
}

func TestLateKeyCommandsAreStale(t *testing.T) {
	w := foldtest.New(t)
	first := w.Group(changed(w, "tenants", []string{"acme"}, nil))
	removed := w.Group(changed(w, "tenants", nil, []string{"acme"}))
	again := w.Group(changed(w, "tenants", []string{"acme"}, nil))
	for _, g := range []fold.Group{first, removed, again} {
		require.Equal(t, state.Folded, w.Apply(g).Row.Outcome)
	}
	before := w.State.KeyChanges("tenants")
	for _, g := range []fold.Group{first, removed, again} {
		g.Entry = w.ID() // a second delivery
		require.NotEqual(t, state.Folded, w.Apply(g).Row.Outcome)
	}
	require.Equal(t, []string{"acme"}, w.State.Keys("tenants"))
	require.Equal(t, before, w.State.KeyChanges("tenants"))
}

func TestKeySetsHaveLimits(t *testing.T) {
	w := foldtest.New(t)
	for i := range fold.MaxKeySets {
		w.MustFold(changed(w, fmt.Sprintf("s%d", i), []string{"k"}, nil))
	}
	row := w.Fold(changed(w, "more", []string{"k"}, nil)).Row
	require.Equal(t, state.Conflict, row.Outcome)
	require.Contains(t, row.Detail, "the workspace has 1000 key sets")
	w.MustFold(changed(w, "s0", []string{"l"}, nil))
	require.Empty(t, fold.KeyLimit(w.State, "s0", []string{"m"}))

	many := make([]string, 300_000)
	for i := range many {
		many[i] = strings.Repeat("x", ids.MaxValue-6) + fmt.Sprintf("%06d", i)
	}
	require.Contains(t, fold.KeyLimit(w.State, "s0", many), "the keys of all sets would have 77")
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	require.Empty(t, fold.KeyLimit(w.State, "s0", many))
}
