package identity

import (
	"context"
	"fmt"
	"net/http"
)

// Source gives the ID token of this process for an audience. It may be kept until it
// expires: the source sees to that.
type Source func(ctx context.Context, audience string) (string, error)

// Transport says who calls in every request that has not said so: with a token for
// the service that is called.
func (s Source) Transport(inner http.RoundTripper) http.RoundTripper { return transport{s, inner} }

type transport struct {
	source Source
	inner  http.RoundTripper
}

// CloseIdleConnections is for [http.Client].
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
				_ = r.Body.Close() // as a transport must
			}
			return nil, fmt.Errorf("get an ID token for %s: %w", audience, err)
		}
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return t.inner.RoundTrip(r)
}
