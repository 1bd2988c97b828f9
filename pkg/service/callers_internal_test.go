package service

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/identitytest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/identity"
)

func TestVerifiedCallerIsKeptAndLogged(t *testing.T) {
	const account, audience = "dispatcher@servo.example", "https://compactor.example"
	issuer := identitytest.New(t, clock.System{}.Now)
	var out strings.Builder
	s := newServer(t)
	s.logger = NewLogger(&out, slog.LevelDebug, true, "")
	s.callers = &callers{identity.New(t.Context(), identity.Config{
		Issuer: issuer.URL, KeysURL: issuer.KeysURL(), Audience: audience, Accounts: []string{account}, Client: http.DefaultClient, Now: clock.System{}.Now,
	}), map[string][]string{account: {roleDispatcher}}}
	var kept string
	s.mux.HandleFunc("POST /v1/compact", func(_ http.ResponseWriter, r *http.Request) { kept = identity.Caller(r.Context()) })
	server := httptest.NewServer(s.handler())
	defer server.Close()

	token, err := issuer.Token(account, audience)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/compact", http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := server.Client().Do(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode, out.String())
	require.Equal(t, account, kept)
	require.Contains(t, out.String(), `"caller":"`+account+`"`)
	http.DefaultClient.CloseIdleConnections()
}
