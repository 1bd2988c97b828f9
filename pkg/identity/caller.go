package identity

import "context"

type callerKey struct{}

// WithCaller returns a context that contains the verified account of a caller.
func WithCaller(ctx context.Context, account string) context.Context {
	return context.WithValue(ctx, callerKey{}, account)
}

// Caller returns the verified account that a context contains, or "" if it contains none.
func Caller(ctx context.Context) string {
	account, _ := ctx.Value(callerKey{}).(string)
	return account
}
