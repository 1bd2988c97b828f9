package service

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// cached is a registry of domains. A test sets the size of each domain, in bytes above [domainBytes].
type cached struct {
	*registry[string]
	t       *testing.T
	metrics recorded
	sizes   map[string]*atomic.Int64
	opens   map[string]int
}

func newCached(t *testing.T, limit int64) *cached {
	t.Helper()
	c := &cached{t: t, metrics: newMetrics(), sizes: map[string]*atomic.Int64{}, opens: map[string]int{}}
	for _, name := range []string{"a", "b", "c", "d"} {
		c.sizes[name] = &atomic.Int64{}
		c.sizes[name].Store(100)
	}
	c.registry = running(t, c.metrics, func(_ context.Context, d ids.Domain) (*served[string], error) {
		c.opens[d.Tenant]++
		s := serve(d.Tenant)
		s.bytes = c.sizes[d.Tenant].Load
		return s, nil
	})
	c.limitBytes = limit
	return c
}

// ask opens a domain for a request. The caller calls the function end when the request ends.
func (c *cached) ask(name string) (end func()) {
	c.t.Helper()
	require.NoError(c.t, (clock.System{}).Sleep(c.t.Context(), time.Second)) // each request must have a different time
	ctx, cancel := context.WithCancel(c.t.Context())
	_, ok, err := c.get(ctx, ids.Domain{Tenant: name, Workspace: "main"})
	require.NoError(c.t, err)
	require.True(c.t, ok)
	synctest.Wait()
	return func() {
		cancel()
		synctest.Wait()
	}
}

func (c *cached) open() (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range []string{"a", "b", "c", "d"} {
		if c.domains[ids.Domain{Tenant: name, Workspace: "main"}] != nil {
			names = append(names, name)
		}
	}
	return names
}

func (c *cached) size() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.bytes-int64(len(c.domains))*domainBytes, c.metrics.values()["servo_domains_bytes"] == float64(c.bytes))
}

func TestDomainsAreEvictedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCached(t, 250+3*domainBytes)
		c.ask("a")()
		c.ask("b")()
		require.Equal(t, []string{"a", "b"}, c.open())
		require.Equal(t, "200 true", c.size())
		c.ask("a")()
		c.limitBytes = 250 + 2*domainBytes
		c.ask("c")()
		require.Equal(t, []string{"a", "c"}, c.open(), "b is the least recently used")
		require.Equal(t, "200 true", c.size(), "the metric equals the sum")
		c.sizes["a"].Store(1_000)
		c.ask("a")()
		require.Equal(t, []string{"a"}, c.open(), "a has grown, and stays as the most recently used")
		require.Equal(t, "1000 true", c.size())
		c.ask("b")()
		require.Equal(t, []string{"b"}, c.open())
		require.Equal(t, map[string]int{"a": 1, "b": 2, "c": 1}, c.opens)
		require.Equal(t, "100 true", c.size())
	})
}

func TestDomainsInUseAreNeverEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCached(t, 150) // a single domain needs more than this limit
		endA, endB, endC := c.ask("a"), c.ask("b"), c.ask("c")
		require.Equal(t, []string{"a", "b", "c"}, c.open(), "all in use")
		again := c.ask("b")
		endB()
		require.Equal(t, []string{"a", "b", "c"}, c.open(), "another request uses b")
		endA()
		require.Equal(t, []string{"b", "c"}, c.open())
		endC()
		require.Equal(t, []string{"b"}, c.open())
		again()
		require.Equal(t, []string{"b"}, c.open(), "the most recently used stays")
		require.Equal(t, "100 true", c.size())
	})
}
