package blob

import (
	"context"
	"fmt"
)

// TooLargeError says that an object was not read because it has more bytes than the
// caller allows.
type TooLargeError struct {
	Key         string
	Size, Limit int64 // bytes
}

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("object %s has %d bytes, at most %d are allowed: it was not read", e.Key, e.Size, e.Limit)
}

type limitKey struct{}

// Get reads a whole object of at most limit bytes. A larger one is not read: the store
// compares the limit with the size that it knows before the first byte, and the error
// is a [*TooLargeError]. It costs what [Store.Get] costs.
func Get(ctx context.Context, s Store, key string, limit int64) ([]byte, Object, error) {
	return s.Get(context.WithValue(ctx, limitKey{}, limit), key)
}

// CheckSize returns a [*TooLargeError] when an object of so many bytes is above the
// limit under which it is read. Every [Store] calls it in Get, before it reads.
//
// The limit travels in the context, as a deadline does: it bounds one call, and stores
// that wrap another one pass it on.
func CheckSize(ctx context.Context, key string, size int64) error {
	if limit, ok := ctx.Value(limitKey{}).(int64); ok && size > limit {
		return &TooLargeError{Key: key, Size: size, Limit: limit}
	}
	return nil
}
