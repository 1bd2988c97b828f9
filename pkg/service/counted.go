package service

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// countedStore counts the requests to an object store.
type countedStore struct {
	inner   blob.Store
	metrics *metrics
}

var _ blob.Store = (*countedStore)(nil)

// Unwrap returns the inner store, which may provide a clock.
func (s *countedStore) Unwrap() blob.Store { return s.inner }

func (s *countedStore) count(op, key string, err error) {
	kind, _, _ := strings.Cut(key, "/")
	result := "ok"
	switch {
	case errors.Is(err, blob.ErrNotFound):
		result = "not_found"
	case errors.Is(err, blob.ErrExists):
		result = "exists"
	case errors.Is(err, blob.ErrMismatch):
		result = "mismatch"
	case err != nil:
		result = "error"
	}
	s.metrics.Add("servo_store_requests_total", 1, "op", op, "kind", kind, "result", result)
	if op == "create" && kind == "manifests" && result == "exists" {
		s.metrics.Add("servo_publish_conflicts_total", 1)
	}
}

// Create implements [blob.Store].
func (s *countedStore) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	o, err := s.inner.Create(ctx, key, data)
	s.count("create", key, err)
	return o, err
}

// CreateFrom implements [blob.Store].
func (s *countedStore) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	o, err := s.inner.CreateFrom(ctx, key, r)
	s.count("create", key, err)
	return o, err
}

// Replace implements [blob.Store].
func (s *countedStore) Replace(ctx context.Context, key string, data []byte, generation int64) (blob.Object, error) {
	o, err := s.inner.Replace(ctx, key, data, generation)
	s.count("replace", key, err)
	return o, err
}

// Put implements [blob.Store].
func (s *countedStore) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	o, err := s.inner.Put(ctx, key, data)
	s.count("put", key, err)
	return o, err
}

// Get implements [blob.Store].
func (s *countedStore) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	data, o, err := s.inner.Get(ctx, key)
	s.count("get", key, err)
	return data, o, err
}

// Open implements [blob.Store].
func (s *countedStore) Open(ctx context.Context, key string) (io.ReadCloser, blob.Object, error) {
	r, o, err := s.inner.Open(ctx, key)
	s.count("get", key, err)
	return r, o, err
}

// Head implements [blob.Store].
func (s *countedStore) Head(ctx context.Context, key string) (blob.Object, error) {
	o, err := s.inner.Head(ctx, key)
	s.count("head", key, err)
	return o, err
}

// List implements [blob.Store].
func (s *countedStore) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		var failed error
		for o, err := range s.inner.List(ctx, opts) {
			failed = err
			if !yield(o, err) {
				break
			}
		}
		s.count("list", opts.Prefix, failed)
	}
}

// Delete implements [blob.Store].
func (s *countedStore) Delete(ctx context.Context, key string) error {
	err := s.inner.Delete(ctx, key)
	s.count("delete", key, err)
	return err
}

// countedQueue counts the tasks that are created in a queue.
type countedQueue struct {
	queue.Queue
	metrics *metrics
	timers  string // name of the queue of timers
}

// Create implements [queue.Queue].
func (q *countedQueue) Create(ctx context.Context, t queue.Task) error {
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
		result = "error"
	}
	q.metrics.Add("servo_queue_tasks_total", 1, "kind", kind, "result", result)
	return err
}
