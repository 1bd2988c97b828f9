package blob

import (
	"context"
	"fmt"
)

// TooLargeError reports that an object was not read because it exceeds the caller's limit.
type TooLargeError struct {
	Key         string
	Size, Limit int64 // bytes
}

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("object %s was not read: it has %d bytes, the limit is %d", e.Key, e.Size, e.Limit)
}

type limitKey struct{}

// Get reads a whole object of at most limit bytes. If it is larger, the error is a [*TooLargeError], and none of its
// content is read: the store checks the size first. Get costs as much as [Store.Get].
func Get(ctx context.Context, s Store, key string, limit int64) ([]byte, Object, error) {
	return s.Get(context.WithValue(ctx, limitKey{}, limit), key)
}

// CheckSize returns a [*TooLargeError] if size exceeds the limit of the current [Get].
// Every [Store] calls it in its Get method before it reads.
//
// The context carries the limit, like a deadline. The limit applies to one call of Get; stores that wrap another
// store pass the context on.
func CheckSize(ctx context.Context, key string, size int64) error {
	if limit, ok := ctx.Value(limitKey{}).(int64); ok && size > limit {
		return &TooLargeError{Key: key, Size: size, Limit: limit}
	}
	return nil
}
