package archive

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// keptFiles is how many files a Reader keeps: entries are mostly asked for one after
// the other, and some that came late in between.
const keptFiles = 2

// Reader reads entries wherever they are: in the ledger, or in the archive. It keeps
// the files that it read last, and is safe for concurrent use.
type Reader struct {
	store  blob.Store
	domain ids.Domain

	mu    sync.Mutex
	files []*file // used last at the end
	day   string  // of the folder that was listed last
	names []string
}

// file is a file that has been read.
type file struct {
	first   string
	entries []Entry
}

// NewReader makes a reader of a domain's entries.
func NewReader(store blob.Store, d ids.Domain) *Reader { return &Reader{store: store, domain: d} }

// Read is the content of an entry, checked against its checksum. If it is nowhere
// the error matches [blob.ErrNotFound].
func (r *Reader) Read(ctx context.Context, entry string) ([]byte, error) {
	data, _, err := r.find(ctx, entry, func(ctx context.Context, store blob.Store, key string) ([]byte, time.Time, error) {
		data, err := ledger.Read(ctx, store, key)
		return data, time.Time{}, err
	})
	return data, err
}

// ReadStored is Read, and says when the store took the entry. The archive does not
// keep that time, but writers name an entry at most a minute before the store takes
// it: the result is then the name's time and a minute.
func (r *Reader) ReadStored(ctx context.Context, entry string) ([]byte, time.Time, error) {
	return r.find(ctx, entry, ledger.ReadStored)
}

func (r *Reader) find(
	ctx context.Context, entry string, read func(context.Context, blob.Store, string) ([]byte, time.Time, error),
) ([]byte, time.Time, error) {
	stored := ids.Time(entry).Add(ledger.MaxBehind)
	if data, ok := r.atHand(entry); ok {
		return data, stored, nil
	}
	data, at, err := read(ctx, r.store, ledger.Key(r.domain, entry))
	if !errors.Is(err, blob.ErrNotFound) {
		return data, at, err
	}
	archived, ok, archiveErr := r.archived(ctx, entry)
	if archiveErr != nil {
		return nil, time.Time{}, archiveErr
	}
	if !ok {
		return nil, time.Time{}, err
	}
	return archived, stored, nil
}

// atHand is an entry in the files that are kept.
func (r *Reader) atHand(entry string) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept(entry)
}

func (r *Reader) kept(entry string) ([]byte, bool) {
	for i, f := range slices.Backward(r.files) {
		if data, ok := find(f.entries, entry); ok {
			r.files = append(slices.Delete(r.files, i, i+1), f)
			return data, true
		}
	}
	return nil, false
}

// archived looks for an entry in the archive: in the files of its day whose first
// entry is not beyond it, the nearest first.
func (r *Reader) archived(ctx context.Context, entry string) (data []byte, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if data, ok := r.kept(entry); ok {
		return data, true, nil // another caller has read its file
	}
	tried := map[string]bool{}
	if r.day == dayOf(entry) { // as the folder was when it was listed
		if data, ok, err = r.search(ctx, entry, tried); ok || ctx.Err() != nil {
			return data, ok, err
		}
	}
	if err := r.list(ctx, entry); err != nil {
		return nil, false, err
	}
	again, ok, againErr := r.search(ctx, entry, tried)
	return again, ok, errors.Join(err, againErr)
}

// list lists the files of an entry's day.
func (r *Reader) list(ctx context.Context, entry string) error {
	r.day, r.names = "", nil
	for name, err := range firsts(ctx, r.store, r.domain, blob.ListOptions{Prefix: folderOf(r.domain, entry)}) {
		if err != nil {
			return err
		}
		r.names = append(r.names, name)
	}
	r.day = dayOf(entry)
	return nil
}

// search goes through the listed files that have not been tried. One that cannot be
// read is an error if no other has the entry.
func (r *Reader) search(ctx context.Context, entry string, tried map[string]bool) (data []byte, ok bool, failed error) {
	for _, name := range slices.Backward(r.names) {
		if name > entry || tried[name] {
			continue
		}
		tried[name] = true
		if slices.ContainsFunc(r.files, func(f *file) bool { return f.first == name }) {
			continue // it is kept, and does not hold it
		}
		entries, err := load(ctx, r.store, r.domain, name)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if len(r.files) == keptFiles {
			r.files = slices.Delete(r.files, 0, 1)
		}
		r.files = append(r.files, &file{name, entries})
		if data, ok := find(entries, entry); ok {
			return data, true, nil
		}
	}
	return nil, false, failed
}
