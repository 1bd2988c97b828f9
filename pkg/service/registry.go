package service

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// maxDomains bounds how many domains a process keeps open. One more takes the place of
// the one, of those that no request uses, that nobody has asked for the longest.
const maxDomains = 10_000

const (
	// defaultCacheBytes is how much memory the domains of a process may take together: half of
	// the container that the services have by default.
	defaultCacheBytes = 512 << 20
	minCacheBytes     = 1 << 20
	// domainBytes is what an open domain takes besides its state, about: goroutines and buffers.
	domainBytes = 64 << 10
)

// openTimeout is how long it may take to open a domain: its state is read, as large
// as it is. Whoever asked for it asks again, and finds it open.
const openTimeout = 5 * time.Minute

// registry opens something for each domain when it is first asked for, keeps it and
// runs it. Opening one domain holds up no other, and goes on when the request that
// asked for it first has ended: else a domain that takes longer than a request may
// would never be open.
type registry[T any] struct {
	open    func(context.Context, ids.Domain) (*served[T], error) // nil if there is no such domain
	metrics *metrics
	clock   clock.Clock
	limit   int // of domains
	// limitBytes bounds the memory of the domains that are open. Domains in use, and the one
	// that was used last, stay open above it.
	limitBytes int64
	asked      chan *opened[T]

	mu      sync.Mutex
	domains map[ids.Domain]*opened[T]
	bytes   int64 // the sum of what domains have been counted with
}

// served is what a domain has, and what runs it until a context is done.
type served[T any] struct {
	value T
	run   func(context.Context)
	// bytes returns about how much memory the domain takes; nil: nothing worth counting.
	bytes func() int64
}

// opened is a domain's place; what it holds is there once done is closed.
type opened[T any] struct {
	domain ids.Domain
	done   chan struct{}
	value  T
	ok     bool
	err    error

	bytes func() int64
	// counted is what the domain has been counted with last; guarded by the registry's lock.
	counted int64

	users int       // requests that have it; guarded by the registry's lock, as the next ones are
	used  time.Time // when the last one asked
	stop  context.CancelFunc
	gone  chan struct{} // closed when the place is free again; nil while nobody wants it
}

func newRegistry[T any](m *metrics, c clock.Clock, open func(context.Context, ids.Domain) (*served[T], error)) *registry[T] {
	return &registry[T]{open: open, metrics: m, clock: c, limit: maxDomains, limitBytes: defaultCacheBytes, asked: make(chan *opened[T]), domains: map[ids.Domain]*opened[T]{}}
}

// get gives what a domain has; false if there is no such domain, which is not kept.
// The domain stays open for as long as ctx, of the request that wants it, is not done.
// It needs run to be running.
func (r *registry[T]) get(ctx context.Context, d ids.Domain) (value T, ok bool, err error) {
	for {
		o, first, leaving, err := r.place(ctx, d)
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
				r.settle(o, nil, ctx.Err())
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

// use has a domain's place stay until the request that uses it has ended.
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

// count takes the present size of a domain into the sum. It is called with the lock.
func (r *registry[T]) count(o *opened[T]) {
	size := int64(0)
	if o.bytes != nil && r.domains[o.domain] == o {
		size = domainBytes + o.bytes()
	}
	r.metrics.Add("servo_domains_bytes", float64(size-o.counted))
	r.bytes += size - o.counted
	o.counted = size
}

// evict ends domains that are not in use, those first that were used the longest ago, until
// the others have room. It is called with the lock.
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
			over -= o.counted // it is on its way out
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

// leave has a domain end. Its place is free once gone is closed.
func (o *opened[T]) leave() {
	if o.gone == nil {
		o.gone = make(chan struct{})
		o.stop()
	}
}

// place is a domain's place; first: it is new, and the caller has it opened. Where there
// is none yet, leaving is closed when the caller may look again.
func (r *registry[T]) place(ctx context.Context, d ids.Domain) (o *opened[T], first bool, leaving <-chan struct{}, err error) {
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
		leaving := r.giveUp()
		if leaving == nil {
			return nil, false, nil, fmt.Errorf("open %s: %d domains are open already, and all in use; run more instances", d, r.limit)
		}
		return nil, false, leaving, nil
	}
	o = &opened[T]{domain: d, done: make(chan struct{})}
	r.use(ctx, o)
	r.domains[d] = o
	return o, true, nil, nil
}

// giveUp has the domain end that nobody has asked for the longest; nil if all are in use,
// or just being opened.
func (r *registry[T]) giveUp() <-chan struct{} {
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

// run opens the domains that are asked for, and runs them, until ctx is done.
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

// serve opens a domain and runs it, until ctx is done or its place is given up.
func (r *registry[T]) serve(ctx context.Context, o *opened[T]) {
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	s, err := r.open(opening, o.domain)
	cancel()
	if s == nil {
		r.settle(o, nil, err)
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r.settle(o, s, nil)
	r.mu.Lock()
	o.stop, o.used = stop, r.clock.Now() // not given up before somebody could ask for it again
	o.bytes = s.bytes
	r.count(o)
	r.evict()
	r.mu.Unlock()
	s.run(ctx)

	<-ctx.Done() // it is there for as long as its place is
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.domains, o.domain)
	r.count(o)
	r.metrics.Add("servo_domains_open", -1)
	if o.gone != nil {
		close(o.gone)
	}
}

// settle fills a place, or gives it up for the next who asks.
func (r *registry[T]) settle(o *opened[T], s *served[T], err error) {
	if s != nil {
		o.value, o.ok = s.value, true
		r.metrics.Add("servo_domains_open", 1)
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
