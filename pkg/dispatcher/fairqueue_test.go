package dispatcher_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/event"
)

// takers takes turns for tenants and records the order in which they were granted.
type takers struct {
	turns *dispatcher.FairQueue
	order []string
	mu    sync.Mutex
	wg    sync.WaitGroup
}

func (q *takers) take(ctx context.Context, tenant string, n int, lasting time.Duration) {
	for range n {
		q.wg.Go(func() {
			release, err := q.turns.Acquire(ctx, tenant)
			if err != nil {
				return
			}
			q.mu.Lock()
			q.order = append(q.order, tenant)
			q.mu.Unlock()
			_ = clock.System{}.Sleep(ctx, lasting)
			release()
		})
	}
	synctest.Wait()
}

// This test fails if all tenants share one queue.
func TestLargeTenantDelaysSmallOneByOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &takers{turns: dispatcher.NewFairQueue(clock.System{}, 1, 0, map[string]int{"c": 3})}
		q.take(t.Context(), "a", 1000, time.Millisecond)
		require.Equal(t, 999, q.turns.Waiting())
		q.take(t.Context(), "b", 3, time.Millisecond)
		q.take(t.Context(), "c", 7, time.Millisecond)
		q.wg.Wait()
		require.Equal(t, "a abccc abccc abc aaaa", strings.Join(rounds(q.order[:18]), " "))
		require.Len(t, q.order, 1010)
		require.Zero(t, q.turns.Waiting())
	})
}

// rounds splits the order of the turns into the first four rounds and the rest.
func rounds(order []string) []string {
	text := strings.Join(order, "")
	return []string{text[:1], text[1:6], text[6:11], text[11:14], text[14:]}
}

// This test fails if a cancelled waiter keeps its turn, or if it releases a slot that it never had.
func TestCancelledWaiterReleasesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &takers{turns: dispatcher.NewFairQueue(clock.System{}, 2, 0, nil)}
		var waiting atomic.Int64
		q.turns.OnWaiting = func(more int) { waiting.Add(int64(more)) }
		q.take(t.Context(), "a", 2, time.Minute)
		leaving, leave := context.WithCancel(t.Context())
		q.take(leaving, "b", 5, time.Minute)
		q.take(t.Context(), "c", 3, time.Minute)
		require.Equal(t, int64(8), waiting.Load())
		require.Equal(t, 8, q.turns.Waiting())
		leave()
		synctest.Wait()
		require.Equal(t, int64(3), waiting.Load())
		require.Equal(t, 3, q.turns.Waiting())
		began := clock.System{}.Now()
		q.wg.Wait()
		require.Equal(t, "aaccc", strings.Join(q.order, ""))
		require.Equal(t, 3*time.Minute, clock.System{}.Now().Sub(began), "two at once")
	})
}

func TestTurnsReportHowLongTasksWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &takers{turns: dispatcher.NewFairQueue(clock.System{}, 1, 0, nil)}
		var waited []time.Duration
		q.turns.OnTurn = func(d time.Duration) { waited = append(waited, d) }
		q.take(t.Context(), "a", 3, time.Second)
		leaving, leave := context.WithCancel(t.Context())
		q.take(leaving, "b", 1, time.Second)
		leave()
		q.wg.Wait()
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second}, waited, "a cancelled task has no turn")
	})
}

// A caller that has a slot and waits only for the rate limit is cancelled. This test fails if the caller keeps the
// slot.
func TestTurnsKeepTheirRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &takers{turns: dispatcher.NewFairQueue(clock.System{}, 64, 500, nil)}
		began := clock.System{}.Now()
		q.take(t.Context(), "a", 50, 0)
		require.Zero(t, clock.System{}.Now().Sub(began), "a burst of a tenth of a second")
		q.take(t.Context(), "a", 1000, 0)
		leaving, leave := context.WithCancel(t.Context())
		q.take(leaving, "b", 1000, 0)
		leave()
		q.wg.Wait()
		require.InDelta(t, 2*time.Second, clock.System{}.Now().Sub(began), float64(200*time.Millisecond))
		require.Zero(t, q.turns.Waiting())
		require.GreaterOrEqual(t, len(q.order), 1050)
		q.take(t.Context(), "c", 64, time.Minute)
		require.Zero(t, q.turns.Waiting(), "no slot is lost")
		q.wg.Wait()
	})
}

func TestTurnsIgnoreClockSetBack(t *testing.T) {
	c := &tick{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	turns := dispatcher.NewFairQueue(c, 1, 500, nil)
	take := func() {
		release, err := turns.Acquire(t.Context(), "a")
		require.NoError(t, err)
		release()
	}
	take()
	c.pass(-time.Hour)
	before := c.Now()
	take()
	require.Less(t, c.Now().Sub(before), time.Second)
}

// This test fails if in-flight actions expire while they wait in the fair queue.
func TestWaitingDispatchIsNotQueuedAgain(t *testing.T) {
	w := newFixture(t)
	turns := dispatcher.NewFairQueue(w.clock, 1, 0, nil)
	queued := make(chan int, 10)
	turns.OnWaiting = func(more int) { queued <- more }
	w.d.Change(func(c *dispatcher.Config) { c.FairQueue = turns })
	release, err := turns.Acquire(t.Context(), "another")
	require.NoError(t, err)
	<-queued
	<-queued

	w.trigger(foldtest.Task("a"))
	handedOver := make(chan error)
	go func() { handedOver <- w.d.HandOver(t.Context(), w.revision(), false) }()
	require.Equal(t, 1, <-queued)
	for _, sweep := range []bool{false, true} {
		w.pass(2 * control.PendingAge)
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), sweep))
	}
	require.Equal(t, 1, turns.Waiting())
	require.Empty(t, w.dispatches())
	release()
	require.NoError(t, <-handedOver)
	require.Len(t, w.dispatches(), 1)
	require.Len(t, appended[*event.DispatchEnqueued](w), 1)
}
