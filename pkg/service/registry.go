package service

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// maxDomains bounds how many domains a process keeps open.
const maxDomains = 10_000

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
	asked   chan *opened[T]

	mu      sync.Mutex
	domains map[ids.Domain]*opened[T]
}

// served is what a domain has, and what runs it until a context is done.
type served[T any] struct {
	value T
	run   func(context.Context)
}

// opened is a domain's place; what it holds is there once done is closed.
type opened[T any] struct {
	domain ids.Domain
	done   chan struct{}
	value  T
	ok     bool
	err    error
}

func newRegistry[T any](m *metrics, open func(context.Context, ids.Domain) (*served[T], error)) *registry[T] {
	return &registry[T]{open: open, metrics: m, asked: make(chan *opened[T]), domains: map[ids.Domain]*opened[T]{}}
}

// get gives what a domain has; false if there is no such domain, which is not kept.
// It needs run to be running.
func (r *registry[T]) get(ctx context.Context, d ids.Domain) (value T, ok bool, err error) {
	o, first, err := r.place(d)
	if err != nil {
		return value, false, err
	}
	if first {
		select {
		case r.asked <- o:
		case <-ctx.Done():
			r.settle(o, nil, ctx.Err())
		}
	}
	select {
	case <-o.done:
		return o.value, o.ok, o.err
	case <-ctx.Done():
		return value, false, fmt.Errorf("open %s: %w", d, ctx.Err())
	}
}

// place is a domain's place; first: it is new, and the caller has it opened.
func (r *registry[T]) place(d ids.Domain) (o *opened[T], first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o = r.domains[d]; o != nil {
		return o, false, nil
	}
	if len(r.domains) >= maxDomains {
		return nil, false, fmt.Errorf("open %s: %d domains are open already; run more instances and spread the domains", d, maxDomains)
	}
	o = &opened[T]{domain: d, done: make(chan struct{})}
	r.domains[d] = o
	return o, true, nil
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
			running.Go(func() {
				if s := r.openOne(ctx, o); s != nil {
					s.run(ctx)
				}
			})
		}
	}
}

func (r *registry[T]) openOne(ctx context.Context, o *opened[T]) *served[T] {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	s, err := r.open(ctx, o.domain)
	r.settle(o, s, err)
	return s
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
