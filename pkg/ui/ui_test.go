package ui_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ui"
)

func ask(path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	ui.Handler().ServeHTTP(w, r)
	return w
}

func TestEveryPathIsThePage(t *testing.T) {
	for _, path := range []string{"/w/acme/prod/", "/w/acme/prod/runs/x", "/w/a/b/assets/raw/events.js"} {
		w := ask(path)
		require.Equal(t, http.StatusOK, w.Code)
		require.Equal(t, "text/html; charset=utf-8", w.Header().Get("Content-Type"))
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
		require.Contains(t, w.Body.String(), `<div id="root">`)
	}
}

func TestPageLoadsOnlyFilesThatExist(t *testing.T) {
	page := ask("/w/acme/prod/").Body.String()
	named := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page, -1)
	require.NotEmpty(t, named)
	for _, match := range named {
		w := ask(match[1], "Accept-Encoding", "gzip, br")
		require.Equal(t, http.StatusOK, w.Code, match[1])
		require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
		require.Contains(t, w.Header().Get("Cache-Control"), "immutable")
		unpacked, err := gzip.NewReader(w.Body)
		require.NoError(t, err)
		text, err := io.ReadAll(unpacked)
		require.NoError(t, err)
		require.Equal(t, string(text), ask(match[1]).Body.String(), "without gzip")
		again := ask(match[1], "If-None-Match", w.Header().Get("ETag"))
		require.Equal(t, http.StatusNotModified, again.Code)
		require.Zero(t, again.Body.Len())
	}
	require.Equal(t, http.StatusNotFound, ask("/assets/index-old.js").Code)
	require.Equal(t, http.StatusNotFound, ask("/assets/../index.html").Code)
}

// The page must show its header before its main script runs. Before the header, only the small script that sets the
// theme may run.
func TestPageShowsSomethingBeforeItsScript(t *testing.T) {
	page := ask("/w/acme/prod/").Body.String()
	require.Regexp(t, `<head>\s*<script type="module" async blocking="render" [^>]*src="/assets/early-`, page)
	require.Regexp(t, `(?s)<div id="root">.*<header class="early">.*Servo`, page)
}

// The content security policy must forbid everything that the page does not need.
func TestPageHasStrictPolicy(t *testing.T) {
	page := ask("/w/acme/prod/")
	policy := page.Header().Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"} {
		require.Contains(t, policy, part)
	}
	require.NotContains(t, policy, "unsafe")
	require.NotRegexp(t, `<script(?:>| [^>]*[^"/]>)[^<]`, page.Body.String(), "an inline script")
	require.NotContains(t, page.Body.String(), "<style")
	require.NotContains(t, strings.ToLower(page.Body.String()), "http://")
	require.Equal(t, "nosniff", page.Header().Get("X-Content-Type-Options"))
}
