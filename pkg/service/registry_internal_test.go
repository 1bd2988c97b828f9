package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/metrics"
)

// running returns a registry that runs until the test ends.
func running[T any](t *testing.T, m metrics.Recorder, open func(context.Context, ids.Domain) (*served[T], error)) *registry[T] {
	t.Helper()
	r := newRegistry(m, clock.System{}, open)
	var ended sync.WaitGroup
	ended.Go(func() { _ = r.run(t.Context()) })
	t.Cleanup(ended.Wait)
	return r
}

func serve[T any](value T) *served[T] {
	return &served[T]{value: value, run: func(ctx context.Context) { <-ctx.Done() }}
}

func TestRegistryOpensOnceAndRetriesFailures(t *testing.T) {
	opens := 0
	fail := errors.New("store away")
	exists := true
	m := newMetrics()
	r := running(t, m, func(_ context.Context, d ids.Domain) (*served[string], error) {
		opens++
		if fail != nil || !exists {
			return nil, fail
		}
		return serve(d.String()), nil
	})
	_, _, err := r.get(t.Context(), acme)
	require.ErrorIs(t, err, fail)
	fail = nil
	exists = false
	_, ok, err := r.get(t.Context(), acme)
	require.NoError(t, err)
	require.False(t, ok)
	require.Empty(t, r.domains, "unknown domains are not kept")
	exists = true
	for range 3 {
		value, ok, err := r.get(t.Context(), acme)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "acme/prod", value)
	}
	require.Equal(t, 3, opens)
	require.Equal(t, 1.0, m.values()["servo_domains_open"])
}

func TestRegistryOpensDomainsConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		opens := 0
		r := running(t, newMetrics(), func(_ context.Context, d ids.Domain) (*served[int], error) {
			if d == acme {
				opens++
				<-gate
			}
			return serve(opens), nil
		})
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if _, _, err := r.get(t.Context(), acme); err != nil {
					t.Errorf("get: %v", err)
				}
			})
		}
		synctest.Wait()
		_, ok, err := r.get(t.Context(), globex)
		require.NoError(t, err)
		require.True(t, ok)
		close(gate)
		wg.Wait()
		require.Equal(t, 1, opens)
	})
}

// This test fails if a domain is opened under the context of a request. In that case, each request starts the opening
// again, and no request lasts long enough to finish it.
func TestRegistryOpeningOutlivesItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, newMetrics(), func(ctx context.Context, d ids.Domain) (*served[string], error) {
			if err := (clock.System{}).Sleep(ctx, time.Minute); err != nil {
				return nil, err
			}
			return serve(d.String()), nil
		})
		for range 2 {
			request, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			value, ok, err := r.get(request, acme)
			cancel()
			if err == nil {
				require.True(t, ok)
				require.Equal(t, acme.String(), value)
				return
			}
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		t.Fatal("the second request did not find the domain open")
	})
}

func TestRegistryOpeningTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := true
		r := running(t, newMetrics(), func(ctx context.Context, d ids.Domain) (*served[string], error) {
			if hang {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return serve(d.String()), nil
		})
		_, _, err := r.get(t.Context(), acme)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		hang = false
		_, ok, err := r.get(t.Context(), acme)
		require.NoError(t, err)
		require.True(t, ok)
	})
}

// If a request ends before the opening of its domain begins, the registry keeps no trace of the domain.
func TestRegistryForgetsCancelledRequest(t *testing.T) {
	r := newRegistry(newMetrics(), clock.System{}, func(context.Context, ids.Domain) (*served[string], error) { return nil, errors.New("not reached") })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := r.get(ended, acme)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, r.domains)
}

// A new domain replaces the least recently used idle domain. A domain must have closed before it is opened again.
func TestRegistryReplacesIdleDomain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics()
		runs := map[ids.Domain]int{}
		var mu sync.Mutex
		count := func(d ids.Domain, n int) {
			mu.Lock()
			defer mu.Unlock()
			runs[d] += n
			if runs[d] > 1 {
				t.Errorf("%s runs twice at once", d)
			}
		}
		r := running(t, m, func(_ context.Context, d ids.Domain) (*served[string], error) {
			return &served[string]{value: d.String(), run: func(ctx context.Context) {
				count(d, 1)
				<-ctx.Done()
				if t.Context().Err() == nil {
					_ = (clock.System{}).Sleep(t.Context(), time.Second) // the domain takes a second to close
				}
				count(d, -1)
			}}, nil
		})
		r.limit = 2
		ask := func(d ids.Domain) (end func(), err error) {
			request, cancel := context.WithCancel(t.Context())
			_, ok, err := r.get(request, d)
			require.Equal(t, err == nil, ok)
			return func() { cancel(); synctest.Wait() }, err
		}
		another := ids.Domain{Tenant: "initech", Workspace: "prod"}
		acmes, err := ask(acme)
		require.NoError(t, err)
		globexs, err := ask(globex)
		require.NoError(t, err)
		_, err = ask(another)
		require.ErrorContains(t, err, "all 2 open domains are in use")
		globexs()
		anothers, err := ask(another)
		require.NoError(t, err, "replaces globex, which is idle")
		mu.Lock()
		require.Equal(t, map[ids.Domain]int{acme: 1, globex: 0, another: 1}, runs)
		mu.Unlock()
		_, err = ask(globex)
		require.ErrorContains(t, err, "are in use")
		require.Equal(t, 2.0, m.values()["servo_domains_open"])

		acmes()
		anothers()
		began := clock.System{}.Now()
		_, err = ask(globex)
		require.NoError(t, err, "replaces acme, the least recently used")
		require.Equal(t, time.Second, clock.System{}.Now().Sub(began), "after acme has closed")
		_, err = ask(another)
		require.NoError(t, err, "still open")
		_, err = ask(acme)
		require.ErrorContains(t, err, "are in use")
	})
}

// A full sweep opens more domains than the limit, one after another.
func TestRegistryServesMoreDomainsThanItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := running(t, newMetrics(), func(_ context.Context, d ids.Domain) (*served[string], error) { return serve(d.String()), nil })
		r.limit = 10
		for i := range 100 {
			request, end := context.WithCancel(t.Context())
			d := ids.Domain{Tenant: "t", Workspace: fmt.Sprintf("w%d", i)}
			value, ok, err := r.get(request, d)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, d.String(), value)
			end()
			synctest.Wait()
		}
	})
}
