// Package blob is the port to object storage: a store of named objects with create-if-absent. By convention, an
// object is not changed after it was created; the few exceptions are hints and small indexes. This package is not a
// stable API.
//
// The core relies on two properties of a store. Creating a name succeeds for exactly one
// caller. A listing shows every object whose creation was acknowledged before the listing
// began. Replace, which requires a matching version, is used for only a few objects, such as the boundary of a
// domain.
//
// A write has three outcomes. If the error is nil, the write was done. If it is [ErrExists], [ErrMismatch],
// [ErrNotFound] or [ErrInvalid], the write was not done. With any other error the outcome is unknown: the write may
// have taken effect, or may still take effect. After an unknown outcome the caller must read before it decides.
package blob

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// Errors that callers branch on. They are always wrapped with the key.
var (
	ErrNotFound = errors.New("object not found")
	ErrExists   = errors.New("object exists")
	ErrMismatch = errors.New("object has another version")
	// ErrInvalid reports a key that no store accepts: see [ValidateKey].
	ErrInvalid = errors.New("invalid object key")
)

// Object describes a stored object.
type Object struct {
	Key  string
	Size int64 // bytes
	// Version identifies this content under this key. Every write creates a new version.
	Version int64
	// CRC32C is the Castagnoli checksum of the content. Create, Replace, Put and Get always
	// set it. Listings of some stores leave it 0.
	CRC32C uint32
	// Updated is the time, by the store's own clock, at which it stored this content. Get and Open of some stores
	// leave it zero.
	Updated time.Time
}

// ListOptions restrict a listing.
type ListOptions struct {
	// Prefix restricts the listing to keys that begin with this text, which need not be a
	// whole folder.
	Prefix string
	// StartAfter is a key. The listing skips this key and all keys before it.
	StartAfter string
}

// Store contains objects. It is safe for concurrent use.
type Store interface {
	// Create stores data under a new key. If the key exists, the error is ErrExists.
	Create(ctx context.Context, key string, data []byte) (Object, error)

	// CreateFrom is Create for content that is too large for memory: it streams r. The key
	// appears with the whole content or not at all.
	CreateFrom(ctx context.Context, key string, r io.Reader) (Object, error)

	// Replace stores data under a key if the object has the given version; 0 means that the key must be absent. If the
	// version differs, the error is ErrMismatch.
	Replace(ctx context.Context, key string, data []byte, version int64) (Object, error)

	// Put stores data under a key unconditionally. Use it only for hints, which readers
	// verify.
	Put(ctx context.Context, key string, data []byte) (Object, error)

	// Get reads a whole object, or returns ErrNotFound. To limit the size, callers use the
	// function [Get]; implementations call [CheckSize] before they read.
	Get(ctx context.Context, key string) ([]byte, Object, error)

	// Open streams an object, or returns ErrNotFound. The caller must close the stream.
	Open(ctx context.Context, key string) (io.ReadCloser, Object, error)

	// Head describes an object without reading its content, or returns ErrNotFound. The CRC
	// may be 0.
	Head(ctx context.Context, key string) (Object, error)

	// List yields objects in ascending bytewise order of their keys. It is strongly
	// consistent. It ends after the first error.
	List(ctx context.Context, opts ListOptions) iter.Seq2[Object, error]

	// Delete removes an object. Deleting an absent object is not an error.
	Delete(ctx context.Context, key string) error
}

// Local is a store whose objects are files on this machine.
type Local interface {
	// Path returns the file that contains, or would contain, the object.
	Path(key string) string
}
