// Package sweeper is anti-entropy: the backup to every notification, hand-over
// and queue. For each domain that is due it has the ledger listed and folded, so
// that nothing that was announced to nobody is forgotten, and then has the dispatcher
// look for what was dispatched and never came back.
//
// Which domains are due the markers of package due say: where nothing can get stuck a
// sweep is one listing, for all domains together. What nobody marked, an entry that was
// appended to an idle domain and announced to nobody, a full sweep finds, which goes
// through all domains.
//
// A domain is swept in three steps, and a sweeper may die, or have company, in any of
// them. The compactor folds what is there and publishes what may become of the markers,
// with the next one created before that; the dispatcher repairs; and then the markers
// that were found are deleted. Until then the next sweep finds them again.
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
	"github.com/servo-orchestration/servo/pkg/due"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	// parallel is how many domains are swept at once.
	parallel = 8
	// patience bounds how long one domain may take: others wait for its turn to end. What
	// its compactor has begun to fold goes on without it. It is enough for the start of two
	// services.
	patience = 45 * time.Second
	// dueWithin and fullWithin bound a sweep of the domains that are due, and of all: a
	// scheduler waits half an hour at most. The next one goes on.
	dueWithin, fullWithin = 2 * time.Minute, 29 * time.Minute
	// strayAge is how old a marker must be that is of a domain with nothing in it, to be
	// deleted: that whoever created it is about to publish is out of the question then.
	strayAge = time.Hour
)

// Config is what a sweeper works with.
type Config struct {
	// Store has the markers.
	Store blob.Store
	Clock clock.Clock
	// Domains lists all domains, for full sweeps.
	Domains func(context.Context) ([]ids.Domain, error)
	// Compact folds what is in a domain's ledger.
	Compact func(context.Context, ids.Domain, compactor.Request) (compactor.Result, error)
	// Repair has the dispatcher of a domain sweep the state of a revision.
	Repair func(ctx context.Context, d ids.Domain, revision int64) error
	// OnSwept is told what each sweep came to. It may be nil.
	OnSwept func(Result, error)
	Logger  *slog.Logger
}

// Sweeper sweeps domains.
type Sweeper struct{ Config }

// New makes a sweeper.
func New(cfg Config) *Sweeper { return &Sweeper{cfg} }

// Result is what a sweep came to.
type Result struct {
	Full bool `json:"full"`
	// Domains are those that were due or, in a full sweep, all.
	Domains int `json:"domains"`
	// Folded are groups of the ledger that nobody had announced.
	Folded int `json:"folded"`
	Failed int `json:"failed"`
	// Missed are those whose turn did not come before the sweep was to end.
	Missed int `json:"missed,omitempty"`
	// Late is by how much the oldest marker was found late, of those of domains that have
	// something.
	Late time.Duration `json:"-"`
}

// task is a domain to sweep, with the markers that were found of it.
type task struct {
	domain  ids.Domain
	markers []due.Marker // oldest first
}

// Sweep sweeps the domains that are due; full, all others, too. One that fails does not
// keep the others from it.
func (s *Sweeper) Sweep(ctx context.Context, full bool) (Result, error) {
	within := dueWithin
	if full {
		within = fullWithin
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
	markers, err := due.List(ctx, s.Store, now)
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
	tasks := tasksOf(markers, all, now)
	result := Result{Full: full, Domains: len(tasks)}
	errs := make([]error, len(tasks), len(tasks)+2) //nolint:mnd // of listing, and of what was missed
	var missed atomic.Int64
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, t := range tasks {
		g.Go(func() error {
			if ctx.Err() != nil {
				missed.Add(1)
				return nil
			}
			folded, empty, err := s.sweep(ctx, t)
			mu.Lock()
			defer mu.Unlock()
			result.Folded += folded
			if len(t.markers) > 0 && !empty {
				result.Late = max(result.Late, now.Sub(t.markers[0].At))
			}
			if err != nil {
				result.Failed++
				errs[i] = fmt.Errorf("sweep %s: %w", t.domain, err)
			}
			return nil
		})
	}
	_ = g.Wait() // they tell of their errors one by one
	if result.Missed = int(missed.Load()); result.Missed > 0 {
		errs = append(errs, fmt.Errorf("%d of %d domains were not swept, which the next sweeps are to do: %w",
			result.Missed, result.Domains, ctx.Err()))
	}
	return result, errors.Join(append(errs, listing)...)
}

// tasksOf has each domain once: those that are due, and all others.
//
// Each sweep takes them in another order. It may have to end before it has gone through
// all, and those that take longest may be the same every time: in any order that stayed,
// or had those first that are due, the same domains would never have their turn.
func tasksOf(markers []due.Marker, all []ids.Domain, now event.Time) []*task {
	var tasks []*task
	byDomain := map[ids.Domain]*task{}
	of := func(d ids.Domain) *task {
		if byDomain[d] == nil {
			byDomain[d] = &task{domain: d}
			tasks = append(tasks, byDomain[d])
		}
		return byDomain[d]
	}
	for _, m := range markers {
		t := of(m.Domain)
		t.markers = append(t.markers, m)
	}
	slices.SortFunc(all, func(a, b ids.Domain) int { return strings.Compare(a.String(), b.String()) })
	for _, d := range all {
		of(d)
	}
	order := rand.New(rand.NewPCG(uint64(now), 0)) //nolint:gosec // nobody gains by knowing the order
	order.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	return tasks
}

// sweep gives how many groups were folded, and whether there is nothing in the domain.
func (s *Sweeper) sweep(ctx context.Context, t *task) (folded int, empty bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request := compactor.Request{Barrier: true, Sweep: true}
	if n := len(t.markers); n > 0 {
		request.Through = t.markers[n-1].At
	}
	result, err := s.Compact(ctx, t.domain, request)
	if err != nil {
		return 0, false, err
	}
	empty = result.Revision == 0
	if result.Folded > 0 {
		s.Logger.InfoContext(ctx, "sweep found ledger entries that nobody had announced",
			slog.String("domain", t.domain.String()), slog.Int("groups", result.Folded))
	}
	attended := result.Attended
	if empty { // there is nothing in it, and no revision to say what may be deleted
		attended = event.At(s.Clock.Now().Add(-strayAge))
	} else if err := s.Repair(ctx, t.domain, result.Revision); err != nil {
		return result.Folded, false, err
	}
	for _, m := range t.markers {
		if m.At > attended {
			continue
		}
		if err := due.Delete(ctx, s.Store, m); err != nil {
			return result.Folded, empty, err
		}
	}
	return result.Folded, empty, nil
}
