// Package ledger appends to, reads and lists the ledger: immutable objects of
// newline-delimited events, one prefix a domain, named by ULIDs.
//
// # Writing
//
// An [Appender] commits in groups: what arrives while a PUT is under way goes
// out together as the next entry; alone, an event waits for nothing. It has no
// goroutine of its own: the first caller to wait writes for all who wait with
// it, and hands over to the next.
//
// A PUT has three outcomes. Stored: the callers return. Not stored: the callers
// get the error. Unknown: the same name and bytes are written again, with
// back-off, until one of the first two is certain; that the name exists by then
// is success, once its bytes are seen to be the same.
//
// An answer that comes more than 30 s after the name was minted counts for
// nothing, good or bad, and neither does one that says that the store's clock is
// more than 60 s past the name: a listing may have passed the name by. The same
// bytes are written anew under a new name, and whoever folds both finds the
// second to change nothing, since events have natural keys.
//
// # Ids
//
// An entry's ULID is greater than every id in it and than the entries that
// those ids came from (see [ids.Source]). It names an entry and bounds listings;
// it orders nothing.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Limits of an entry. A group that is alone is bounded by its own.
const (
	MaxEntryBytes  = 4 << 20
	MaxEntryEvents = event.MaxEntryEvents
)

const (
	root      = "ledger/orchestration/"
	extension = ".json"
)

// ErrUnknown says that an append may or may not have happened, or may yet.
var ErrUnknown = errors.New("outcome unknown")

// ErrCorrupt is of an entry that is not what the store has the checksum of.
var ErrCorrupt = errors.New("the bytes read do not match the store's checksum")

// Prefix is what the keys of a domain's entries begin with.
func Prefix(d ids.Domain) string { return root + d.Path() + "/" }

// Key is the object key of an entry.
func Key(d ids.Domain, entry string) string { return Prefix(d) + entry + extension }

// ParseKey is the domain and the ULID in an entry's key.
func ParseKey(key string) (ids.Domain, string, error) {
	rest, inLedger := strings.CutPrefix(key, root+"tenant=")
	tenant, rest, hasTenant := strings.Cut(rest, "/workspace=")
	workspace, file, hasWorkspace := strings.Cut(rest, "/")
	entry, isEntry := strings.CutSuffix(file, extension)
	d := ids.Domain{Tenant: tenant, Workspace: workspace}
	if !inLedger || !hasTenant || !hasWorkspace || !isEntry || d.Validate() != nil || !ids.Valid(entry) {
		return ids.Domain{}, "", fmt.Errorf("key %.400q is not that of a ledger entry, %s{ULID}%s",
			key, Prefix(ids.Domain{Tenant: "{tenant}", Workspace: "{workspace}"}), extension)
	}
	return d, entry, nil
}

// Read returns the content of an entry, checked against the store's checksum. An object
// above [MaxEntryBytes] is not read: the error is a [*blob.TooLargeError].
func Read(ctx context.Context, store blob.Store, key string) ([]byte, error) {
	data, _, err := read(ctx, store, key)
	return data, err
}

// ReadStored is Read, and says when the store took the entry. It costs a second
// request where a read does not tell the time.
func ReadStored(ctx context.Context, store blob.Store, key string) ([]byte, time.Time, error) {
	data, object, err := read(ctx, store, key)
	if err == nil && object.Updated.IsZero() {
		if object, err = store.Head(ctx, key); err != nil {
			return nil, time.Time{}, fmt.Errorf("read ledger entry %s: %w", key, err)
		}
	}
	return data, object.Updated, err
}

func read(ctx context.Context, store blob.Store, key string) ([]byte, blob.Object, error) {
	data, object, err := blob.Get(ctx, store, key, MaxEntryBytes)
	if err != nil {
		return nil, blob.Object{}, fmt.Errorf("read ledger entry %s: %w", key, err)
	}
	if blob.CRC32C(data) != object.CRC32C {
		return nil, blob.Object{}, fmt.Errorf("read ledger entry %s: %w", key, ErrCorrupt)
	}
	return data, object, nil
}

// Name is an entry as a listing has it.
type Name struct {
	// Entry is its ULID.
	Entry  string
	Object blob.Object
	// Skip says that the object is the decision to skip the entry: see [Skip].
	Skip bool
}

// List yields a domain's entries after a ULID, in ascending order; "" is before
// the first. It passes over objects that are no entries. After an error it ends.
func List(ctx context.Context, store blob.Store, d ids.Domain, after string) iter.Seq2[Name, error] {
	return func(yield func(Name, error) bool) {
		for name, err := range ListAll(ctx, store, d, after) {
			if !name.Skip && !yield(name, err) {
				return
			}
		}
	}
}

// ListAll yields what [List] does and, behind an entry, the decision to skip it.
func ListAll(ctx context.Context, store blob.Store, d ids.Domain, after string) iter.Seq2[Name, error] {
	return func(yield func(Name, error) bool) {
		opts := blob.ListOptions{Prefix: Prefix(d)}
		if after != "" {
			opts.StartAfter = Key(d, after)
		}
		for object, err := range store.List(ctx, opts) {
			if err != nil {
				yield(Name{}, fmt.Errorf("list ledger of %s: %w", d, err))
				return
			}
			key, skip := object.Key, strings.HasSuffix(object.Key, skipExtension)
			if skip {
				key = strings.TrimSuffix(key, skipExtension) + extension
			}
			_, entry, err := ParseKey(key)
			if err != nil {
				continue // a stray object must not stop the fold
			}
			if !yield(Name{Entry: entry, Object: object, Skip: skip}, nil) {
				return
			}
		}
	}
}
