package engine_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// A person may confirm a command minutes after the CLI has compared the assets with the deployed release. If another
// release has been deployed since, the command must not reach the ledger: a rebuild without the recorded order
// accepts every such command.
func TestForgetRejectsOtherReleaseBeforeAppend(t *testing.T) {
	w := newFixture(t, false)
	handle := w.run(request(asset("a")))
	w.report(w.finished(handle.RunID, "raw/a", event.Succeeded))
	before, err := w.Current(t.Context())
	require.NoError(t, err)
	r := engine.ForgetRequest{Assets: []ids.AssetKey{asset("a").Key}, Release: strings.Repeat("a", 64), Reason: "x"}
	_, err = w.Forget(t.Context(), r)
	require.ErrorIs(t, err, engine.ErrChanged)
	after, err := w.Current(t.Context())
	require.NoError(t, err)
	require.Equal(t, before.State.FoldSeq, after.State.FoldSeq, "no command was appended")

	r.Release = ""
	_, err = w.Forget(t.Context(), r)
	require.NoError(t, err)
}
