// Package blob is the port to object storage: named, immutable-by-convention
// objects with create-if-absent.
//
// The core needs two things of a store: that creating a name succeeds for
// exactly one caller, and that a listing shows every object whose creation was
// acknowledged before the listing began. Replacing under a generation match is
// used for one object a domain, the boundary.
//
// A write has three outcomes: nil, done; [ErrExists], [ErrMismatch],
// [ErrNotFound] or [ErrInvalid], not done; any other error, unknown: the write
// may have taken effect, now or later. Who gets an unknown outcome reads before
// it decides.
package blob

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// Errors that callers branch on, always wrapped with the key.
var (
	ErrNotFound = errors.New("object not found")
	ErrExists   = errors.New("object exists")
	ErrMismatch = errors.New("object has another generation")
	// ErrInvalid is a key that no store takes: see [ValidateKey].
	ErrInvalid = errors.New("invalid object key")
)

// Object describes a stored object.
type Object struct {
	Key  string
	Size int64 // bytes
	// Generation is of this content under this name: every write has another.
	Generation int64
	// CRC32C is the Castagnoli checksum of the content. Listings of some stores
	// leave it 0; Create, Replace, Put and Get never do.
	CRC32C uint32
	// Updated is when the store took this content, by its own clock. Get and Open of
	// some stores leave it zero.
	Updated time.Time
}

// ListOptions narrow a listing.
type ListOptions struct {
	// Prefix is what the keys begin with: any text, not only whole folders.
	Prefix string
	// StartAfter leaves out keys up to and including this one.
	StartAfter string
}

// Store holds objects. It is safe for concurrent use.
type Store interface {
	// Create stores data under a new key. If the key exists the error is ErrExists.
	Create(ctx context.Context, key string, data []byte) (Object, error)

	// CreateFrom is Create for what is too large to hold: it streams r. The key
	// appears whole or not at all.
	CreateFrom(ctx context.Context, key string, r io.Reader) (Object, error)

	// Replace stores data under a key that has this generation; 0 means that the
	// key must be absent. Otherwise the error is ErrMismatch.
	Replace(ctx context.Context, key string, data []byte, generation int64) (Object, error)

	// Put stores data under a key whatever was there: for hints, which nobody trusts.
	Put(ctx context.Context, key string, data []byte) (Object, error)

	// Get reads a whole object, or returns ErrNotFound. The function [Get] bounds its size:
	// an implementation calls [CheckSize] before it reads.
	Get(ctx context.Context, key string) ([]byte, Object, error)

	// Open streams an object, or gives ErrNotFound. The caller closes it.
	Open(ctx context.Context, key string) (io.ReadCloser, Object, error)

	// Head describes an object without its content, or gives ErrNotFound. The
	// CRC may be 0.
	Head(ctx context.Context, key string) (Object, error)

	// List yields objects in ascending order of their keys (bytewise). It is
	// strongly consistent. After an error it ends.
	List(ctx context.Context, opts ListOptions) iter.Seq2[Object, error]

	// Delete removes an object. That it was absent is no error.
	Delete(ctx context.Context, key string) error
}

// Local is a store whose objects are files on this machine.
type Local interface {
	// Path is the file that holds, or would hold, the object.
	Path(key string) string
}
