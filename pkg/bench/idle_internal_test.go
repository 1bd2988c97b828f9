package bench

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/cloudblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
)

// hand is a clock that is moved by hand, and knows who waits for it.
type hand struct {
	mu      sync.Mutex
	now     time.Time
	waiting map[chan struct{}]time.Time
	woken   int
}

func (h *hand) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hand) Sleep(ctx context.Context, d time.Duration) error {
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

// pass moves the time on, and wakes whose time has come.
func (h *hand) pass(d time.Duration) {
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

// seen is how many wait, and how many have been woken.
func (h *hand) seen() (waiting, woken int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting), h.woken
}

// An hour with nothing to do: no request to the store, and nobody who wakes. Seen to fail
// with a collection that comes by each minute.
func TestAnIdleStackDoesNothingForAnHour(t *testing.T) {
	const runs = 10_000
	cfg, _ := config(t)
	dir := filepath.Join(cfg.Dir, "state")
	require.NoError(t, cfg.seed(t.Context(), dir, runs, 1))
	h := &hand{now: clock.System{}.Now(), waiting: map[chan struct{}]time.Time{}}
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
	snap, err := stack.Snapshots.Current(t.Context())
	require.NoError(t, err)
	require.Zero(t, snap.State.LiveRuns())

	// What its start has begun comes to its end.
	for range 100 {
		if calm(t, h, store) {
			break
		}
		h.pass(time.Minute)
	}
	waiting, woken := h.seen()
	require.Zero(t, waiting, "somebody waits for a time to come")
	before := operations(store.Usage())
	require.Positive(t, before)
	h.pass(time.Hour)
	require.True(t, calm(t, h, store))
	_, wakes := h.seen()
	require.Equal(t, woken, wakes)
	require.Equal(t, before, operations(store.Usage()))
}

// calm waits until nothing goes on, and reports whether nobody waits.
func calm(t *testing.T, h *hand, store *cloudblob.Store) bool {
	t.Helper()
	const still = 5
	last, same := int64(-1), 0
	require.Eventually(t, func() bool {
		waiting, woken := h.seen()
		now := operations(store.Usage())<<20 + int64(woken)<<10 + int64(waiting)
		if same++; now != last {
			last, same = now, 0
		}
		return same >= still
	}, time.Minute, 10*time.Millisecond)
	waiting, _ := h.seen()
	return waiting == 0
}
