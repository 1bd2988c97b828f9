package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// Domains lists the domains that a store has: those with a ledger or a manifest.
// It asks for one object a domain and kind, never for all of them.
func Domains(ctx context.Context, store blob.Store) ([]ids.Domain, error) {
	found := map[ids.Domain]bool{}
	for _, prefix := range []func(ids.Domain) string{ledger.Prefix, manifest.Prefix} {
		root := strings.TrimSuffix(prefix(ids.Domain{}), ids.Domain{}.Path()+"/")
		for after := ""; ; {
			key, err := first(ctx, store, root, after)
			if err != nil {
				return nil, err
			}
			if key == "" {
				break
			}
			folder, d := domainOf(root, key)
			if d.Validate() == nil {
				found[d] = true
			}
			// Everything in the folder sorts before its name with the character that
			// comes after the slash.
			after = folder + "0"
		}
	}
	domains := make([]ids.Domain, 0, len(found))
	for d := range found {
		domains = append(domains, d)
	}
	slices.SortFunc(domains, func(a, b ids.Domain) int { return strings.Compare(a.String(), b.String()) })
	return domains, nil
}

// first is the first key with a prefix after another, or "".
func first(ctx context.Context, store blob.Store, prefix, after string) (string, error) {
	for object, err := range store.List(ctx, blob.ListOptions{Prefix: prefix, StartAfter: after}) {
		if err != nil {
			return "", fmt.Errorf("list domains: %w", err)
		}
		return object.Key, nil
	}
	return "", nil
}

// domainOf is the folder of a domain that a key lies in, without its last slash,
// and the domain; or, of a stray object, as much of a folder as there is.
func domainOf(root, key string) (folder string, d ids.Domain) {
	tenant, rest, _ := strings.Cut(strings.TrimPrefix(key, root), "/")
	workspace, _, below := strings.Cut(rest, "/")
	if !below {
		return strings.TrimSuffix(root+tenant+"/"+rest, "/"), ids.Domain{}
	}
	name, isTenant := strings.CutPrefix(tenant, "tenant=")
	space, isWorkspace := strings.CutPrefix(workspace, "workspace=")
	if isTenant && isWorkspace {
		d = ids.Domain{Tenant: name, Workspace: space}
	}
	return root + tenant + "/" + workspace, d
}

// maxDomains bounds how many domains a process keeps open.
const maxDomains = 10_000

// registry opens something for each domain when it is first asked for, and keeps
// it. Opening one domain holds up no other.
type registry[T any] struct {
	open    func(context.Context, ids.Domain) (T, bool, error)
	metrics *metrics

	mu      sync.Mutex
	domains map[ids.Domain]*opened[T]
}

type opened[T any] struct {
	once  chan struct{} // holds a token while nobody opens it
	value T
	ready bool
}

func newRegistry[T any](m *metrics, open func(context.Context, ids.Domain) (T, bool, error)) *registry[T] {
	return &registry[T]{open: open, metrics: m, domains: map[ids.Domain]*opened[T]{}}
}

// get gives what a domain has; false if open has found no such domain, which is
// not kept.
func (r *registry[T]) get(ctx context.Context, d ids.Domain) (value T, ok bool, err error) {
	for {
		o, err := r.slot(d)
		if err != nil {
			return value, false, err
		}
		select {
		case <-ctx.Done():
			return value, false, fmt.Errorf("open %s: %w", d, ctx.Err())
		case <-o.once:
		}
		value, ok, current, err := r.openIn(ctx, d, o)
		o.once <- struct{}{}
		if current {
			return value, ok, err
		}
	}
}

// slot is a domain's place, a new one if it has none.
func (r *registry[T]) slot(d ids.Domain) (*opened[T], error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if o := r.domains[d]; o != nil {
		return o, nil
	}
	if len(r.domains) >= maxDomains {
		return nil, fmt.Errorf("open %s: %d domains are open already; run more instances and spread the domains", d, maxDomains)
	}
	o := &opened[T]{once: make(chan struct{}, 1)}
	o.once <- struct{}{}
	r.domains[d] = o
	return o, nil
}

// openIn opens a domain in its place, which the caller holds; not current: the
// place was given up while the caller waited for it.
func (r *registry[T]) openIn(ctx context.Context, d ids.Domain, o *opened[T]) (value T, ok, current bool, err error) {
	r.mu.Lock()
	current = r.domains[d] == o
	r.mu.Unlock()
	if !current || o.ready {
		return o.value, o.ready, current, nil
	}
	value, ok, err = r.open(ctx, d)
	if err == nil && ok {
		o.value, o.ready = value, true
		r.metrics.Add("servo_domains_open", 1)
		return value, true, true, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.domains, d)
	return value, false, true, err
}
