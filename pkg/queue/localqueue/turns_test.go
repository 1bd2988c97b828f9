package localqueue_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
)

// inGroup returns the n-th task of a group, with a priority.
func inGroup(group string, n int, priority int32) queue.Task {
	t := task(fmt.Sprintf("%s%d", group, n))
	t.Turn = queue.Turn{Priority: priority, Group: group}
	return t
}

// many creates tasks 1 to n of a group.
func many(t *testing.T, q queue.Queue, group string, n int, priority int32) {
	t.Helper()
	for i := range n {
		create(t, q, inGroup(group, i+1, priority))
	}
}

// slow runs a queue in which each delivery takes a second.
func slow(t *testing.T, slots int) (*localqueue.Queue, *log) {
	t.Helper()
	l := &log{start: now()}
	q := run(t, localqueue.Options{
		Concurrency: func(string) int { return slots },
		Client: client(func(_ http.ResponseWriter, r *http.Request) {
			l.note(r)
			pass1s(r.Context())
		}),
	})
	return q, l
}

func TestGreaterPriorityOvertakesWaitingTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, l := slow(t, 1)
		many(t, q, "backfill", 4, -100)
		pass(t, 500*time.Millisecond)
		many(t, q, "live", 2, 0)
		pass(t, time.Minute)
		require.Equal(t, []string{
			"backfill1 0s", "live1 1s", "live2 2s", "backfill2 3s", "backfill3 4s", "backfill4 5s",
		}, l.all(), "live work starts when the first task ends")
	})
}

func TestGroupsOfEqualPriorityTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, l := slow(t, 1)
		many(t, q, "big", 5, 0)
		pass(t, 1500*time.Millisecond)
		many(t, q, "b", 2, 0)
		many(t, q, "a", 1, 0)
		pass(t, time.Minute)
		require.Equal(t, []string{"big1 0s", "big2 1s", "b1 2s", "a1 3s", "big3 4s", "b2 5s", "big4 6s", "big5 7s"}, l.all())
	})
}

func TestGroupIsServedAfterGroupThatComesDuringItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, l := slow(t, 1)
		many(t, q, "big", 3, 0)
		pass(t, 500*time.Millisecond)
		many(t, q, "live", 1, 0)
		pass(t, time.Minute)
		require.Equal(t, []string{"big1 0s", "live1 1s", "big2 2s", "big3 3s"}, l.all())
	})
}

func TestGroupsShareSlotsEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, l := slow(t, 4)
		many(t, q, "big", 40, 0)
		pass(t, 500*time.Millisecond)
		many(t, q, "small", 8, 0)
		pass(t, 4*time.Second)
		started := l.all()
		require.Len(t, started, 20)
		for second := 1; second <= 4; second++ {
			small := slices.DeleteFunc(slices.Clone(started[4*second:4*second+4]), func(line string) bool { return !strings.HasPrefix(line, "small") })
			require.Len(t, small, 2, "two of the four slots at %d s: %v", second, started)
		}
	})
}

func TestNewGroupsDoNotStarveWaitingGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, l := slow(t, 1)
		many(t, q, "big", 3, 0)
		pass(t, 500*time.Millisecond)
		for i := range 10 { // two new groups arrive each second, but the slot delivers one task
			many(t, q, fmt.Sprintf("n%d-", 2*i), 1, 0)
			many(t, q, fmt.Sprintf("n%d-", 2*i+1), 1, 0)
			pass(t, time.Second)
		}
		pass(t, time.Minute)
		at := slices.Index(l.all(), "big2 3s")
		require.Equal(t, 3, at, "after the two groups that came during its first turn: %v", l.all())
	})
}

func TestOldestTaskOfGroupGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{start: now()}
		q := localqueue.New(localqueue.Options{Concurrency: oneSlot, Client: client(func(_ http.ResponseWriter, r *http.Request) { l.note(r) })})
		began := now()
		aged := func(n int, age time.Duration, priority int32) queue.Task {
			item := inGroup("run", n, priority)
			item.Turn.Since = began.Add(-age)
			return item
		}
		// After a restart, the tasks of a queue are created again in any order.
		create(t, q, aged(3, time.Minute, 0), aged(2, time.Hour, 0), inGroup("run", 5, 0), aged(4, time.Second, 0), aged(1, 0, 7))
		start(t, q)
		pass(t, time.Minute)
		require.Equal(t, []string{"run1 0s", "run2 0s", "run3 0s", "run4 0s", "run5 0s"}, l.all())
	})
}

func TestFailedTaskIsNotSentBehindItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{start: now()}
		q := run(t, localqueue.Options{
			Logger: slog.New(slog.DiscardHandler), Concurrency: oneSlot, MinBackoff: 1500 * time.Millisecond,
			Client: client(func(w http.ResponseWriter, r *http.Request) {
				if l.note(r) == 1 {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				_, _ = io.WriteString(w, "{}")
				pass1s(r.Context())
			}),
		})
		many(t, q, "run", 4, 0)
		pass(t, time.Minute)
		require.Equal(t, []string{"run1 0s", "run2 0s", "run3 1s", "run1 2s", "run4 3s"}, l.all())
	})
}

func TestDeletedTaskLeavesItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, l := slow(t, 1)
		many(t, q, "backfill", 3, -100)
		many(t, q, "live", 3, 0)
		for _, name := range []string{"live1", "live2", "live3", "backfill2"} {
			require.NoError(t, q.Delete(t.Context(), "default", name))
		}
		pass(t, time.Minute)
		require.Equal(t, []string{"backfill1 0s", "backfill3 1s"}, l.all())
	})
}
