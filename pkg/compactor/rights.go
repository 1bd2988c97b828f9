package compactor

import "context"

// Rights are what the caller of a route may ask for, beyond that entries are folded which
// are named and then read from the store. The zero value allows none of it.
type Rights struct {
	// Data allows the caller to hand over the bytes of entries.
	Data bool
	// Sweep allows the caller to sweep.
	Sweep bool
}

type rightsKey struct{}

// WithRights returns a context for serving a request whose caller has these rights.
func WithRights(ctx context.Context, r Rights) context.Context {
	return context.WithValue(ctx, rightsKey{}, r)
}

// RightsOf returns the rights of the caller whose request is served under ctx: none, unless
// the authentication of the caller granted them.
func RightsOf(ctx context.Context) Rights {
	r, _ := ctx.Value(rightsKey{}).(Rights)
	return r
}
