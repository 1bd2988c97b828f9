package identity

import "context"

type callerKey struct{}

// WithCaller returns a context of work for a verified account.
func WithCaller(ctx context.Context, account string) context.Context {
	return context.WithValue(ctx, callerKey{}, account)
}

// Caller returns the verified account for which a context works, or "" if it is unknown.
func Caller(ctx context.Context) string {
	account, _ := ctx.Value(callerKey{}).(string)
	return account
}
