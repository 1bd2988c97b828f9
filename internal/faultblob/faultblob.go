// Package faultblob wraps a [blob.Store]. It makes the operations that a hook selects fail, before or after they take
// effect. Programs often handle the second case wrongly: the write succeeded, but the writer got an error.
//
// An injected error resembles the error of a broken connection: it says nothing about the outcome
// and never matches the errors of package blob.
package faultblob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// ErrInjected matches every failure that this package injects. Such a failure leaves the outcome of a write unknown.
var ErrInjected = errors.New("injected fault, outcome unknown")

// Op names a method of [blob.Store].
type Op string

// The operations that a hook receives.
const (
	Create     Op = "create"
	CreateFrom Op = "create_from"
	Replace    Op = "replace"
	Put        Op = "put"
	Get        Op = "get"
	Open       Op = "open"
	Head       Op = "head"
	List       Op = "list"
	Delete     Op = "delete"
)

// Fault says whether and how an operation fails.
type Fault int

// The faults. For Open and List, FailAfter yields the whole content and then the error.
const (
	None       Fault = iota // the operation runs normally
	FailBefore              // the operation fails without effect
	FailAfter               // the operation takes effect, but its answer is replaced by an error
)

// Hook selects the fault of each operation. It receives the operation's key or, for List, the prefix. The store calls
// the hook in the goroutine of the operation, before the operation runs. The hook may block to delay the operation.
type Hook func(op Op, key string) Fault

// Store injects the faults that its hook selects. Create it with [New].
type Store struct {
	inner blob.Store
	hook  Hook
}

var _ blob.Store = (*Store)(nil)

// Unwrap returns the wrapped store, so that [blob.TimeOf] can read its clock.
func (s *Store) Unwrap() blob.Store { return s.inner }

// New wraps a store; a nil hook never fails.
func New(inner blob.Store, hook Hook) *Store {
	if hook == nil {
		hook = func(Op, string) Fault { return None }
	}
	return &Store{inner: inner, hook: hook}
}

func injected(op Op, key string) error { return fmt.Errorf("%s %q: %w", op, key, ErrInjected) }

// run executes an operation with the fault that the hook selects for it.
func run[T any](s *Store, op Op, key string, do func() (T, error)) (T, error) {
	var none T
	switch s.hook(op, key) {
	case FailBefore:
		return none, injected(op, key)
	case FailAfter:
		// The answer is lost, even if it was ErrExists.
		_, _ = do()
		return none, injected(op, key)
	default:
		return do()
	}
}

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return run(s, Create, key, func() (blob.Object, error) { return s.inner.Create(ctx, key, data) })
}

// CreateFrom implements [blob.Store].
func (s *Store) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	return run(s, CreateFrom, key, func() (blob.Object, error) { return s.inner.CreateFrom(ctx, key, r) })
}

// Replace implements [blob.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, version int64) (blob.Object, error) {
	return run(s, Replace, key, func() (blob.Object, error) { return s.inner.Replace(ctx, key, data, version) })
}

// Put implements [blob.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return run(s, Put, key, func() (blob.Object, error) { return s.inner.Put(ctx, key, data) })
}

// Get implements [blob.Store].
func (s *Store) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	var data []byte
	o, err := run(s, Get, key, func() (o blob.Object, err error) {
		data, o, err = s.inner.Get(ctx, key)
		return o, err
	})
	if err != nil {
		return nil, blob.Object{}, err
	}
	return data, o, nil
}

// Head implements [blob.Store].
func (s *Store) Head(ctx context.Context, key string) (blob.Object, error) {
	return run(s, Head, key, func() (blob.Object, error) { return s.inner.Head(ctx, key) })
}

// Delete implements [blob.Store].
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := run(s, Delete, key, func() (struct{}, error) { return struct{}{}, s.inner.Delete(ctx, key) })
	return err
}

// Open implements [blob.Store].
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, blob.Object, error) {
	fault := s.hook(Open, key)
	if fault == FailBefore {
		return nil, blob.Object{}, injected(Open, key)
	}
	r, o, err := s.inner.Open(ctx, key)
	if err == nil && fault == FailAfter {
		r = &cutOff{ReadCloser: r, err: injected(Open, key)}
	}
	return r, o, err
}

// cutOff is a reader that returns an error at the end of the stream that it wraps.
type cutOff struct {
	io.ReadCloser
	err error
}

// Read implements [io.Reader].
func (c *cutOff) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		err = c.err
	}
	return n, err
}

// List implements [blob.Store].
func (s *Store) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		fault := s.hook(List, opts.Prefix)
		if fault == FailBefore {
			yield(blob.Object{}, injected(List, opts.Prefix))
			return
		}
		for o, err := range s.inner.List(ctx, opts) {
			if !yield(o, err) || err != nil {
				return
			}
		}
		if fault == FailAfter {
			yield(blob.Object{}, injected(List, opts.Prefix))
		}
	}
}
