package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// failedAfter starts a run of a, and of b, which reads a. Only a succeeds.
func (w *fixture) failedAfter() engine.RunHandle {
	handle := w.run(request(asset("a"), asset("b", "a")))
	w.report(w.finished(handle.RunID, "raw/a", event.Succeeded), w.finished(handle.RunID, "raw/b", event.Failed))
	return handle
}

func TestRetryRefusesHiddenInput(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		parent := w.failedAfter()
		key := ids.AssetKey{Namespace: "raw", Name: "a"}
		_, err := w.Mark(t.Context(), engine.MarkRequest{
			Assets: request(asset("a"), asset("b", "a")).Plan.Assets, Asset: key, Mark: event.MarkMissing, Reason: "wrong currency",
		})
		require.NoError(t, err)
		runs := w.state().Runs.Len()
		_, err = w.Retry(t.Context(), parent.RunID)
		require.ErrorIs(t, err, engine.ErrMissingInput)
		require.ErrorContains(t, err, "retry run "+parent.RunID+": MISSING_INPUT: task raw/b reads raw/a: jane marked it as missing at ")
		require.ErrorContains(t, err, ": wrong currency: make the outputs again with `servo run`")
		require.Equal(t, runs, w.state().Runs.Len())
	})
}

func TestRetryRefusesDeletedInput(t *testing.T) {
	w := newFixture(t, false)
	parent := w.run(request(asset("a"), asset("b", "a")))
	id := ids.MaterializationID(w.Domain(), parent.RunID, "raw/a")
	ref := foldtest.Ref(parent.RunID, "raw/a", 1)
	made := w.finished(parent.RunID, "raw/a", event.Succeeded)
	made.Output.URI = contract.ExecutionPrefix(w.Domain(), ids.AssetKey{Namespace: "raw", Name: "a"}, "", id, ref.AttemptID, "n")
	w.report(made, w.finished(parent.RunID, "raw/b", event.Failed))
	later := w.run(request(asset("a")))
	w.report(w.finished(later.RunID, "raw/a", event.Succeeded))
	_, err := w.Retry(t.Context(), parent.RunID)
	require.ErrorIs(t, err, engine.ErrMissingInput)
	require.ErrorContains(t, err, "task raw/b reads raw/a: a later output replaced it, and `keep` has expired")

	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Get && contract.IsMarker(key) {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err = w.Retry(t.Context(), parent.RunID)
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.NotErrorIs(t, err, engine.ErrMissingInput)
	w.faults(nil)

	marker, err := json.Marshal(&contract.CommitMarker{
		MaterializationID: id, RunID: parent.RunID, TaskKey: "raw/a", AssetKey: "raw/a", Attempt: 1, AttemptID: ref.AttemptID,
		Nonce: "n", URI: made.Output.URI, CommittedAt: made.CompletedAt, StartedAt: made.StartedAt,
	})
	require.NoError(t, err)
	_, err = w.blobs.Create(t.Context(), contract.CommitMarkerKeyOf(made.Output.URI), marker)
	require.NoError(t, err)
	handle, err := w.Retry(t.Context(), parent.RunID)
	require.NoError(t, err, "the output is superseded, but still stored")
	require.Equal(t, 1, handle.Tasks)
}
