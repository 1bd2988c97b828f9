package api

import (
	"context"
	"sync"
)

// shared computes each value once for all callers that request it at the same time. Its zero value is ready.
type shared[K comparable, V any] struct {
	mu      sync.Mutex
	running map[K]*computation[V]
}

// computation is one value that is being computed.
type computation[V any] struct {
	waiting int // the number of callers; at 0, the computation is cancelled
	cancel  context.CancelFunc
	done    chan struct{} // closed when the fields below are set

	value    V
	err      error
	panicked any
}

// do returns what compute returns. Callers with the same key share one computation. A caller leaves when its context
// ends, and the computation's context ends when all callers have left.
func (s *shared[K, V]) do(ctx context.Context, key K, compute func(context.Context) (V, error)) (V, error) {
	c := s.join(ctx, key, compute)
	select {
	case <-c.done:
		if c.panicked != nil {
			panic(c.panicked) // repeats the panic in the caller's goroutine, which recovers from it
		}
		return c.value, c.err
	case <-ctx.Done():
		s.leave(key, c)
		var none V
		return none, context.Cause(ctx)
	}
}

func (s *shared[K, V]) join(ctx context.Context, key K, compute func(context.Context) (V, error)) *computation[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.running[key]; c != nil {
		c.waiting++
		return c
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &computation[V]{waiting: 1, cancel: cancel, done: make(chan struct{})}
	if s.running == nil {
		s.running = map[K]*computation[V]{}
	}
	s.running[key] = c
	go func() {
		defer func() {
			c.panicked = recover()
			s.forget(key, c)
			cancel()
			close(c.done)
		}()
		c.value, c.err = compute(own)
	}()
	return c
}

// leave counts a caller that stops waiting. After the last one has left, it cancels the computation.
func (s *shared[K, V]) leave(key K, c *computation[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.waiting--; c.waiting == 0 {
		c.cancel()
		s.remove(key, c) // a later caller must not get the error of the cancellation
	}
}

func (s *shared[K, V]) forget(key K, c *computation[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(key, c)
}

// remove lets the next caller compute the value again. The caller holds the lock.
func (s *shared[K, V]) remove(key K, c *computation[V]) {
	if s.running[key] == c {
		delete(s.running, key)
	}
}
