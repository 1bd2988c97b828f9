package localqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/servo-orchestration/servo/internal/queuetest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now returns the virtual time inside a bubble of synctest.
func now() time.Time { return clock.System{}.Now() }

// run starts a queue that runs until the test ends.
func run(t *testing.T, opts localqueue.Options) *localqueue.Queue {
	t.Helper()
	q := localqueue.New(opts)
	start(t, q)
	return q
}

func start(t *testing.T, q *localqueue.Queue) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- q.Run(t.Context()) }()
	t.Cleanup(func() { require.NoError(t, <-ended) })
}

func TestContractOverHTTP(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Open: func(t *testing.T, target http.Handler) (queue.Queue, string) {
		server := httptest.NewServer(target)
		t.Cleanup(server.Close)
		return run(t, localqueue.Options{MinBackoff: 5 * time.Millisecond}), server.URL
	}})
}

func TestContractInVirtualTime(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Virtual: true, Open: func(t *testing.T, target http.Handler) (queue.Queue, string) {
		return run(t, localqueue.Options{MinBackoff: 5 * time.Millisecond, Client: client(target.ServeHTTP)}), "http://target"
	}})
}

// client returns a client without a network: it calls the handler directly. A request ends when its context ends.
func client(handler http.HandlerFunc) *http.Client { return &http.Client{Transport: network(handler)} }

type network http.HandlerFunc

// RoundTrip implements [http.RoundTripper].
func (n network) RoundTrip(r *http.Request) (*http.Response, error) {
	answered := make(chan *http.Response, 1)
	go func() {
		w := httptest.NewRecorder()
		n(w, r)
		answered <- w.Result()
	}()
	select {
	case resp := <-answered:
		return resp, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// log contains, for each delivery, the name of the task, the time since start, and the counts of attempts in the
// headers.
type log struct {
	start  time.Time
	mu     sync.Mutex
	lines  []string
	counts []string
}

// note adds a delivery and returns its number, from 1.
func (l *log) note(r *http.Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts = append(l.counts, r.Header.Get(queue.HeaderRetryCount)+" "+r.Header.Get(queue.HeaderExecutionCount))
	l.lines = append(l.lines, fmt.Sprintf("%s %v", r.Header.Get(queue.HeaderTaskName), now().Sub(l.start)))
	return len(l.lines)
}

func (l *log) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines
}

func task(name string) queue.Task {
	return queue.Task{Queue: "default", Name: name, URL: "http://target/execute"}
}

func in(t queue.Task, d time.Duration) queue.Task {
	t.ScheduleTime = now().Add(d)
	return t
}

func create(t *testing.T, q queue.Queue, tasks ...queue.Task) {
	t.Helper()
	for _, item := range tasks {
		require.NoError(t, q.Create(t.Context(), item))
	}
}

// pass advances virtual time.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
	synctest.Wait()
}

func oneSlot(string) int { return 1 }

func TestDeliveriesAreOrderedByTimeThenArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{start: now()}
		q := localqueue.New(localqueue.Options{Concurrency: oneSlot, Client: client(func(_ http.ResponseWriter, r *http.Request) { l.note(r) })})
		began := now()
		at := func(name string, d time.Duration) queue.Task {
			item := task(name)
			item.ScheduleTime = began.Add(d)
			return item
		}
		create(t, q, at("c1", 3*time.Second), at("b1", time.Second), at("c2", 3*time.Second), task("now1"),
			at("b2", time.Second), task("now2"), at("past", -time.Second), at("far", 29*24*time.Hour))
		want := []string{"past 0s", "now1 0s", "now2 0s", "b1 1s", "b2 1s", "c1 3s", "c2 3s"}
		for i := range 20 {
			create(t, q, at(fmt.Sprintf("d%d", i), time.Minute))
			want = append(want, fmt.Sprintf("d%d 1m0s", i))
		}
		start(t, q)
		pass(t, 30*24*time.Hour)
		require.Equal(t, append(want, "far 696h0m0s"), l.all(), "each exactly on time: nothing polls")
	})
}

func TestFreeSlotIsFilledImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{start: now()}
		var mu sync.Mutex
		busy, most := map[string]int{}, map[string]int{}
		count := func(name string, by int) {
			mu.Lock()
			defer mu.Unlock()
			busy[name] += by
			most[name] = max(most[name], busy[name])
		}
		q := run(t, localqueue.Options{
			Concurrency: func(name string) int { return map[string]int{"default": 2, "other": 3}[name] },
			Client: client(func(_ http.ResponseWriter, r *http.Request) {
				l.note(r)
				count(r.Header.Get(queue.HeaderQueueName), 1)
				defer count(r.Header.Get(queue.HeaderQueueName), -1)
				pass1s(r.Context())
			}),
		})
		for i := range 6 {
			create(t, q, task(fmt.Sprintf("t%d", i)))
			other := task(fmt.Sprintf("o%d", i))
			other.Queue = "other"
			create(t, q, other)
		}
		// This task becomes due while both slots are busy. It is delivered last, because the tasks that wait for a slot
		// became due earlier.
		create(t, q, in(task("late"), 500*time.Millisecond))
		pass(t, time.Minute)
		require.ElementsMatch(t, []string{
			"t0 0s", "t1 0s", "t2 1s", "t3 1s", "t4 2s", "t5 2s", "late 3s",
			"o0 0s", "o1 0s", "o2 0s", "o3 1s", "o4 1s", "o5 1s",
		}, l.all())
		require.Equal(t, map[string]int{"default": 2, "other": 3}, most, "never more than the queue's concurrency")
	})
}

func pass1s(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	<-ctx.Done()
}

func TestRetriesBackOffUntilTaskIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{start: now()}
		var out bytes.Buffer
		q := run(t, localqueue.Options{
			MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second, MaxAttempts: 7,
			Logger: slog.New(slog.NewTextHandler(&out, nil)),
			Client: client(func(w http.ResponseWriter, r *http.Request) {
				l.note(r)
				w.WriteHeader(http.StatusInternalServerError)
			}),
		})
		create(t, q, task("t"))
		pass(t, time.Hour/2)
		require.Equal(t, []string{
			"t 0s", "t 100ms", "t 300ms", "t 700ms", "t 1.5s", "t 2.5s", "t 3.5s",
		}, l.all())
		require.Contains(t, out.String(), `msg="queue task dropped: no attempts left" queue=default task=t`)
		require.Contains(t, out.String(), "attempts=7 status=500")
		found, err := q.Exists(t.Context(), "default", "t")
		require.NoError(t, err)
		require.False(t, found)
		require.ErrorIs(t, q.Create(t.Context(), task("t")), queue.ErrExists, "the name of a dropped task stays used")
	})
}

func TestCreateAcceptsNameAfterDedupWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := run(t, localqueue.Options{Client: client(func(_ http.ResponseWriter, r *http.Request) {
			if r.Header.Get(queue.HeaderTaskName) == "slow" {
				pass1s(r.Context())
			}
		})})
		create(t, q, task("slow"), in(task("deleted"), time.Hour))
		require.NoError(t, q.Delete(t.Context(), "default", "deleted"))
		pass(t, time.Hour-time.Millisecond)
		require.ErrorIs(t, q.Create(t.Context(), task("deleted")), queue.ErrExists)
		pass(t, time.Millisecond)
		create(t, q, task("deleted"))
		require.ErrorIs(t, q.Create(t.Context(), task("slow")), queue.ErrExists, "the window begins when the task ends")
		pass(t, time.Second)
		create(t, q, task("slow"))
	})
}

func TestMaxRememberedForgetsOldestNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := run(t, localqueue.Options{MaxRemembered: 3, Client: client(func(http.ResponseWriter, *http.Request) {})})
		for i := range 5 {
			create(t, q, task(fmt.Sprintf("t%d", i)))
			synctest.Wait()
		}
		for i := 2; i < 5; i++ {
			require.ErrorIs(t, q.Create(t.Context(), task(fmt.Sprintf("t%d", i))), queue.ErrExists)
		}
		create(t, q, task("t0"), task("t1"))
	})
}

func TestDeliveryDeadlineIsNotAnExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{start: now()}
		q := run(t, localqueue.Options{Client: client(func(_ http.ResponseWriter, r *http.Request) {
			if l.note(r)%3 != 0 {
				<-r.Context().Done()
			}
		})})
		item := task("t")
		item.DispatchDeadline = 20 * time.Second
		create(t, q, item)
		pass(t, time.Hour)
		require.Equal(t, []string{"t 0s", "t 20.1s", "t 40.3s"}, l.all())
		require.Equal(t, []string{"0 0", "1 0", "2 0"}, l.counts)

		l.lines, l.start = nil, now()
		create(t, q, task("default-deadline"))
		pass(t, time.Hour)
		require.Equal(t, "default-deadline 10m0.1s", l.all()[1])
	})
}

func TestUnreachableTargetIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		q := run(t, localqueue.Options{Client: &http.Client{Transport: refusing(func(r *http.Request) error {
			if attempts++; attempts < 4 {
				return errors.New("connection refused")
			}
			require.Equal(t, "3 0", r.Header.Get(queue.HeaderRetryCount)+" "+r.Header.Get(queue.HeaderExecutionCount))
			return nil
		})}})
		create(t, q, task("t"))
		pass(t, time.Minute)
		require.Equal(t, 4, attempts)
	})
}

type refusing func(r *http.Request) error

// RoundTrip implements [http.RoundTripper].
func (f refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := f(r); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
}

func TestDeleteDuringDeliveryPreventsRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{start: now()}
		q := run(t, localqueue.Options{Concurrency: oneSlot, Client: client(func(w http.ResponseWriter, r *http.Request) {
			l.note(r)
			pass1s(r.Context())
			if r.Header.Get(queue.HeaderTaskName) == "t" {
				w.WriteHeader(http.StatusInternalServerError)
			}
		})})
		create(t, q, task("t"))
		synctest.Wait()
		require.NoError(t, q.Delete(t.Context(), "default", "t"))
		found, err := q.Exists(t.Context(), "default", "t")
		require.NoError(t, err)
		require.False(t, found)
		create(t, q, task("next"))
		pass(t, time.Minute)
		require.Equal(t, []string{"t 0s", "next 1s"}, l.all(), "its slot stays occupied until the delivery ends; no retry follows")
	})
}

func TestStopEndsDeliveriesAndRejectsTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		q := localqueue.New(localqueue.Options{Client: client(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })})
		go func() { ended <- q.Run(ctx) }()
		create(t, q, task("running"), in(task("waiting"), time.Hour))
		synctest.Wait()
		require.Empty(t, ended)
		before := now()
		stop()
		require.NoError(t, <-ended)
		require.Zero(t, now().Sub(before))

		err := q.Create(t.Context(), task("new"))
		require.ErrorContains(t, err, "stopped")
		require.NotErrorIs(t, err, queue.ErrExists)
		require.NotErrorIs(t, err, queue.ErrInvalid)
		require.ErrorContains(t, q.Run(t.Context()), "already run")
	})
}

func TestFullQueueRejectsTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := run(t, localqueue.Options{MaxTasks: 2, Client: client(func(http.ResponseWriter, *http.Request) {})})
		create(t, q, in(task("t1"), time.Second), in(task("t2"), time.Hour))
		err := q.Create(t.Context(), task("t3"))
		require.ErrorContains(t, err, "full")
		require.NotErrorIs(t, err, queue.ErrInvalid)
		pass(t, 2*time.Second)
		create(t, q, task("t3"))
	})
}

func TestWaitingTasksUseNoGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tasks = 100_000
		var mu sync.Mutex
		delivered := 0
		q := run(t, localqueue.Options{Client: client(func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			delivered++
		})})
		synctest.Wait()
		before := runtime.NumGoroutine()
		for i := range tasks {
			create(t, q, in(task(fmt.Sprintf("t%d", i)), time.Hour+time.Duration(i%7)*time.Second))
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), before+1)
		pass(t, time.Hour-time.Second)
		require.Zero(t, delivered)
		pass(t, 10*time.Second)
		require.Equal(t, tasks, delivered)
	})
}

func BenchmarkDelivery(b *testing.B) {
	var wg sync.WaitGroup
	q := localqueue.New(localqueue.Options{Client: &http.Client{Transport: refusing(func(*http.Request) error {
		wg.Done()
		return nil
	})}})
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx) }()
	i := 0
	for b.Loop() {
		i++
		wg.Add(1)
		require.NoError(b, q.Create(ctx, task(fmt.Sprintf("t%d", i))))
	}
	wg.Wait()
	stop()
	require.NoError(b, <-ended)
}
