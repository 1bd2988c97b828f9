package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// maxCached is how many files a Reader caches. A few suffice, because callers mostly read entries in order, with some
// late ones in between.
const maxCached = 2

// Reader reads entries from the ledger or the archive. It caches the files that it has read last, and is safe for
// concurrent use.
type Reader struct {
	store  blob.Store
	domain ids.Domain

	mu    sync.Mutex
	files []*file // the cache, least recently used first

	busy  chan struct{} // a channel as a lock: one caller at a time lists and loads files
	day   string        // the day that was listed last
	names []string      // the first entries of the files of that day
	// damaged contains the errors of damaged files, by first entry, so that these files are not read again for each
	// entry.
	damaged map[string]error
}

// file is a decoded file.
type file struct {
	first   string
	entries []Entry
}

// NewReader returns a reader of a domain's entries.
func NewReader(store blob.Store, d ids.Domain) *Reader {
	return &Reader{store: store, domain: d, busy: make(chan struct{}, 1), damaged: map[string]error{}}
}

// Read returns the content of an entry, verified against its checksum. The error matches
// [blob.ErrNotFound] if neither ledger nor archive contains the entry.
func (r *Reader) Read(ctx context.Context, entry string) ([]byte, error) {
	data, _, err := r.find(ctx, entry, func(ctx context.Context, store blob.Store, key string) ([]byte, time.Time, error) {
		data, err := ledger.Read(ctx, store, key)
		return data, time.Time{}, err
	})
	return data, err
}

// ReadStored works like Read and also returns when the store created the entry. The archive
// does not contain that time. For an archived entry ReadStored returns the time of the id
// plus [ledger.MaxBehind], the maximum time between the naming and the creation of an entry.
func (r *Reader) ReadStored(ctx context.Context, entry string) ([]byte, time.Time, error) {
	return r.find(ctx, entry, ledger.ReadStored)
}

func (r *Reader) find(
	ctx context.Context, entry string, read func(context.Context, blob.Store, string) ([]byte, time.Time, error),
) ([]byte, time.Time, error) {
	stored := ids.Time(entry).Add(ledger.MaxBehind)
	if data, ok := r.cached(entry); ok {
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

// cached returns the data of an entry in a cached file.
func (r *Reader) cached(entry string) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, f := range slices.Backward(r.files) {
		if data, ok := find(f.entries, entry); ok {
			r.files = append(slices.Delete(r.files, i, i+1), f)
			return data, true
		}
	}
	return nil, false
}

// has reports whether a file is cached.
func (r *Reader) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.files, func(f *file) bool { return f.first == name })
}

// keep caches a file.
func (r *Reader) keep(f *file) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.files) == maxCached {
		r.files = slices.Delete(r.files, 0, 1)
	}
	r.files = append(r.files, f)
}

// archived returns the data of an archived entry. It searches the files of the entry's day that start at or before the
// entry, from the last to the first. Only one caller at a time searches. Other callers wait until the search has
// ended, or until their own context ends.
func (r *Reader) archived(ctx context.Context, entry string) (data []byte, ok bool, err error) {
	select {
	case r.busy <- struct{}{}:
		defer func() { <-r.busy }()
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if data, ok := r.cached(entry); ok {
		return data, true, nil // another caller has read the file
	}
	tried := map[string]bool{}
	if r.day == dayOf(entry) { // try the last listing first
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

// search searches the listed files that have not been tried. It returns the errors of
// unreadable files only if no other file contains the entry.
func (r *Reader) search(ctx context.Context, entry string, tried map[string]bool) (data []byte, ok bool, failed error) {
	for _, name := range slices.Backward(r.names) {
		if name > entry || tried[name] {
			continue
		}
		tried[name] = true
		if r.has(name) {
			continue // the file is cached, and the entry was not found in it
		}
		if err := r.damaged[name]; err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		entries, err := load(ctx, r.store, r.domain, name)
		if err != nil {
			if errors.Is(err, errDamaged) {
				r.damaged[name] = err
			} else {
				err = fmt.Errorf("%w: %w", errUnread, err)
			}
			failed = errors.Join(failed, err)
			continue
		}
		r.keep(&file{name, entries})
		if data, ok := find(entries, entry); ok {
			return data, true, nil
		}
	}
	return nil, false, failed
}
