package sweeper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/sweeper"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

var (
	one   = ids.Domain{Tenant: "acme", Workspace: "one"}
	two   = ids.Domain{Tenant: "acme", Workspace: "two"}
	three = ids.Domain{Tenant: "globex", Workspace: "three"}

	noon = event.At(time.Date(2026, 11, 22, 12, 0, 30, 0, time.UTC))
)

// fixedClock is a clock that never advances.
type fixedClock event.Time

func (c fixedClock) Now() time.Time { return event.Time(c).Time() }

func (fixedClock) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// call is a call that the sweeper has made.
type call struct {
	what     string
	through  event.Time
	revision int64
}

// fixture is the store, the compactor and the dispatcher that a sweeper calls. It records the calls.
type fixture struct {
	t          *testing.T
	store      blob.Store
	domains    []ids.Domain
	listing    error
	folded     map[ids.Domain]int
	compacting map[ids.Domain]error
	repairing  map[ids.Domain]error
	// released overrides the compactor's Result.ReleasedThrough for some domains. empty contains the domains without a
	// state.
	released map[ids.Domain]event.Time
	empty    map[ids.Domain]bool
	// hanging contains the domains whose compactor does not answer.
	hanging map[ids.Domain]bool

	mu    sync.Mutex
	calls map[ids.Domain][]call
	swept []sweeper.Result
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{t: t, store: memblob.New(memblob.Options{}), calls: map[ids.Domain][]call{}}
}

func (w *fixture) called(d ids.Domain, c call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[d] = append(w.calls[d], c)
}

// mark creates a wakeup of a domain. The wakeup is due at noon minus the given duration.
func (w *fixture) mark(d ids.Domain, before time.Duration) wakeup.Wakeup {
	w.t.Helper()
	m := wakeup.Wakeup{At: wakeup.Minute(noon.Add(-before)), Domain: d}
	require.NoError(w.t, wakeup.Create(w.t.Context(), w.store, m))
	return m
}

func (w *fixture) left() []wakeup.Wakeup {
	w.t.Helper()
	wakeups, err := wakeup.List(w.t.Context(), w.store, noon.Add(1000*time.Hour))
	require.NoError(w.t, err)
	return wakeups
}

func (w *fixture) sweeper() *sweeper.Sweeper {
	return sweeper.New(sweeper.Config{
		Store: w.store, Clock: fixedClock(noon),
		Domains: func(context.Context) ([]ids.Domain, error) { return w.domains, w.listing },
		Compact: func(ctx context.Context, d ids.Domain, r compactor.Request) (compactor.Result, error) {
			if !r.Barrier || !r.Sweep {
				return compactor.Result{}, errors.New("the request must set Barrier and Sweep")
			}
			w.called(d, call{what: "compact", through: r.Through})
			if w.hanging[d] {
				<-ctx.Done()
				return compactor.Result{}, ctx.Err()
			}
			result := compactor.Result{Revision: 7, Folded: w.folded[d], ReleasedThrough: r.Through}
			if released, ok := w.released[d]; ok {
				result.ReleasedThrough = released
			}
			if w.empty[d] {
				result.Revision = 0
			}
			return result, w.compacting[d]
		},
		Repair: func(_ context.Context, d ids.Domain, revision int64) error {
			w.called(d, call{what: "repair", revision: revision})
			return w.repairing[d]
		},
		OnSwept: func(r sweeper.Result, _ error) { w.swept = append(w.swept, r) },
		Logger:  slog.New(slog.DiscardHandler),
	})
}

func TestSweepFoldsRepairsAndDeletesWakeups(t *testing.T) {
	w := newFixture(t)
	w.domains, w.folded = []ids.Domain{one, two, three}, map[ids.Domain]int{two: 3}
	w.mark(one, 12*time.Minute)
	second := w.mark(one, 0)
	first := w.mark(two, 2*time.Minute)
	later := w.mark(two, -time.Minute)
	w.mark(three, -time.Hour)
	result, err := w.sweeper().Sweep(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, sweeper.Result{Domains: 2, Folded: 3, Late: 12*time.Minute + 30*time.Second}, result)
	require.Equal(t, map[ids.Domain][]call{
		one: {{"compact", second.At, 0}, {"repair", 0, 7}},
		two: {{"compact", first.At, 0}, {"repair", 0, 7}},
	}, w.calls)
	require.Equal(t, []wakeup.Wakeup{later, {At: wakeup.Minute(noon.Add(time.Hour)), Domain: three}}, w.left())
	require.Equal(t, []sweeper.Result{result}, w.swept)
}

func TestFullSweepCoversAllDomains(t *testing.T) {
	w := newFixture(t)
	w.domains = []ids.Domain{three, two, one}
	m := w.mark(two, time.Minute)
	result, err := w.sweeper().Sweep(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, sweeper.Result{Full: true, Domains: 3, Late: 90 * time.Second}, result)
	require.Equal(t, map[ids.Domain][]call{
		one: {{"compact", 0, 0}, {"repair", 0, 7}}, two: {{"compact", m.At, 0}, {"repair", 0, 7}}, three: {{"compact", 0, 0}, {"repair", 0, 7}},
	}, w.calls)
	require.Empty(t, w.left())
}

// INV-5: no work is lost. A wakeup must remain if its domain could not be swept, or if no revision says that it may be
// deleted.
func TestINV5WakeupsRemainUntilDomainIsSwept(t *testing.T) {
	w := newFixture(t)
	w.folded = map[ids.Domain]int{two: 1, three: 2}
	w.compacting, w.repairing = map[ids.Domain]error{one: errors.New("store away")}, map[ids.Domain]error{two: errors.New("queue away")}
	kept := []wakeup.Wakeup{w.mark(one, 2*time.Minute), w.mark(two, time.Minute)}
	w.mark(three, 2*time.Minute)
	kept = append(kept, w.mark(three, 0))
	w.released = map[ids.Domain]event.Time{three: wakeup.Minute(noon.Add(-time.Minute))}
	result, err := w.sweeper().Sweep(t.Context(), false)
	require.ErrorContains(t, err, "sweep acme/one: store away")
	require.ErrorContains(t, err, "sweep acme/two: queue away")
	require.Equal(t, 3, result.Folded)
	require.Equal(t, 2, result.Failed)
	require.Len(t, w.calls[one], 1, "a state that may be incomplete is not repaired")
	require.Equal(t, kept, w.left())
}

// Result.Late ignores the wakeups of an empty domain, because they must not trigger an alert.
func TestStrayWakeupsAreDeletedAfterAnHour(t *testing.T) {
	w := newFixture(t)
	w.empty = map[ids.Domain]bool{one: true}
	w.mark(one, 61*time.Minute)
	fresh := w.mark(one, 58*time.Minute)
	result, err := w.sweeper().Sweep(t.Context(), false)
	require.NoError(t, err)
	require.Zero(t, result.Late)
	require.Equal(t, []wakeup.Wakeup{fresh}, w.left())
	require.Len(t, w.calls[one], 1, "an empty domain is not repaired")
}

func TestSweepContinuesAfterStoreErrors(t *testing.T) {
	w := newFixture(t)
	objects := w.store
	kept := w.mark(one, 0)
	w.mark(two, 0)
	w.store = faultblob.New(objects, func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Delete && key == kept.Key() {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	w.listing = errors.New("bucket away")
	result, err := w.sweeper().Sweep(t.Context(), true)
	require.ErrorContains(t, err, "delete wakeup "+kept.Key())
	require.ErrorContains(t, err, "list domains to sweep: bucket away")
	require.Equal(t, 2, result.Domains)
	require.Equal(t, []wakeup.Wakeup{kept}, w.left())
}

// The number of hanging domains exceeds the number of concurrent sweeps. The hanging domains must not block the others.
func TestHangingDomainsDoNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.hanging = map[ids.Domain]bool{}
		for i := range 12 {
			d := ids.Domain{Tenant: "acme", Workspace: fmt.Sprintf("hangs-%d", i)}
			w.hanging[d] = true
			w.mark(d, time.Hour)
		}
		w.mark(one, 0)
		result, err := w.sweeper().Sweep(t.Context(), false)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, sweeper.Result{Domains: 13, Failed: 12, Late: time.Hour + 30*time.Second}, result)
		require.Len(t, w.calls[one], 2, "folded and repaired")
		require.Len(t, w.left(), 12)
	})
}

// Each sweep uses another order, so the next sweep reaches other domains.
func TestSweepReportsMissedAndReorders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.hanging = map[ids.Domain]bool{}
		for i := range 100 {
			d := ids.Domain{Tenant: "acme", Workspace: fmt.Sprintf("hangs-%02d", i)}
			w.domains, w.hanging[d] = append(w.domains, d), true
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s := w.sweeper()
		result, err := s.Sweep(ctx, true)
		require.Equal(t, sweeper.Result{Full: true, Domains: 100, Failed: 16, Missed: 84}, result)
		require.ErrorContains(t, err, "84 of 100 domains were not swept in time; later sweeps retry them: context deadline exceeded")
		first := slices.Collect(maps.Keys(w.calls))
		require.Len(t, first, 16)

		s.Clock = fixedClock(noon.Add(time.Minute))
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = s.Sweep(ctx, true)
		require.Error(t, err)
		require.Greater(t, len(w.calls), len(first), "other domains are swept, too")
	})
}

// Full sweeps reach a domain without a wakeup even if many due domains hang.
func TestFullSweepReachesDomainsThatAreNotDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.hanging, w.domains = map[ids.Domain]bool{}, []ids.Domain{one}
		for i := range 400 {
			d := ids.Domain{Tenant: "acme", Workspace: fmt.Sprintf("hangs-%03d", i)}
			w.hanging[d] = true
			w.mark(d, time.Hour)
		}
		s := w.sweeper()
		began := clock.System{}.Now()
		for n := 0; len(w.calls[one]) == 0; n++ {
			require.Less(t, n, 5, "each full sweep misses it with a chance of one in eight")
			s.Clock = fixedClock(noon.Add(time.Duration(n) * time.Minute))
			_, err := s.Sweep(t.Context(), true)
			require.ErrorContains(t, err, "were not swept")
		}
		require.Less(t, clock.System{}.Now().Sub(began), 2*time.Hour+30*time.Minute, "a full sweep ends within half an hour")
	})
}

// If no domain is due, the cost of a sweep does not depend on the number of domains.
func TestSweepOfIdleDomainsIsOneListing(t *testing.T) {
	w := newFixture(t)
	for range 50 {
		w.domains = append(w.domains, one)
	}
	w.mark(one, -time.Hour)
	counted := cloudblob.New(w.store, cloudblob.Config{})
	w.store = counted
	_, err := w.sweeper().Sweep(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, cloudblob.Usage{"wakeups": {ClassA: 1}}, counted.Usage())
	require.Empty(t, w.calls)
}

func TestSweepOverHTTPReturnsResult(t *testing.T) {
	w := newFixture(t)
	w.domains, w.folded = []ids.Domain{one, two}, map[ids.Domain]int{one: 2}
	w.mark(one, time.Hour)
	mux := http.NewServeMux()
	sweeper.Register(mux, w.sweeper())
	server := httptest.NewServer(mux)
	defer server.Close()
	post := func(query string, into any) int {
		res, err := http.Post(server.URL+"/v1/sweep"+query, "", nil) //nolint:gosec // test server
		require.NoError(t, err)
		defer res.Body.Close()
		require.NoError(t, json.NewDecoder(res.Body).Decode(into))
		return res.StatusCode
	}
	var result sweeper.Result
	require.Equal(t, http.StatusOK, post("", &result))
	require.Equal(t, sweeper.Result{Domains: 1, Folded: 2}, result)
	require.Equal(t, http.StatusOK, post("?full=true", &result))
	require.Equal(t, sweeper.Result{Full: true, Domains: 2, Folded: 2}, result)

	var problem contract.Problem
	require.Equal(t, http.StatusBadRequest, post("?full=perhaps", &problem))
	w.listing = errors.New("store away")
	require.Equal(t, http.StatusInternalServerError, post("?full=1", &problem))
	require.Equal(t, "list domains to sweep: store away", problem.Detail)
}
