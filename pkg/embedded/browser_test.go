package embedded_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/embedded"
)

// loginURL asks an owner for an address that logs a browser in.
func loginURL(t *testing.T, owner embedded.Owner) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, owner.URL+"/v1/logins", strings.NewReader("{}"))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+owner.Token)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	var made embedded.Login
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&made))
	return made.URL
}

// visited is the response to a browser that opens an address. Its cookie is "name=value".
type visited struct {
	status           int
	location, cookie string
}

func visit(t *testing.T, method, url string) (v visited) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	require.NoError(t, err)
	answer, err := noRedirects.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	v.status, v.location = answer.StatusCode, answer.Header.Get("Location")
	for _, c := range answer.Cookies() {
		require.True(t, c.HttpOnly)
		require.Equal(t, http.SameSiteStrictMode, c.SameSite)
		v.cookie = c.Name + "=" + c.Value
	}
	return v
}

// login logs a browser in and returns its cookie.
func login(t *testing.T, owner embedded.Owner) string {
	t.Helper()
	v := visit(t, http.MethodGet, loginURL(t, owner))
	require.NotEmpty(t, v.cookie)
	return v.cookie
}

func TestLoginCodeWorksOnce(t *testing.T) {
	owner, _ := served(t, t.TempDir())
	defer http.DefaultClient.CloseIdleConnections()
	address := loginURL(t, owner)
	require.Empty(t, visit(t, http.MethodHead, address).cookie, "a program that looks whether the address exists must not use up the code")
	v := visit(t, http.MethodGet, address)
	require.Equal(t, http.StatusSeeOther, v.status)
	require.Equal(t, "/w/acme/prod/", v.location)
	require.NotEmpty(t, v.cookie)
	for _, again := range []string{address, owner.URL + "/login", owner.URL + "/login?code=x"} {
		v := visit(t, http.MethodGet, again)
		require.Equal(t, http.StatusSeeOther, v.status)
		require.Empty(t, v.cookie, again)
	}
	for range 20 { // after this many codes, the oldest ones are forgotten
		loginURL(t, owner)
	}
}

// The page loads without a credential, because it explains how to log in. The files of the page contain no data of the
// domain.
func TestPageNeedsNoCredential(t *testing.T) {
	owner, _ := served(t, t.TempDir())
	defer http.DefaultClient.CloseIdleConnections()
	for path, want := range map[string]int{
		"/": http.StatusFound, "/w/acme/prod/runs/x": http.StatusOK, "/assets/index.js": http.StatusOK, "/elsewhere": http.StatusUnauthorized,
	} {
		require.Equal(t, want, visit(t, http.MethodGet, owner.URL+path).status, path)
	}
}

// Browsers send the cookie with requests of a page at another port of this host. Without the check of the origin, such
// a page could read streams and start runs.
func TestCookieIsAcceptedFromOwnPageOnly(t *testing.T) {
	owner, mux := served(t, t.TempDir())
	defer http.DefaultClient.CloseIdleConnections()
	cookie := login(t, owner)
	ask := func(c call) int {
		c.make()
		require.Empty(t, c.Error)
		return c.Status
	}
	runs := call{Method: http.MethodGet, URL: owner.URL + "/v1/runs", Cookie: cookie}
	for site, want := range map[string]int{
		"same-origin": http.StatusOK, "none": http.StatusOK, "": http.StatusOK, "same-site": http.StatusForbidden, "cross-site": http.StatusForbidden,
	} {
		runs.Site = site
		require.Equal(t, want, ask(runs), site)
	}
	for _, c := range calls(t, owner, mux) {
		c.Cookie, c.Site = cookie, "same-site"
		if !strings.Contains(c.URL, "/callbacks/") {
			require.Equal(t, http.StatusForbidden, ask(c), "%s %s", c.Method, c.URL)
		}
	}
	for _, forged := range []string{cookie + "x", "servo-1=" + strings.SplitN(cookie, "=", 2)[1], strings.Replace(cookie, "=1", "=9", 1), strings.SplitN(cookie, ".", 2)[0]} {
		require.Equal(t, http.StatusUnauthorized, ask(call{Method: http.MethodGet, URL: runs.URL, Cookie: forged}), forged)
	}
}

// A person must not have to log in again after each restart of `servo dev`.
func TestSessionOutlivesRestart(t *testing.T) {
	if !embedded.KnowsPeers {
		t.Skip("without a check of the peer's user, a session ends with the process")
	}
	dir := t.TempDir()
	opts := options(t, dir)
	opts.Page, opts.Listen = http.NotFoundHandler(), "127.0.0.1:0"
	s, err := embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	owner, err := embedded.ReadOwner(dir)
	require.NoError(t, err)
	cookie := login(t, owner)
	require.NoError(t, s.Close())
	http.DefaultClient.CloseIdleConnections()
	opts.Listen = strings.TrimPrefix(s.URL, "http://")
	s, err = embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	c := call{Method: http.MethodPost, URL: s.URL + "/v1/logins", Body: "{}", Cookie: cookie, Site: "same-origin"}
	c.make()
	require.Equal(t, http.StatusCreated, c.Status, c.Error)
	http.DefaultClient.CloseIdleConnections()
}
