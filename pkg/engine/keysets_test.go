package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
)

func TestChangeKeysAppendsChangesOnly(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		made, err := w.AddKeys(t.Context(), "tenants", []string{"globex", "acme", "acme"})
		require.NoError(t, err)
		require.Equal(t, engine.KeysChanged{Set: "tenants", Added: 2, Keys: 2}, made)
		before := w.state().FoldSeq
		made, err = w.AddKeys(t.Context(), "tenants", []string{"acme"})
		require.NoError(t, err)
		require.Equal(t, engine.KeysChanged{Set: "tenants", Keys: 2}, made)
		made, err = w.RemoveKeys(t.Context(), "tenants", []string{"hooli"})
		require.NoError(t, err)
		require.Zero(t, made.Removed)
		require.Equal(t, before, w.state().FoldSeq, "nothing to change")

		made, err = w.RemoveKeys(t.Context(), "tenants", []string{"acme"})
		require.NoError(t, err)
		require.Equal(t, engine.KeysChanged{Set: "tenants", Removed: 1, Keys: 1}, made)
		require.Equal(t, []string{"globex"}, w.state().Keys("tenants"))
	})
}

func TestChangeKeysSplitsCommands(t *testing.T) {
	w := newFixture(t, false)
	var keys []string
	for i := range 5001 {
		keys = append(keys, fmt.Sprintf("%s%04d", strings.Repeat("x", 200), i))
	}
	made, err := w.AddKeys(t.Context(), "tenants", keys)
	require.NoError(t, err)
	require.Equal(t, 5001, made.Keys)
	require.EqualValues(t, 4, w.state().FoldSeq)
	require.Equal(t, keys, w.state().Keys("tenants"))
}

func TestChangeKeysRejectsInvalidOnes(t *testing.T) {
	w := newFixture(t, false)
	for set, key := range map[string]string{"Tenants": "a", "tenants": "a,b"} {
		_, err := w.AddKeys(t.Context(), set, []string{"ok", key})
		invalid := &engine.InvalidError{}
		require.ErrorAs(t, err, &invalid)
	}
	require.Zero(t, w.state().FoldSeq)
}
