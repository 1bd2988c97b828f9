package remote

import "context"

// Rights are the rights of a caller. A caller without any right may only name entries, which the compactor reads from
// the store.
type Rights struct {
	// Data allows the caller to send the content of entries.
	Data bool
	// Sweep allows the caller to sweep.
	Sweep bool
}

type rightsKey struct{}

// WithRights returns a context for serving a request whose caller has these rights.
func WithRights(ctx context.Context, r Rights) context.Context {
	return context.WithValue(ctx, rightsKey{}, r)
}

// RightsOf returns the rights of the caller whose request is served under ctx. Only the
// authentication of the caller grants rights.
func RightsOf(ctx context.Context) Rights {
	r, _ := ctx.Value(rightsKey{}).(Rights)
	return r
}
