// Package sweeper implements anti-entropy: it repairs the effects of lost notifications, hand-overs and queue tasks.
// For each domain that is due, it lists and folds the ledger, so that entries that no process announced are folded.
// Then the dispatcher repairs dispatches and timers that were lost. This package is not a stable API.
//
// The wakeups of package wakeup determine which domains are due. If no domain is due, a sweep makes a single listing
// for all domains together. A full sweep goes through all domains. An idle domain has no wakeup, so only a full sweep
// finds an entry that was appended to an idle domain and never announced.
//
// A domain is swept in three steps. The sweeper may die in any step, and may run concurrently with another sweeper.
// First the compactor folds the ledger, creates the next wakeup, and publishes which wakeups may be deleted. Then the
// dispatcher repairs. Finally, the sweeper deletes those of its wakeups that may be deleted. If it dies before that,
// the next sweep finds them again.
package sweeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

const (
	// parallel is how many domains are swept at the same time.
	parallel = 8
	// domainTimeout is the timeout for the sweep of one domain, so that a slow domain does not block others. It is long
	// enough for the cold start of two services. If the compactor has begun to fold, it continues after the timeout.
	domainTimeout = 45 * time.Second
	// dueTimeout is the timeout for a sweep of the due domains. fullTimeout is the timeout for a sweep of all domains: a
	// scheduler that requests a sweep, such as Cloud Scheduler, waits at most half an hour for the response. Later
	// sweeps reach the remaining domains.
	dueTimeout, fullTimeout = 2 * time.Minute, 29 * time.Minute
	// strayAge is the age at which a wakeup of an empty domain is deleted. The writer that created the wakeup would
	// have published a revision within that time.
	strayAge = time.Hour
)

// Config configures a Sweeper.
type Config struct {
	// Store contains the wakeups.
	Store blob.Store
	Clock clock.Clock
	// Domains lists all domains, for full sweeps.
	Domains func(context.Context) ([]ids.Domain, error)
	// Compact folds the ledger of a domain.
	Compact func(context.Context, ids.Domain, compactor.Request) (compactor.Result, error)
	// Repair calls the dispatcher of a domain, which repairs dispatches and timers in the state at a revision.
	Repair func(ctx context.Context, d ids.Domain, revision int64) error
	// OnSwept receives the result of each sweep. It may be nil.
	OnSwept func(Result, error)
	Logger  *slog.Logger
}

// Sweeper sweeps domains.
type Sweeper struct{ Config }

// New returns a Sweeper.
func New(cfg Config) *Sweeper { return &Sweeper{cfg} }

// Result is the result of a sweep.
type Result struct {
	Full bool `json:"full"`
	// Domains is the number of due domains or, in a full sweep, of all domains.
	Domains int `json:"domains"`
	// Folded is the number of ledger groups that the sweep folded, because no process had announced them.
	Folded int `json:"folded"`
	Failed int `json:"failed"`
	// Missed is the number of domains that were not reached before the sweep ended.
	Missed int `json:"missed,omitempty"`
	// Late is how long the oldest wakeup was overdue when the sweep found it. Wakeups of empty domains do not count.
	Late time.Duration `json:"-"`
}

// target is a domain to sweep, with its wakeups.
type target struct {
	domain  ids.Domain
	wakeups []wakeup.Wakeup // oldest first
}

// Sweep sweeps the due domains or, if full is true, all domains. If the sweep of one domain fails, the other domains
// are still swept.
func (s *Sweeper) Sweep(ctx context.Context, full bool) (Result, error) {
	within := dueTimeout
	if full {
		within = fullTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	result, err := s.sweepAll(ctx, full)
	if s.OnSwept != nil {
		s.OnSwept(result, err)
	}
	return result, err
}

func (s *Sweeper) sweepAll(ctx context.Context, full bool) (Result, error) {
	now := event.At(s.Clock.Now())
	wakeups, err := wakeup.List(ctx, s.Store, now)
	if err != nil {
		return Result{Full: full}, err
	}
	var all []ids.Domain
	var listing error
	if full {
		if all, listing = s.Domains(ctx); listing != nil {
			listing = fmt.Errorf("list domains to sweep: %w", listing)
		}
	}
	targets := targetsOf(wakeups, all, now)
	result := Result{Full: full, Domains: len(targets)}
	errs := make([]error, len(targets), len(targets)+2) //nolint:mnd // capacity for two more errors: listing, missed domains
	var missed atomic.Int64
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, t := range targets {
		g.Go(func() error {
			if ctx.Err() != nil {
				missed.Add(1)
				return nil
			}
			folded, empty, err := s.sweep(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			result.Folded += folded
			if len(t.wakeups) > 0 && !empty {
				result.Late = max(result.Late, now.Sub(t.wakeups[0].At))
			}
			if err != nil {
				result.Failed++
				errs[i] = fmt.Errorf("sweep %s: %w", t.domain, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	if result.Missed = int(missed.Load()); result.Missed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d domains were not swept in time; later sweeps retry them: %w",
			result.Missed, result.Domains, ctx.Err()))
	}
	return result, errors.Join(append(errs, listing)...)
}

// targetsOf returns each domain once, due or not, in an order that differs in each sweep. A sweep may end before it
// has reached all domains, and the same domains may be the slowest in every sweep. In a fixed order, or with due
// domains first, some domains might therefore never be swept.
func targetsOf(wakeups []wakeup.Wakeup, all []ids.Domain, now event.Time) []*target {
	var targets []*target
	byDomain := map[ids.Domain]*target{}
	of := func(d ids.Domain) *target {
		if byDomain[d] == nil {
			byDomain[d] = &target{domain: d}
			targets = append(targets, byDomain[d])
		}
		return byDomain[d]
	}
	for _, m := range wakeups {
		t := of(m.Domain)
		t.wakeups = append(t.wakeups, m)
	}
	slices.SortFunc(all, func(a, b ids.Domain) int { return strings.Compare(a.String(), b.String()) })
	for _, d := range all {
		of(d)
	}
	order := rand.New(rand.NewPCG(uint64(now), 0)) //nolint:gosec // the order is not secret
	order.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	return targets
}

// sweep sweeps one domain. It returns how many groups were folded, and whether the domain is empty.
func (s *Sweeper) sweep(ctx context.Context, t *target) (folded int, empty bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, domainTimeout)
	defer cancel()
	request := compactor.Request{Barrier: true, Sweep: true}
	if n := len(t.wakeups); n > 0 {
		request.Through = t.wakeups[n-1].At
	}
	result, err := s.Compact(ctx, t.domain, request)
	if err != nil {
		return 0, false, err
	}
	empty = result.Revision == 0
	if result.Folded > 0 {
		s.Logger.InfoContext(ctx, "sweep folded ledger entries that were never announced",
			slog.String("domain", t.domain.String()), slog.Int("groups", result.Folded))
	}
	released := result.ReleasedThrough
	if empty { // an empty domain has no revision that allows the deletion of wakeups
		released = event.At(s.Clock.Now().Add(-strayAge))
	} else if err := s.Repair(ctx, t.domain, result.Revision); err != nil {
		return result.Folded, false, err
	}
	for _, m := range t.wakeups {
		if m.At > released {
			continue
		}
		if err := wakeup.Delete(ctx, s.Store, m); err != nil {
			return result.Folded, empty, err
		}
	}
	return result.Folded, empty, nil
}
