package service

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/metrics"
)

// maxDomains is the maximum number of open domains of a process. Above it, the least recently used idle domain is
// closed.
const maxDomains = 10_000

const (
	// defaultCacheBytes is half the memory of a service's default container.
	defaultCacheBytes = 512 << 20
	minCacheBytes     = 1 << 20
	// domainBytes is the approximate memory of an open domain besides its state: goroutines and
	// buffers.
	domainBytes = 64 << 10
)

// openTimeout limits how long a domain takes to open. It is long, because opening reads the state of the domain. If a
// request times out in the meantime, a later retry finds the domain open.
const openTimeout = 5 * time.Minute

// registry opens a value for each domain on first use, keeps it and runs it. Domains open independently of each other
// and of the requests: the opening continues after its request has timed out, so that a later request finds the
// domain open.
type registry[T any] struct {
	open    func(context.Context, ids.Domain) (*served[T], error) // returns nil if the domain is unknown
	metrics metrics.Recorder
	clock   clock.Clock
	limit   int // maximum number of open domains
	// limitBytes bounds the memory of open domains. Domains in use and the most recently used domain stay open even if
	// they exceed this limit.
	limitBytes int64
	asked      chan *opened[T]

	mu      sync.Mutex
	domains map[ids.Domain]*opened[T]
	bytes   int64 // the sum of opened.counted over all domains
}

// served is the value of a domain. run runs the value until the context is done.
type served[T any] struct {
	value T
	run   func(context.Context)
	// bytes returns the approximate memory of the domain. nil: negligible.
	bytes func() int64
}

// opened is an open domain, or one that is being opened. Its value is set when the channel done is closed.
type opened[T any] struct {
	domain ids.Domain
	done   chan struct{}
	value  T
	ok     bool
	err    error

	bytes func() int64
	// counted is the part of the registry's sum that belongs to this domain. The registry's lock guards it.
	counted int64

	users int       // requests that use the domain; the registry's lock guards this field and those below
	used  time.Time // time of the last request
	stop  context.CancelFunc
	gone  chan struct{} // closed when the domain is closed; nil until the closing begins
}

func newRegistry[T any](m metrics.Recorder, c clock.Clock, open func(context.Context, ids.Domain) (*served[T], error)) *registry[T] {
	return &registry[T]{open: open, metrics: m, clock: c, limit: maxDomains, limitBytes: defaultCacheBytes, asked: make(chan *opened[T]), domains: map[ids.Domain]*opened[T]{}}
}

// get returns the value of a domain, or false if the domain does not exist. The domain stays open until ctx, the
// context of the request, is done. The method run must be running.
func (r *registry[T]) get(ctx context.Context, d ids.Domain) (value T, ok bool, err error) {
	for {
		o, first, leaving, err := r.acquire(ctx, d)
		if err != nil {
			return value, false, err
		}
		wait := leaving
		if o != nil {
			wait = o.done
		}
		if first {
			select {
			case r.asked <- o:
			case <-ctx.Done():
				r.finish(o, nil, ctx.Err())
			}
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return value, false, fmt.Errorf("open %s: %w", d, ctx.Err())
		}
		if o != nil {
			return o.value, o.ok, o.err
		}
	}
}

// use keeps a domain open until the request has ended.
func (r *registry[T]) use(ctx context.Context, o *opened[T]) {
	o.users++
	o.used = r.clock.Now()
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		o.users--
		r.count(o)
		r.evict()
	})
}

// count updates the sum with the size of a domain. The caller holds the lock.
func (r *registry[T]) count(o *opened[T]) {
	size := int64(0)
	if o.bytes != nil && r.domains[o.domain] == o {
		size = domainBytes + o.bytes()
	}
	r.metrics.Add(domainsBytes, float64(size-o.counted))
	r.bytes += size - o.counted
	o.counted = size
}

// evict closes idle domains, the least recently used first, until the memory of the remaining open domains is within
// the limit. The caller holds the lock.
func (r *registry[T]) evict() {
	over := r.bytes - r.limitBytes
	if over <= 0 {
		return
	}
	var idle []*opened[T]
	var last *opened[T]
	for _, o := range r.domains {
		switch {
		case o.gone != nil:
			over -= o.counted // already closing
		case o.idle():
			idle = append(idle, o)
		}
		if last == nil || o.used.After(last.used) {
			last = o
		}
	}
	slices.SortFunc(idle, func(a, b *opened[T]) int { return a.used.Compare(b.used) })
	for _, o := range idle {
		if over <= 0 {
			return
		}
		if o != last {
			over -= o.counted
			o.leave()
		}
	}
}

// idle reports whether a domain is open and no request uses it.
func (o *opened[T]) idle() bool { return o.stop != nil && o.users == 0 }

// leave starts to close a domain. The channel gone is closed when the domain has been closed.
func (o *opened[T]) leave() {
	if o.gone == nil {
		o.gone = make(chan struct{})
		o.stop()
	}
}

// acquire returns the [opened] of a domain. If first is true, the domain is new, and the caller must request its
// opening. If o is nil, the caller must wait until the channel leaving is closed, and then try again: the domain is
// still closing, or too many domains are open and another one is closing to make room.
func (r *registry[T]) acquire(ctx context.Context, d ids.Domain) (o *opened[T], first bool, leaving <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o = r.domains[d]; o != nil {
		if o.gone != nil {
			return nil, false, o.gone, nil
		}
		r.use(ctx, o)
		return o, false, nil, nil
	}
	if len(r.domains) >= r.limit {
		leaving := r.closeOldest()
		if leaving == nil {
			return nil, false, nil, fmt.Errorf("open %s: all %d open domains are in use; run more instances", d, r.limit)
		}
		return nil, false, leaving, nil
	}
	o = &opened[T]{domain: d, done: make(chan struct{})}
	r.use(ctx, o)
	r.domains[d] = o
	return o, true, nil, nil
}

// closeOldest starts to close the least recently used idle domain. It returns nil if all domains
// are in use or being opened.
func (r *registry[T]) closeOldest() <-chan struct{} {
	var oldest *opened[T]
	for _, o := range r.domains {
		if o.idle() && (oldest == nil || o.used.Before(oldest.used)) {
			oldest = o
		}
	}
	if oldest == nil {
		return nil
	}
	oldest.leave()
	return oldest.gone
}

// values returns the values of the open domains.
func (r *registry[T]) values() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	var values []T
	for _, o := range r.domains {
		if o.stop != nil {
			values = append(values, o.value)
		}
	}
	return values
}

// run opens and runs requested domains until ctx is done.
func (r *registry[T]) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case o := <-r.asked:
			running.Go(func() { r.serve(ctx, o) })
		}
	}
}

// serve opens a domain, and runs it until ctx is done or the domain is evicted.
func (r *registry[T]) serve(ctx context.Context, o *opened[T]) {
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	s, err := r.open(opening, o.domain)
	cancel()
	if s == nil {
		r.finish(o, nil, err)
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r.finish(o, s, nil)
	r.mu.Lock()
	o.stop, o.used = stop, r.clock.Now() // so that the domain is not evicted before its caller can use it
	o.bytes = s.bytes
	r.count(o)
	r.evict()
	r.mu.Unlock()
	s.run(ctx)

	<-ctx.Done() // the domain stays open even if s.run has returned
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.domains, o.domain)
	r.count(o)
	r.metrics.Add(domainsOpen, -1)
	if o.gone != nil {
		close(o.gone)
	}
}

// finish publishes the result of an opening. If the opening failed, the next caller opens the domain again.
func (r *registry[T]) finish(o *opened[T], s *served[T], err error) {
	if s != nil {
		o.value, o.ok = s.value, true
		r.metrics.Add(domainsOpen, 1)
	} else {
		if err != nil {
			o.err = fmt.Errorf("open %s: %w", o.domain, err)
		}
		r.mu.Lock()
		delete(r.domains, o.domain)
		r.mu.Unlock()
	}
	close(o.done)
}
