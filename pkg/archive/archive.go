// Package archive moves old entries from the ledger to Parquet files. The files contain
// them byte for byte, and any Parquet reader can query them. This package is not a stable API.
//
// # Scope
//
// An archiver moves whole days that lie below the history cutoff of the oldest existing revision. A later revision
// never has a lower cutoff, and a writer recognizes entries below the cutoff of its own revision by name, without
// reading them. Therefore a writer that may still publish never lists or reads an entry that has left the ledger.
//
// # The listing is the index
//
// A file is named after its first entry, and is stored in the folder of that entry's day. So keys sort like entries,
// and a listing of one folder shows which file may contain an entry. An archiver that replaces a crashed one, or that
// works beside another one, starts with the same entry. So all of them use the same file name, even if their size
// limits differ. If the file exists, the archiver reads the file and treats the entries in it as archived.
//
// # Order
//
// An archiver reads entries, encodes them, decodes the result to check it, creates the file if absent, and then
// deletes the entries from the ledger. It deletes the first entry last. A process may die after any of these steps,
// and any response may be lost. An entry may then be in both places. Its bytes are the same in both, and the next
// pass deletes it from the ledger.
//
// # Reading
//
// A [Reader] looks in the ledger first and then in the archive: an entry that has left the ledger is in the archive.
package archive

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	root      = "archive/orchestration/"
	folder    = "date="
	extension = ".parquet"
)

// errDamaged means that a file cannot be decoded or does not match its checksums.
var errDamaged = errors.New("the archive file is damaged")

// errUnread means that a file could not be read. The file may contain the entry, and another read may succeed.
var errUnread = errors.New("an archive file could not be read")

// Damaged reports whether err, an error of reading an entry, means that the entry is lost, because the only files that
// may contain it are damaged.
func Damaged(err error) bool { return errors.Is(err, errDamaged) && !errors.Is(err, errUnread) }

// Entry is an entry of the ledger.
type Entry struct {
	ID   string // a ULID
	Data []byte // callers must not modify it
	// Stored is when the store created the entry, according to the listing of the ledger.
	// It is zero for archived entries: see [Reader.ReadStored].
	Stored time.Time
}

// Prefix returns the key prefix of a domain's files.
func Prefix(d ids.Domain) string { return root + d.Path() + "/" }

// Key returns the object key of the file whose first entry is given.
func Key(d ids.Domain, first string) string { return folderOf(d, first) + first + extension }

// folderOf returns the key prefix of the files of an entry's day.
func folderOf(d ids.Domain, entry string) string { return Prefix(d) + folder + dayOf(entry) + "/" }

// dayOf returns the UTC day of an entry. Days sort like entries, because the times in ids are before the year 10000.
func dayOf(entry string) string { return ids.Time(entry).UTC().Format(time.DateOnly) }

// first returns the first entry of the file with this key. ok is false if the key does not
// belong to a file of the archive.
func first(d ids.Domain, key string) (entry string, ok bool) {
	name := key[strings.LastIndexByte(key, '/')+1:]
	entry, ok = strings.CutSuffix(name, extension)
	return entry, ok && ids.Valid(entry) && key == Key(d, entry)
}

// Any reports whether a domain has an archive.
func Any(ctx context.Context, store blob.Store, d ids.Domain) (bool, error) {
	for _, err := range firsts(ctx, store, d, blob.ListOptions{Prefix: Prefix(d)}) {
		return err == nil, err
	}
	return false, nil
}

// firsts yields the first entry of each listed file, in ascending order. It skips objects
// that are not files of the archive, and ends after an error.
func firsts(ctx context.Context, store blob.Store, d ids.Domain, opts blob.ListOptions) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for object, err := range store.List(ctx, opts) {
			if err != nil {
				yield("", fmt.Errorf("list archive of %s: %w", d, err))
				return
			}
			entry, ok := first(d, object.Key)
			if ok && !yield(entry, nil) {
				return
			}
		}
	}
}

// load reads and verifies a file. The error matches errDamaged if the file is damaged.
func load(ctx context.Context, store blob.Store, d ids.Domain, first string) ([]Entry, error) {
	key := Key(d, first)
	data, object, err := blob.Get(ctx, store, key, maxFileBytes)
	if large, ok := errors.AsType[*blob.TooLargeError](err); ok {
		return nil, fmt.Errorf("read archive %s: %w: %w", key, errDamaged, large)
	}
	if err != nil {
		return nil, fmt.Errorf("read archive %s: %w", key, err)
	}
	if blob.CRC32C(data) != object.CRC32C {
		return nil, fmt.Errorf("read archive %s: %w: the content does not match the store's checksum", key, errDamaged)
	}
	entries, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("read archive %s: %w: %w", key, errDamaged, err)
	}
	if len(entries) == 0 || entries[0].ID != first {
		return nil, fmt.Errorf("read archive %s: %w: its first entry is not the one in its name", key, errDamaged)
	}
	return entries, nil
}

// find returns the data of an entry in entries, which must be sorted.
func find(entries []Entry, id string) ([]byte, bool) {
	i, ok := slices.BinarySearchFunc(entries, id, func(e Entry, id string) int { return strings.Compare(e.ID, id) })
	if !ok {
		return nil, false
	}
	return entries[i].Data, true
}
