package identity

import (
	"context"
	"fmt"
	"net/http"
)

// Source returns this process's ID token for an audience. A source may cache tokens until they expire. Callers must not
// cache tokens.
type Source func(ctx context.Context, audience string) (string, error)

// Transport returns a transport that adds an ID token for the called service to each request
// without an Authorization header.
func (s Source) Transport(inner http.RoundTripper) http.RoundTripper { return transport{s, inner} }

type transport struct {
	source Source
	inner  http.RoundTripper
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t transport) CloseIdleConnections() {
	if c, ok := t.inner.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Header.Get("Authorization") == "" {
		audience := r.URL.Scheme + "://" + r.URL.Host
		token, err := t.source(r.Context(), audience)
		if err != nil {
			if r.Body != nil {
				_ = r.Body.Close() // RoundTrip must close the body, even if it returns an error
			}
			return nil, fmt.Errorf("get an ID token for %s: %w", audience, err)
		}
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return t.inner.RoundTrip(r)
}
