package engine_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

func TestApplyLimitsAppendsChangesOnly(t *testing.T) {
	w := newFixture(t, false)
	apply := func(slots int32, pools map[string]int32) int {
		before := w.state().FoldSeq
		require.NoError(t, w.ApplyLimits(t.Context(), engine.Limits{Workspace: slots, Pools: pools}))
		return int(w.state().FoldSeq - before)
	}
	require.Equal(t, 3, apply(10, map[string]int32{"gpu": 1, "db": 2}))
	require.Zero(t, apply(10, map[string]int32{"gpu": 1, "db": 2}))
	require.Equal(t, 1, apply(10, map[string]int32{"gpu": 4, "db": 2}))
	require.Equal(t, engine.Limits{Workspace: 10, Pools: map[string]int32{"gpu": 4, "db": 2}}, engine.LimitsOf(w.state()))
}

func TestApplyLimitsRemovesPoolsThatAreGone(t *testing.T) {
	w := newFixture(t, false)
	require.NoError(t, w.ApplyLimits(t.Context(), engine.Limits{Workspace: 10, Pools: map[string]int32{"gpu": 1, "db": 2}}))
	require.NoError(t, w.ApplyLimits(t.Context(), engine.Limits{Pools: map[string]int32{"db": 2}}))
	_, limited := w.state().SlotLimit(event.ScopePool, "gpu")
	require.False(t, limited, "the limit was removed")
	slots, _ := w.state().SlotLimit(event.ScopeWorkspace, "")
	require.Equal(t, int32(state.DefaultWorkspaceSlots), slots)
	row := w.state().Limits.Get(state.Key2{A: event.ScopePool, B: "gpu"})
	require.Equal(t, int32(math.MaxInt32), row.Slots, "builds that do not know removed apply this")

	before := w.state().FoldSeq
	require.NoError(t, w.ApplyLimits(t.Context(), engine.Limits{Pools: map[string]int32{"db": 2}}))
	require.Equal(t, before, w.state().FoldSeq, "removed only once")
	require.NoError(t, w.ApplyLimits(t.Context(), engine.Limits{Pools: map[string]int32{"db": 2, "gpu": 3}}))
	slots, limited = w.state().SlotLimit(event.ScopePool, "gpu")
	require.True(t, limited)
	require.Equal(t, int32(3), slots)
}

func TestSetAndRemoveOneLimit(t *testing.T) {
	w := newFixture(t, false)
	require.NoError(t, w.SetLimit(t.Context(), "gpu", 0))
	require.NoError(t, w.SetLimit(t.Context(), "", 7))
	require.Equal(t, engine.Limits{Workspace: 7, Pools: map[string]int32{"gpu": 0}}, engine.LimitsOf(w.state()))
	before := w.state().FoldSeq
	require.NoError(t, w.SetLimit(t.Context(), "gpu", 0))
	require.Equal(t, before, w.state().FoldSeq, "nothing to change")
	require.NoError(t, w.RemoveLimit(t.Context(), "gpu"))
	require.NoError(t, w.RemoveLimit(t.Context(), ""))
	require.Equal(t, engine.Limits{Pools: map[string]int32{}}, engine.LimitsOf(w.state()))
	err := w.RemoveLimit(t.Context(), "gpu")
	require.ErrorIs(t, err, engine.ErrNotFound)
	require.ErrorContains(t, err, "remove the limit of pool gpu")
}
