package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// Backoff of a relay whose receiver does not respond.
const (
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 5 * time.Second
	// callTimeout limits the duration of one call to the receiver.
	callTimeout = time.Minute
)

// relay hands values over to another service in the background: one call at a time per domain. Values that arrive
// meanwhile are merged into the next call. Failed calls are retried with backoff as long as the process runs. If the
// process ends first, a sweep finds the lost values.
type relay[T any] struct {
	send  func(context.Context, ids.Domain, T) error
	merge func(waiting, more T) T
	// delay is how long a value may wait for more values of its domain. nil: values do not wait.
	delay  func(T) time.Duration
	clock  clock.Clock
	logger *slog.Logger
	// If sent is not nil, it is called after each call of send, with the error that send returned.
	sent func(error)

	mu     sync.Mutex
	queues map[ids.Domain]*domainQueue[T]
	woken  chan struct{} // signals a new queue
}

// domainQueue is the queue of a domain. It is deleted when it is empty.
type domainQueue[T any] struct {
	waiting T
	full    bool
	since   time.Time     // when the oldest waiting value was queued
	more    chan struct{} // signals a new value
	running bool
}

func newRelay[T any](c clock.Clock, logger *slog.Logger, merge func(T, T) T, send func(context.Context, ids.Domain, T) error) *relay[T] {
	return &relay[T]{
		send: send, merge: merge, clock: c, logger: logger,
		queues: map[ids.Domain]*domainQueue[T]{}, woken: make(chan struct{}, 1),
	}
}

// put queues a value. It does not block.
func (r *relay[T]) put(d ids.Domain, v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[d]
	if q == nil {
		q = &domainQueue[T]{more: make(chan struct{}, 1)}
		r.queues[d] = q
	}
	r.add(q, v)
	wake(q.more)
	wake(r.woken)
}

func (r *relay[T]) add(q *domainQueue[T], v T) {
	if q.full {
		q.waiting = r.merge(q.waiting, v)
		return
	}
	q.waiting, q.full, q.since = v, true, r.clock.Now()
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run makes the calls until ctx is done.
func (r *relay[T]) run(ctx context.Context) error {
	var drains sync.WaitGroup
	defer drains.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.woken:
		}
		r.mu.Lock()
		for d, q := range r.queues {
			if !q.running {
				q.running = true
				drains.Go(func() { r.drain(ctx, d, q) })
			}
		}
		r.mu.Unlock()
	}
}

// drain sends the values of a domain until none waits.
func (r *relay[T]) drain(ctx context.Context, d ids.Domain, q *domainQueue[T]) {
	backoff := firstBackoff
	for {
		v, ok := r.take(ctx, d, q)
		if !ok {
			return
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := r.send(call, d, v)
		cancel()
		if r.sent != nil {
			r.sent(err)
		}
		if err == nil {
			backoff = firstBackoff
			continue
		}
		if ctx.Err() != nil {
			return
		}
		r.logger.WarnContext(ctx, "hand-over failed; will retry",
			slog.String("domain", d.String()), slog.Duration("wait", backoff), slog.Any("error", err))
		r.mu.Lock()
		if q.full {
			v = r.merge(v, q.waiting)
		}
		q.waiting, q.full = v, true
		r.mu.Unlock()
		if r.clock.Sleep(ctx, backoff) != nil {
			return
		}
		backoff = min(2*backoff, lastBackoff) //nolint:mnd // doubling
	}
}

// take returns the waiting value once its delay is over. It returns false if ctx is done. If no value waits, it deletes
// the queue and returns false.
func (r *relay[T]) take(ctx context.Context, d ids.Domain, q *domainQueue[T]) (v T, ok bool) {
	for ctx.Err() == nil {
		r.mu.Lock()
		if !q.full {
			delete(r.queues, d)
			r.mu.Unlock()
			return v, false
		}
		var wait time.Duration
		if r.delay != nil {
			wait = r.delay(q.waiting) - r.clock.Now().Sub(q.since)
		}
		if wait <= 0 {
			v = q.waiting
			var none T
			q.waiting, q.full = none, false
			r.mu.Unlock()
			return v, true
		}
		r.mu.Unlock()
		r.linger(ctx, q, wait)
	}
	return v, false
}

// linger waits for a time, or until another value arrives.
func (r *relay[T]) linger(ctx context.Context, q *domainQueue[T], wait time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	slept := make(chan struct{})
	go func() {
		defer close(slept)
		_ = r.clock.Sleep(ctx, wait) // an error only means that the pause ended early
	}()
	select {
	case <-slept:
	case <-q.more:
	}
	cancel()
	<-slept
}
