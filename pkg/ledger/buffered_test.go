package ledger_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

const linger = 250 * time.Millisecond

// lingering is a fixture whose appender lets facts linger.
func lingering(t *testing.T) *fixture {
	t.Helper()
	w := newFixture(nil)
	w.Appender = ledger.NewAppender(ledger.Config{
		Domain: domain, Store: w.store, IDs: w.ids, Clock: clock.System{}, Linger: linger,
		OnStored: func(e ledger.Entry) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.durable = append(w.durable, e)
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return w
}

func (w *fixture) soon(t *testing.T, group ...*event.Envelope) {
	t.Helper()
	began := now()
	require.NoError(t, w.AppendBuffered(t.Context(), group))
	require.Equal(t, began, now(), "AppendBuffered does not wait")
}

// pass advances the time of the bubble.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	require.NoError(t, clock.System{}.Sleep(t.Context(), d))
}

func TestAppendBufferedPrecedesNextEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		w.soon(t, heartbeat(1))
		w.soon(t, heartbeat(2), heartbeat(3))
		require.Empty(t, w.entries(t))
		appended, err := w.Append(t.Context(), []*event.Envelope{cancel("a")})
		require.NoError(t, err)
		require.Equal(t, []string{appended.Entry}, w.entries(t))
		groups := w.groups(t, appended.Entry)
		require.Len(t, groups, 3)
		require.Equal(t, []int{1, 2, 1}, []int{len(groups[0].Events), len(groups[1].Events), len(groups[2].Events)})
		require.Equal(t, cancel("a").Payload, groups[2].Events[0].Payload)
		require.True(t, w.durable[0].Urgent)
		pass(t, 2*linger)
		require.Len(t, w.entries(t), 1)
	})
}

func TestAppendBufferedBecomesEntryAfterLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		for n := range 3 {
			w.soon(t, heartbeat(n))
		}
		synctest.Wait()
		require.Empty(t, w.entries(t))
		pass(t, linger)
		synctest.Wait()
		require.Len(t, w.entries(t), 1)
		require.Len(t, w.groups(t, w.entries(t)[0]), 3)
		require.False(t, w.durable[0].Urgent)
	})
}

func TestFlushWritesBufferedFactsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		require.NoError(t, w.Flush(t.Context()))
		w.soon(t, heartbeat(1))
		w.soon(t, heartbeat(2))
		require.NoError(t, w.Flush(t.Context()))
		require.Len(t, w.entries(t), 1)
		pass(t, time.Minute)
		require.Len(t, w.entries(t), 1, "nothing is written twice")
	})
}

func TestAppendBufferedKeepsFactsOutOfDecisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		w.soon(t, heartbeat(1))
		fired := &event.Envelope{Payload: &event.TimerFired{
			TimerID: "timer:liveness:1", FiredAt: event.At(now()), Observed: event.Observed{CaughtUpAt: event.At(now())},
		}}
		require.NoError(t, w.AppendBuffered(t.Context(), []*event.Envelope{fired}), "decisions do not linger")
		require.Len(t, w.entries(t), 1)
		require.Len(t, w.groups(t, w.entries(t)[0]), 1)
		pass(t, linger)
		synctest.Wait()
		require.Len(t, w.entries(t), 2)
	})
}

func TestAppendBufferedWritesWhenBufferIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		for n := range 1200 {
			w.soon(t, heartbeat(n))
		}
		require.Len(t, w.entries(t), 2)
		for _, entry := range w.entries(t) {
			require.Len(t, w.groups(t, entry), 500)
		}
	})
}

// All callers leave while an entry is being written. The test fails if the buffered facts in this entry are dropped
// instead of buffered again.
func TestAppendBufferedRebuffersAfterAbandonedEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		var down atomic.Bool
		down.Store(true)
		w.store.decide = func(context.Context, string, int) (bool, error) {
			if down.Load() {
				return false, errLost
			}
			return true, nil
		}
		w.soon(t, heartbeat(1), heartbeat(2))
		impatient, cancelled := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancelled()
		_, err := w.Append(impatient, []*event.Envelope{cancel("a")})
		require.ErrorIs(t, err, ledger.ErrUnknown)
		w.soon(t, heartbeat(3))
		down.Store(false)
		pass(t, 10*time.Second)
		synctest.Wait()
		require.Len(t, w.entries(t), 1)
		groups := w.groups(t, w.entries(t)[0])
		require.Len(t, groups, 2)
		require.Equal(t, []int{2, 1}, []int{len(groups[0].Events), len(groups[1].Events)})
	})
}

// The test fails if Flush drops the facts that it could not write.
func TestFlushKeepsFactsItCannotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		down := true
		w.store.decide = func(context.Context, string, int) (bool, error) {
			if down {
				return false, errLost
			}
			return true, nil
		}
		w.soon(t, heartbeat(1))
		impatient, cancelled := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancelled()
		require.Error(t, w.Flush(impatient))
		require.Error(t, w.Flush(impatient))
		down = false
		require.NoError(t, w.Flush(t.Context()))
		require.Len(t, w.entries(t), 1)
	})
}

func TestAppendBufferedRejectsInvalidFact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lingering(t)
		require.Error(t, w.AppendBuffered(t.Context(), []*event.Envelope{{Payload: &event.TaskHeartbeat{}}}))
		pass(t, 2*linger)
		synctest.Wait()
		require.Empty(t, w.entries(t))
	})
}
