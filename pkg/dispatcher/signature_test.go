package dispatcher_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// This test fails if a domain is opened before the signature is checked. Then the status, 401 or 404, would tell
// strangers which domains exist, and each request would read the store.
func TestUnsignedCallbackOpensNoDomain(t *testing.T) {
	mux := http.NewServeMux()
	dispatcher.Register(mux, func(context.Context, ids.Domain) (*dispatcher.Dispatcher, error) {
		t.Error("a domain was opened")
		return nil, nil
	}, keys, &tick{now: foldtest.Epoch})
	signed := contract.CallbackURL("", contract.Callback{
		Domain: acme, RunID: ids.AtTime(foldtest.Epoch), TaskKey: "a/b", Attempt: 1, AttemptID: "x", Verb: contract.VerbFinished, Expires: 1,
	}, keys)
	for name, target := range map[string]string{
		"unsigned": strings.Split(signed, "?")[0], "expired": signed, "another domain": strings.Replace(signed, acme.Tenant, "nobody", 1),
	} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader("{}")))
		require.Equal(t, http.StatusUnauthorized, answer.Code, name)
	}
}
