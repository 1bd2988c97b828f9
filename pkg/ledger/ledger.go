// Package ledger appends to, reads and lists the ledger: immutable objects of
// newline-delimited events, named by ULIDs under one prefix per domain. This package is not a
// stable API.
//
// # Writing
//
// An [Appender] uses group commit: events that arrive during a PUT are written together as the next entry. An event
// that arrives while no PUT is running is written immediately. An Appender has no goroutine of its own. The first
// waiting caller is the leader: it writes for all waiting callers, then hands over to the next.
//
// A PUT has three outcomes. Stored: the callers return. Not stored: the callers get the
// error. Unknown: the Appender writes the same bytes under the same name again, with
// backoff, until the outcome is known. If the name then exists with the same bytes, the
// append has succeeded.
//
// The Appender ignores an answer, whether success or error, that arrives more than 30 s after the name was minted. It
// also ignores an answer in which the store's time is more than 60 s later than the time in the name. In both cases a
// listing may have missed the name, so the Appender writes the same bytes again under a new name. Folding the second
// entry changes nothing, because events have natural keys.
//
// # Ids
//
// An entry's ULID is greater than every id in the entry (see [ids.Source]). It names the entry and bounds listings.
// It does not order events.
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

// Limits of an entry with several groups. An entry with one group has only the limits of a group.
const (
	MaxEntryBytes  = 4 << 20
	MaxEntryEvents = event.MaxEntryEvents
)

const (
	root      = "ledger/orchestration/"
	extension = ".json"
)

// ErrUnknown reports that an append may have happened, or may still happen.
var ErrUnknown = errors.New("outcome unknown")

// ErrCorrupt reports that an entry does not match the checksum that the store has for it.
var ErrCorrupt = errors.New("the bytes read do not match the store's checksum")

// Prefix returns the key prefix of a domain's entries.
func Prefix(d ids.Domain) string { return root + d.Path() + "/" }

// Key returns the object key of an entry.
func Key(d ids.Domain, entry string) string { return Prefix(d) + entry + extension }

// ParseKey returns the domain and the ULID in an entry's key.
func ParseKey(key string) (ids.Domain, string, error) {
	rest, inLedger := strings.CutPrefix(key, root+"tenant=")
	tenant, rest, hasTenant := strings.Cut(rest, "/workspace=")
	workspace, file, hasWorkspace := strings.Cut(rest, "/")
	entry, isEntry := strings.CutSuffix(file, extension)
	d := ids.Domain{Tenant: tenant, Workspace: workspace}
	if !inLedger || !hasTenant || !hasWorkspace || !isEntry || d.Validate() != nil || !ids.Valid(entry) {
		return ids.Domain{}, "", fmt.Errorf("key %.400q is not the key of a ledger entry (%s{ULID}%s)",
			key, Prefix(ids.Domain{Tenant: "{tenant}", Workspace: "{workspace}"}), extension)
	}
	return d, entry, nil
}

// Read returns the content of an entry and verifies the store's checksum. It does not read
// an object above [MaxEntryBytes]: the error is a [*blob.TooLargeError].
func Read(ctx context.Context, store blob.Store, key string) ([]byte, error) {
	data, _, err := read(ctx, store, key)
	return data, err
}

// ReadStored returns the content of an entry and the time at which it was stored. It sends a second request if the
// store's reads return no time.
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

// Name is one listed object: an entry, or the decision to skip an entry.
type Name struct {
	// Entry is the ULID of the entry.
	Entry  string
	Object blob.Object
	// Skip is true if the object is the decision to skip the entry: see [Skip].
	Skip bool
}

// List yields a domain's entries after a ULID ("" yields all), in ascending order. It skips
// objects that are not entries. It ends after the first error.
func List(ctx context.Context, store blob.Store, d ids.Domain, after string) iter.Seq2[Name, error] {
	return func(yield func(Name, error) bool) {
		for name, err := range ListAll(ctx, store, d, after) {
			if !name.Skip && !yield(name, err) {
				return
			}
		}
	}
}

// ListAll yields the entries that [List] yields and, after an entry, the decision to skip
// it.
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
