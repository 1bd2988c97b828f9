package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// A caller in the process gets the values and the error of the handler. The text of the error is the detail of the
// problem that callers over HTTP get.
func TestLocalAnswersLikeTheServer(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	l := api.NewLocal(api.Config{Engine: f.stack.Engine, User: func(http.Header) string { return "test" }, ReadOnly: true})
	remote := f.connect(t)
	for name, request := range map[string]*servov1.GetBackfillRequest{
		"unknown": {BackfillId: "NONE"}, "no id": {}, "invalid": {BackfillId: "a b"}, "too long": {BackfillId: strings.Repeat("A", 5000)},
	} {
		_, err := l.GetBackfill(t.Context(), request)
		_, sent := remote.backfills.GetBackfill(t.Context(), request)
		require.EqualError(t, err, problemIn(t, sent).GetDetail(), name)
		if name == "unknown" {
			require.ErrorIs(t, err, engine.ErrNotFound)
		}
	}
	want, err := remote.automation.ListRequests(t.Context(), &servov1.ListRequestsRequest{Ended: true})
	require.NoError(t, err)
	got, err := l.ListRequests(t.Context(), &servov1.ListRequestsRequest{Ended: true})
	require.NoError(t, err)
	require.Equal(t, want.GetRevision(), got.GetRevision())

	none, err := l.ListQuarantined(t.Context(), &servov1.ListQuarantinedRequest{})
	require.NoError(t, err)
	require.Empty(t, api.ReadAll[engine.Candidate](none.GetOutputs()))
}
