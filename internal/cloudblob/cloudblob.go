// Package cloudblob wraps a [blob.Store] to behave like a cloud object store: it adds the
// latency of operations, the limit on mutations of one name, notifications of writes, and a
// meter of billed operations.
//
// The [Config] sets the latencies, the limit and the receiver of notifications. A store with the zero Config only
// counts operations. An operation takes effect after half of its latency. A caller that gives up earlier has changed
// nothing; a caller that gives up later does not know the outcome.
//
// Transfer time is not modelled: Servo's objects are small.
package cloudblob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/internal/latency"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

// PageSize is how many objects one request of a listing returns.
const PageSize = 1000

// ErrTooFast is the error of a mutation that follows the last mutation of the same name too soon: 429 Too Many
// Requests. The mutation had no effect. But callers of a [blob.Store] must treat ErrTooFast like any other error, after
// which the mutation may have had an effect.
var ErrTooFast = errors.New("429 mutation rate of one object exceeded")

// Model describes how a store behaves. The zero Model answers immediately and has no
// limits.
type Model struct {
	Write  latency.Dist // latency of create, replace and put
	Read   latency.Dist // latency of get, open and head
	List   latency.Dist // latency of one page of a listing
	Delete latency.Dist
	// MutationEvery is the minimum time between mutations of one name.
	MutationEvery time.Duration
}

// GCS returns a model of Google Cloud Storage: a single-region bucket, used from a service
// in the same region.
func GCS() Model {
	ms := latency.Milliseconds
	return Model{
		Write: ms(45, 180), Read: ms(15, 80), List: ms(30, 150), Delete: ms(25, 100), //nolint:mnd // the figures of the model
		MutationEvery: time.Second,
	}
}

// Config configures a Store.
type Config struct {
	Model Model
	// Clock and Random are required if Model has latencies or a limit.
	Clock  clock.Clock
	Random *latency.Source
	// Written is called with every object that was written, even if the writer does not learn that the write has
	// succeeded. It must not block. It may be nil.
	Written func(blob.Object)
}

// Store is a store with the latencies and limits of a [Model]. Create it with [New].
type Store struct {
	inner blob.Store
	cfg   Config
	meter meter

	mu      sync.Mutex
	mutated map[string]time.Time // times of the last mutations of recently mutated names
	oldest  []string             // the names in mutated, in the order of their last mutations
}

var _ blob.Store = (*Store)(nil)

// Unwrap returns the wrapped store, so that [blob.TimeOf] can read its clock.
func (s *Store) Unwrap() blob.Store { return s.inner }

// New wraps a store.
func New(inner blob.Store, cfg Config) *Store {
	return &Store{inner: inner, cfg: cfg, mutated: map[string]time.Time{}}
}

// timed calls f after half of the drawn latency, and returns after the other half.
func timed[T any](ctx context.Context, s *Store, d latency.Dist, verb, key string, f func() (T, error)) (T, error) {
	half := s.cfg.Random.Draw(d) / 2 //nolint:mnd // half of the latency passes before the operation, half after it
	var none T
	if err := s.wait(ctx, half, verb, key); err != nil {
		return none, err
	}
	value, err := f()
	if err := s.wait(ctx, half, verb, key); err != nil {
		return none, err
	}
	return value, err
}

func (s *Store) wait(ctx context.Context, d time.Duration, verb, key string) error {
	if d <= 0 {
		return nil
	}
	if err := s.cfg.Clock.Sleep(ctx, d); err != nil {
		return fmt.Errorf("%s object %q: %w", verb, key, err)
	}
	return nil
}

// write executes a write and meters it. It refuses the write if the name was mutated too recently.
func (s *Store) write(ctx context.Context, verb, key string, do func() (blob.Object, error)) (blob.Object, error) {
	if err := blob.ValidateKey(key); err != nil {
		return blob.Object{}, fmt.Errorf("%s object: %w", verb, err)
	}
	return timed(ctx, s, s.cfg.Model.Write, verb, key, func() (blob.Object, error) {
		if err := s.checkRate(ctx, verb, key); err != nil {
			s.meter.add(key, Count{Refused: 1})
			return blob.Object{}, err
		}
		o, err := do()
		s.meter.add(key, Count{ClassA: 1, BytesIn: o.Size})
		if err == nil {
			s.note(key)
			if s.cfg.Written != nil {
				s.cfg.Written(o)
			}
		}
		return o, err
	})
}

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.write(ctx, create, key, func() (blob.Object, error) { return s.inner.Create(ctx, key, data) })
}

// CreateFrom implements [blob.Store].
func (s *Store) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	return s.write(ctx, create, key, func() (blob.Object, error) { return s.inner.CreateFrom(ctx, key, r) })
}

// Replace implements [blob.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, version int64) (blob.Object, error) {
	return s.write(ctx, "replace", key, func() (blob.Object, error) { return s.inner.Replace(ctx, key, data, version) })
}

// Put implements [blob.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.write(ctx, "put", key, func() (blob.Object, error) { return s.inner.Put(ctx, key, data) })
}

// Get implements [blob.Store].
func (s *Store) Get(ctx context.Context, key string) (data []byte, o blob.Object, err error) {
	o, err = timed(ctx, s, s.cfg.Model.Read, "get", key, func() (o blob.Object, err error) {
		data, o, err = s.inner.Get(ctx, key)
		s.meter.add(key, Count{ClassB: 1, BytesOut: int64(len(data))})
		return o, err
	})
	if err != nil {
		return nil, blob.Object{}, err
	}
	return data, o, nil
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, key string) (r io.ReadCloser, o blob.Object, err error) {
	o, err = timed(ctx, s, s.cfg.Model.Read, "open", key, func() (o blob.Object, err error) {
		r, o, err = s.inner.Open(ctx, key)
		s.meter.add(key, Count{ClassB: 1})
		return o, err
	})
	if err != nil {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
		return nil, blob.Object{}, err
	}
	return &metered{ReadCloser: r, count: func(n int) { s.meter.add(key, Count{BytesOut: int64(n)}) }}, o, nil
}

// metered is a reader that passes the number of bytes of each Read to the function count.
type metered struct {
	io.ReadCloser
	count func(n int)
}

// Read implements [io.Reader].
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if n > 0 {
		m.count(n)
	}
	return n, err
}

// Head implements [blob.Store].
func (s *Store) Head(ctx context.Context, key string) (blob.Object, error) {
	return timed(ctx, s, s.cfg.Model.Read, "head", key, func() (blob.Object, error) {
		o, err := s.inner.Head(ctx, key)
		s.meter.add(key, Count{ClassB: 1})
		return o, err
	})
}

// Delete implements [blob.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := timed(ctx, s, s.cfg.Model.Delete, "delete", key, func() (struct{}, error) {
		if err := s.checkRate(ctx, "delete", key); err != nil {
			s.meter.add(key, Count{Refused: 1})
			return struct{}{}, err
		}
		err := s.inner.Delete(ctx, key)
		s.meter.add(key, Count{Free: 1})
		if err == nil {
			s.note(key)
		}
		return struct{}{}, err
	})
	return err
}

// List implements [blob.Store]. Each page has its own latency.
func (s *Store) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		page := func() error {
			if err := s.wait(ctx, s.cfg.Random.Draw(s.cfg.Model.List), "list", opts.Prefix); err != nil {
				return err
			}
			s.meter.add(opts.Prefix, Count{ClassA: 1})
			return nil
		}
		if err := page(); err != nil {
			yield(blob.Object{}, err)
			return
		}
		listed := 0
		for o, err := range s.inner.List(ctx, opts) {
			if err == nil && listed > 0 && listed%PageSize == 0 {
				err = page()
			}
			if err != nil {
				yield(blob.Object{}, err)
				return
			}
			listed++
			if !yield(o, nil) {
				return
			}
		}
	}
}
