package service

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/metrics"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// countedStore counts and times the requests to an object store.
type countedStore struct {
	inner   blob.Store
	metrics metrics.Recorder
	clock   clock.Clock
}

var _ blob.Store = (*countedStore)(nil)

// Unwrap returns the inner store, which may provide a clock.
func (s *countedStore) Unwrap() blob.Store { return s.inner }

// measure counts a request to the key or prefix, and records how long it took.
func (s *countedStore) measure(op, key string, took time.Duration, err error) {
	kind, _, _ := strings.Cut(key, "/")
	result := resultOf(err)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		result = "not_found"
	case errors.Is(err, blob.ErrExists):
		result = "exists"
	case errors.Is(err, blob.ErrMismatch):
		result = "mismatch"
	}
	s.metrics.Add(storeRequests, 1, op, kind, result)
	s.metrics.Observe(storeDuration, took, op)
}

// call makes a request and measures it.
func (s *countedStore) call(op, key string, request func() error) error {
	began := s.clock.Now()
	err := request()
	s.measure(op, key, s.clock.Now().Sub(began), err)
	return err
}

// Create implements [blob.Store].
func (s *countedStore) Create(ctx context.Context, key string, data []byte) (o blob.Object, err error) {
	err = s.call("create", key, func() error { o, err = s.inner.Create(ctx, key, data); return err })
	return o, err
}

// CreateFrom implements [blob.Store].
func (s *countedStore) CreateFrom(ctx context.Context, key string, r io.Reader) (o blob.Object, err error) {
	err = s.call("create", key, func() error { o, err = s.inner.CreateFrom(ctx, key, r); return err })
	return o, err
}

// Replace implements [blob.Store].
func (s *countedStore) Replace(ctx context.Context, key string, data []byte, version int64) (o blob.Object, err error) {
	err = s.call("replace", key, func() error { o, err = s.inner.Replace(ctx, key, data, version); return err })
	return o, err
}

// Put implements [blob.Store].
func (s *countedStore) Put(ctx context.Context, key string, data []byte) (o blob.Object, err error) {
	err = s.call("put", key, func() error { o, err = s.inner.Put(ctx, key, data); return err })
	return o, err
}

// Get implements [blob.Store].
func (s *countedStore) Get(ctx context.Context, key string) (data []byte, o blob.Object, err error) {
	err = s.call("get", key, func() error { data, o, err = s.inner.Get(ctx, key); return err })
	return data, o, err
}

// Open implements [blob.Store].
func (s *countedStore) Open(ctx context.Context, key string) (r io.ReadCloser, o blob.Object, err error) {
	err = s.call("get", key, func() error { r, o, err = s.inner.Open(ctx, key); return err })
	return r, o, err
}

// Head implements [blob.Store].
func (s *countedStore) Head(ctx context.Context, key string) (o blob.Object, err error) {
	err = s.call("head", key, func() error { o, err = s.inner.Head(ctx, key); return err })
	return o, err
}

// List implements [blob.Store]. The measured time ends when the first object arrives, because the rest of the time
// depends on the caller.
func (s *countedStore) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		began, took, first := s.clock.Now(), time.Duration(0), true
		var failed error
		for o, err := range s.inner.List(ctx, opts) {
			if first {
				took, first = s.clock.Now().Sub(began), false
			}
			failed = err
			if !yield(o, err) {
				break
			}
		}
		if first {
			took = s.clock.Now().Sub(began)
		}
		s.measure("list", opts.Prefix, took, failed)
	}
}

// Delete implements [blob.Store].
func (s *countedStore) Delete(ctx context.Context, key string) error {
	return s.call("delete", key, func() error { return s.inner.Delete(ctx, key) })
}

// countedQueue counts the tasks that are created in a queue, and measures how long each creation
// takes.
type countedQueue struct {
	queue.Queue
	metrics metrics.Recorder
	clock   clock.Clock
	timers  string // name of the queue of timers
}

// Create implements [queue.Queue].
func (q *countedQueue) Create(ctx context.Context, t queue.Task) error {
	began := q.clock.Now()
	err := q.Queue.Create(ctx, t)
	kind, result := "dispatch", "created"
	if t.Queue == q.timers {
		kind = "timer"
	}
	switch {
	case errors.Is(err, queue.ErrExists):
		result = "exists"
	case errors.Is(err, queue.ErrInvalid):
		result = "invalid"
	case err != nil:
		result = resultError
	}
	q.metrics.Add(queueTasks, 1, kind, result)
	q.metrics.Observe(queueDuration, q.clock.Now().Sub(began), kind)
	return err
}
