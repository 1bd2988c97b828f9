// Package archive takes entries out of the ledger that nothing announces any more,
// and keeps them, byte for byte, in Parquet files that anybody can read.
//
// # What is archived
//
// Entries below a cut, and of these whole days only. The cut is that of the oldest
// revision that exists: whoever works on a revision knows what is below its cut by
// name alone, and no later revision has a lower one. So nobody who may still publish
// lists, or looks for, what leaves the ledger.
//
// # The listing is the index
//
// A file is named by the first entry that it holds, in a folder of that entry's day.
// So keys sort as entries do; which file may hold an entry follows from a listing of
// one folder; and who begins again after a crash, or beside another archiver, begins
// with the same entry and so with the same name, however much it takes at once: a
// file that exists is read, and what it holds is done.
//
// # Order
//
// Entries are read, written to a file that is created if absent and has been decoded
// before, and deleted from the ledger then, the first one last. A process may die
// anywhere, and any answer may be lost: what is in both places is the same bytes, and
// goes the next time.
//
// # Reading
//
// A [Reader] looks into the ledger and then into the archive, in this order: what has
// left the one is in the other.
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

// errDamaged is of a file that is not what it should be.
var errDamaged = errors.New("the archive file is damaged")

// Entry is an entry of the ledger.
type Entry struct {
	ID   string // its ULID
	Data []byte // not to be changed
	// Stored is when the store took the entry, by the listing of the ledger. The archive
	// does not keep it: see [Reader.ReadStored].
	Stored time.Time
}

// Prefix is what the keys of a domain's files begin with.
func Prefix(d ids.Domain) string { return root + d.Path() + "/" }

// Key is the object key of the file whose first entry is this one.
func Key(d ids.Domain, first string) string { return folderOf(d, first) + first + extension }

// folderOf is what the keys of the files of an entry's day begin with.
func folderOf(d ids.Domain, entry string) string { return Prefix(d) + folder + dayOf(entry) + "/" }

// dayOf is the day of an entry, UTC. Its time is before the year 10000, so that
// days sort as entries do.
func dayOf(entry string) string { return ids.Time(entry).UTC().Format(time.DateOnly) }

// first is the first entry of a file, by its key.
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

// firsts yields the first entries of files, in ascending order. It passes over
// objects that are no files of the archive. After an error it ends.
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

// load reads a file. It matches errDamaged if that is not what it should be.
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
		return nil, fmt.Errorf("read archive %s: %w: the bytes read do not match the store's checksum", key, errDamaged)
	}
	entries, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("read archive %s: %w: %w", key, errDamaged, err)
	}
	if len(entries) == 0 || entries[0].ID != first {
		return nil, fmt.Errorf("read archive %s: %w: its first entry is not the one that it is named by", key, errDamaged)
	}
	return entries, nil
}

// find is an entry in the entries of a file, which are in ascending order.
func find(entries []Entry, id string) ([]byte, bool) {
	i, ok := slices.BinarySearchFunc(entries, id, func(e Entry, id string) int { return strings.Compare(e.ID, id) })
	if !ok {
		return nil, false
	}
	return entries[i].Data, true
}
