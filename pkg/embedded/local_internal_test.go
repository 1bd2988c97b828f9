package embedded

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// In an earlier version, the server listened on any address without authentication, and checked only the Host header,
// which the client chooses.
func TestListenRejectsReachableAddresses(t *testing.T) {
	for _, address := range []string{"", "127.0.0.1:0", "127.8.0.1:4280", "localhost:4280", "[::1]:0"} {
		require.NoError(t, CheckListen(address), address)
	}
	for _, address := range []string{"0.0.0.0:4280", ":4280", "[::]:0", "192.168.1.5:4280", "example.com:80", "localhost.example.com:80"} {
		require.ErrorIs(t, CheckListen(address), ErrNotLocal, address)
	}
	require.ErrorContains(t, CheckListen("127.0.0.1"), "missing port")
	_, err := Start(t.Context(), Options{Dir: t.TempDir(), Listen: ":0", Domain: ids.Domain{Tenant: "acme", Workspace: "prod"}})
	require.ErrorIs(t, err, ErrNotLocal)
}

// Every response that rejects a request is a problem document (RFC 9457).
func TestRejectionsAreProblemDocuments(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/runs/{run}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.PathValue("run")))
	})
	mux.HandleFunc("POST /v1/runs", func(http.ResponseWriter, *http.Request) {})
	handleUnknown(mux)
	handler := localOnly(mux)
	for name, c := range map[string]struct {
		method, path, remote, host, origin string
		status                             int
		detail                             string
	}{
		"no route":      {path: "/v1/nope", status: 404, detail: "unknown route /v1/nope"},
		"wrong method":  {method: "DELETE", path: "/v1/runs/x", status: 405, detail: "/v1/runs/x allows GET, not DELETE"},
		"other machine": {remote: "192.168.1.7:33000", path: "/v1/runs/x", status: 403, detail: "this server accepts requests from this machine only"},
		"other name":    {host: "evil.example.com", path: "/v1/runs/x", status: 403, detail: "this server accepts the host names 127.0.0.1 and localhost only"},
		"other origin":  {method: "POST", path: "/v1/runs", origin: "http://evil.example.com", status: 403, detail: "this server rejects requests of web pages from another origin: http://evil.example.com"},
		"allowed":       {path: "/v1/runs/x", status: 200},
		"allowed IPv6":  {path: "/v1/runs/x", remote: "[::1]:33000", host: "[::1]:4280", status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), cmp.Or(c.method, "GET"), c.path, nil)
			r.RemoteAddr, r.Host = cmp.Or(c.remote, "127.0.0.1:33000"), cmp.Or(c.host, "localhost:4280")
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			require.Equal(t, c.status, w.Code, w.Body.String())
			if c.status == http.StatusOK {
				require.Equal(t, "x", w.Body.String())
				return
			}
			require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
			var problem contract.Problem
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &problem))
			want := contract.Problem{Title: http.StatusText(c.status), Status: c.status, Detail: c.detail}
			if c.status == http.StatusForbidden {
				want.Type, want.Title = "urn:servo:problem:permission-denied", "Permission denied"
			}
			require.Equal(t, want, problem)
		})
	}
}

// A client sends the token to the owner only.
func TestClientSendsTokenToOwnerOnly(t *testing.T) {
	var sent string
	transport := roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = r.Header.Get("Authorization")
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
	})
	client := &http.Client{Transport: bearer{host: "127.0.0.1:4280", token: "secret", inner: transport}}
	for url, want := range map[string]string{
		"http://127.0.0.1:4280/v1/runs": "Bearer secret", "http://127.0.0.1:4281/execute": "", "http://worker.example/execute": "",
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
		require.NoError(t, err)
		answer, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, want, sent, url)
		require.Empty(t, r.Header.Get("Authorization"), "the client modifies a copy of the request")
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
