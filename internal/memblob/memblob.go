// Package memblob implements [blob.Store] in memory, for tests and simulations. It fulfils
// the whole contract, counts requests, and makes copies in constant time, so that a test
// can keep a snapshot of a store.
package memblob

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

// Options configure a store. The zero value is ready to use.
type Options struct {
	// Now returns the current time, which becomes the modification time of written objects. Nil means the system clock.
	Now func() time.Time
}

// Store contains objects in memory. Create it with [New].
type Store struct {
	now func() time.Time

	mu      sync.Mutex
	objects *btree.Map[string, stored]
	version int64 // version of the latest write
	stats   Stats
}

type stored struct {
	blob.Object
	data []byte // read-only
}

var (
	_ blob.Store = (*Store)(nil)
	_ blob.Clock = (*Store)(nil)
)

// New returns an empty store.
func New(opts Options) *Store {
	if opts.Now == nil {
		opts.Now = clock.System{}.Now
	}
	return &Store{now: opts.Now, objects: new(btree.Map[string, stored])}
}

// Copy returns an independent store with the same objects and counters, in constant time.
func (s *Store) Copy() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Store{now: s.now, objects: s.objects.Copy(), version: s.version, stats: s.stats}
}

// Now implements [blob.Clock].
func (s *Store) Now(ctx context.Context) (time.Time, error) { return s.now(), ctx.Err() }

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	if err := blob.Check(ctx, "create", key); err != nil {
		return blob.Object{}, err
	}
	return s.create(key, bytes.Clone(data))
}

// CreateFrom implements [blob.Store].
func (s *Store) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	if err := blob.Check(ctx, "create", key); err != nil {
		return blob.Object{}, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return blob.Object{}, fmt.Errorf("create object %q: read the content: %w", key, err)
	}
	if err := blob.Check(ctx, "create", key); err != nil {
		return blob.Object{}, err
	}
	return s.create(key, data)
}

func (s *Store) create(key string, data []byte) (blob.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Creates++
	if _, ok := s.objects.Get(key); ok {
		return blob.Object{}, fmt.Errorf("create object %q: %w", key, blob.ErrExists)
	}
	return s.write("create", key, data)
}

// Replace implements [blob.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, version int64) (blob.Object, error) {
	if err := blob.Check(ctx, "replace", key); err != nil {
		return blob.Object{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Replaces++
	old, _ := s.objects.Get(key)
	if old.Version != version {
		return blob.Object{}, fmt.Errorf("replace object %q of version %d: %w: %d",
			key, version, blob.ErrMismatch, old.Version)
	}
	return s.write("replace", key, bytes.Clone(data))
}

// Put implements [blob.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	if err := blob.Check(ctx, "put", key); err != nil {
		return blob.Object{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Puts++
	return s.write("put", key, bytes.Clone(data))
}

// write stores data without copying it. The caller holds the lock.
func (s *Store) write(verb, key string, data []byte) (blob.Object, error) {
	if other, ok := s.conflicting(key); ok {
		return blob.Object{}, fmt.Errorf("%s object %q: %w: object %q exists, and no key may be a folder of another key",
			verb, key, blob.ErrInvalid, other)
	}
	s.version++
	o := blob.Object{
		Key: key, Size: int64(len(data)), Version: s.version,
		CRC32C: blob.CRC32C(data), Updated: s.now(),
	}
	s.objects.Set(key, stored{Object: o, data: data})
	s.stats.BytesWritten += o.Size
	return o, nil
}

// conflicting returns an object whose key conflicts with the given key: one of the two keys is a folder of the other.
func (s *Store) conflicting(key string) (other string, found bool) {
	for i := range len(key) {
		if key[i] != '/' {
			continue
		}
		if _, ok := s.objects.Get(key[:i]); ok {
			return key[:i], true
		}
	}
	s.objects.Ascend(key+"/", func(k string, _ stored) bool {
		other, found = k, strings.HasPrefix(k, key+"/")
		return false
	})
	return other, found
}

// Get implements [blob.Store].
func (s *Store) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	found, err := s.read(ctx, "get", key, &s.stats.Gets)
	if err == nil {
		err = blob.CheckSize(ctx, key, found.Size)
	}
	if err != nil {
		return nil, blob.Object{}, err
	}
	// The data of an empty object must not be nil, to distinguish it from an absent object.
	return append(make([]byte, 0, len(found.data)), found.data...), found.Object, nil
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, blob.Object, error) {
	found, err := s.read(ctx, "open", key, &s.stats.Gets)
	if err != nil {
		return nil, blob.Object{}, err
	}
	return io.NopCloser(readOnly{bytes.NewReader(found.data)}), found.Object, nil
}

// readOnly hides the method WriteTo. WriteTo would pass the stored bytes, not a copy, to a writer, and the writer may
// change them.
type readOnly struct{ io.Reader }

// Head implements [blob.Store].
func (s *Store) Head(ctx context.Context, key string) (blob.Object, error) {
	found, err := s.read(ctx, "head", key, &s.stats.Heads)
	return found.Object, err
}

func (s *Store) read(ctx context.Context, verb, key string, counter *int64) (stored, error) {
	if err := blob.Check(ctx, verb, key); err != nil {
		return stored{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	*counter++
	found, ok := s.objects.Get(key)
	if !ok {
		return stored{}, fmt.Errorf("%s object %q: %w", verb, key, blob.ErrNotFound)
	}
	if verb != "head" {
		s.stats.BytesRead += found.Size
	}
	return found, nil
}

// Delete implements [blob.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := blob.Check(ctx, "delete", key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Deletes++
	s.objects.Delete(key)
	return nil
}

// List implements [blob.Store]. It yields the objects that the store contains when the iteration begins.
func (s *Store) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(blob.Object{}, fmt.Errorf("list objects with prefix %q: %w", opts.Prefix, err))
			return
		}
		objects := s.page(nil)
		listed := 0
		objects.Ascend(max(opts.Prefix, opts.StartAfter), func(key string, found stored) bool {
			if key <= opts.StartAfter {
				return true
			}
			if !strings.HasPrefix(key, opts.Prefix) {
				return false
			}
			if err := ctx.Err(); err != nil {
				yield(blob.Object{}, fmt.Errorf("list objects with prefix %q: %w", opts.Prefix, err))
				return false
			}
			if listed++; listed > 1 && listed%PageSize == 1 {
				s.page(objects)
			}
			return yield(found.Object, nil)
		})
	}
}

// page counts one request of a listing. If listed is nil, page returns a snapshot of the objects; otherwise it
// returns listed.
func (s *Store) page(listed *btree.Map[string, stored]) *btree.Map[string, stored] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Lists++
	if listed == nil {
		return s.objects.Copy()
	}
	return listed
}
