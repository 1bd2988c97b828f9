package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// manualClock is a clock that tests advance. It counts its sleepers.
type manualClock struct {
	mu      sync.Mutex
	now     time.Time
	waiting map[chan struct{}]time.Time
	woken   int
}

func (h *manualClock) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *manualClock) Sleep(ctx context.Context, d time.Duration) error {
	done := make(chan struct{})
	h.mu.Lock()
	h.waiting[done] = h.now.Add(d)
	h.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiting, done)
		return ctx.Err()
	}
}

// pass advances the clock, and wakes the sleepers that are due.
func (h *manualClock) pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
	for done, at := range h.waiting {
		if !at.After(h.now) {
			delete(h.waiting, done)
			close(done)
			h.woken++
		}
	}
}

// counts returns the number of sleepers, and of wakeups so far.
func (h *manualClock) counts() (waiting, woken int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting), h.woken
}

// An idle stack makes no request to the store and wakes no goroutine. In an earlier version, a collection ran every
// minute.
func TestIdleStackDoesNothingForAnHour(t *testing.T) {
	const runs = 10_000
	cfg, _ := config(t)
	dir := filepath.Join(cfg.Dir, "state")
	require.NoError(t, cfg.seed(t.Context(), dir, runs, 1))
	h := &manualClock{now: clock.System{}.Now(), waiting: map[chan struct{}]time.Time{}}
	var store *cloudblob.Store
	stack, err := embedded.Start(t.Context(), embedded.Options{
		Dir: dir, Domain: Domain(), Concurrency: 1, Clock: h, Logger: cfg.Logger, Program: "none",
		Wrap: func(inner blob.Store) blob.Store {
			store = cloudblob.New(inner, cloudblob.Config{})
			return store
		},
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, stack.Close()) }()
	snap, err := stack.Current(t.Context())
	require.NoError(t, err)
	require.Zero(t, snap.State.LiveRuns())

	// Wait until the work that the start has triggered is done.
	for range 100 {
		if quiet(t, h, store) {
			break
		}
		h.pass(time.Minute)
	}
	waiting, woken := h.counts()
	require.Zero(t, waiting, "a goroutine sleeps")
	before := operations(store.Usage())
	require.Positive(t, before)
	h.pass(time.Hour)
	require.True(t, quiet(t, h, store))
	_, wakes := h.counts()
	require.Equal(t, woken, wakes)
	require.Equal(t, before, operations(store.Usage()))
}

// Schedules that are not due make no request to the store.
func TestI32IdleSchedulesDoNothingForAnHour(t *testing.T) {
	h := &manualClock{now: clock.System{}.Now().Truncate(time.Hour), waiting: map[chan struct{}]time.Time{}}
	stack := startScheduled(t, h, Domain())
	require.NoError(t, stack.deploy(t.Context(), stormAssets, daily(1000, h.Now().UTC().Add(5*time.Hour))))
	requireIdle(t, h, stack)
}

// Paused schedules make no request to the store, although their expressions match every minute. The test has ten
// domains with 10,000 schedules each, and advances their clock by an hour.
func TestI32PausedSchedulesDoNothingForAnHour(t *testing.T) {
	const domains = 10
	h := &manualClock{now: clock.System{}.Now().Truncate(time.Hour), waiting: map[chan struct{}]time.Time{}}
	schedules := make([]event.Schedule, stormy)
	for i := range schedules {
		schedules[i] = schedule(i, i%stormAssets)
		schedules[i].Cron, schedules[i].Paused = "* * * * *", true
	}
	var stacks []*scheduledStack
	for i := range domains {
		stack := startScheduled(t, h, ids.Domain{Tenant: "bench", Workspace: fmt.Sprintf("w%d", i)})
		require.NoError(t, stack.deploy(t.Context(), stormAssets, schedules))
		stacks = append(stacks, stack)
	}
	requireIdle(t, h, stacks...)
	for _, stack := range stacks {
		snap, err := stack.Current(t.Context())
		require.NoError(t, err)
		require.Zero(t, snap.State.Requests.Len())
	}
}

func startScheduled(t *testing.T, h *manualClock, domain ids.Domain) *scheduledStack {
	t.Helper()
	cfg, _ := config(t)
	stack := &scheduledStack{cfg: cfg, due: map[string]event.Time{}, starts: map[string]event.Time{}}
	var err error
	stack.Stack, err = embedded.Start(t.Context(), embedded.Options{
		Dir: filepath.Join(cfg.Dir, "state"), Root: cfg.Dir, Domain: domain, Concurrency: 1, Clock: h, Logger: cfg.Logger, Actor: "bench", Program: "none",
		Wrap: func(inner blob.Store) blob.Store {
			stack.meter = cloudblob.New(inner, cloudblob.Config{})
			return stack.meter
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, stack.Close()) })
	return stack
}

// requireIdle waits until the work that the deployments caused has ended. It fails the test if the stacks make a
// request to their stores in the following hour.
func requireIdle(t *testing.T, h *manualClock, stacks ...*scheduledStack) {
	t.Helper()
	settle := func() (used []int64) {
		for _, stack := range stacks {
			quiet(t, h, stack.meter)
			used = append(used, operations(stack.meter.Usage()))
		}
		return used
	}
	for range 2 {
		h.pass(time.Hour)
		settle()
	}
	before := settle()
	require.NotContains(t, before, int64(0))
	h.pass(time.Hour)
	require.Equal(t, before, settle())
}

// quiet waits until the store gets no more operations, and no goroutine begins or ends a sleep on the clock. Then it
// reports whether no goroutine is sleeping on the clock.
func quiet(t *testing.T, h *manualClock, store *cloudblob.Store) bool {
	t.Helper()
	const still = 5
	last, same := int64(-1), 0
	require.Eventually(t, func() bool {
		waiting, woken := h.counts()
		now := operations(store.Usage())<<20 + int64(woken)<<10 + int64(waiting)
		if same++; now != last {
			last, same = now, 0
		}
		return same >= still
	}, time.Minute, 10*time.Millisecond)
	waiting, _ := h.counts()
	return waiting == 0
}
