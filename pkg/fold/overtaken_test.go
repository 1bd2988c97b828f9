package fold_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A run may be requested first, and be planned after a later run has made an upstream. Then its own output of this
// upstream does not become visible, but its readers read it. They must not seem to have read the visible one.
func TestI21ReaderOfOvertakenOutputIsIncomplete(t *testing.T) {
	w := foldtest.New(t)
	first := w.Run(assetTask("a"), assetTask("b", "a"))
	w.Pass(minute)
	second := w.Run(assetTask("a"))
	w.MustFold(w.Finished(second, "a", 1, event.Succeeded))
	visible := w.State.Partitions.Get(state.Key2{A: "a"})
	require.Equal(t, second, visible.RunID)

	w.MustFold(w.Finished(first, "a", 1, event.Succeeded))
	require.Same(t, visible, w.State.Partitions.Get(state.Key2{A: "a"}))
	w.MustFold(w.Finished(first, "b", 1, event.Succeeded))
	reader := w.State.Partitions.Get(state.Key2{A: "b"})
	require.Equal(t, first, reader.RunID)
	require.Zero(t, reader.InputsSeq)
	require.True(t, reader.Incomplete())
}

func assetTask(key string, dependsOn ...string) event.TaskDef {
	def := foldtest.Task(key, dependsOn...)
	def.AssetKey = key
	return def
}
