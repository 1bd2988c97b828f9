package cloudqueue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/cloudqueue"
	"github.com/servo-orchestration/servo/internal/latency"
	"github.com/servo-orchestration/servo/internal/queuetest"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
)

// run starts a queue that runs until the test ends.
func run(t *testing.T, cfg cloudqueue.Config, opts localqueue.Options) *cloudqueue.Queue {
	t.Helper()
	client := opts.Client
	if client == nil {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	var inner *localqueue.Queue
	q := cloudqueue.New(cfg, client, func(c *http.Client) queue.Queue {
		opts.Client = c
		inner = localqueue.New(opts)
		return inner
	})
	ended := make(chan error, 1)
	go func() { ended <- inner.Run(t.Context()) }()
	t.Cleanup(func() { require.NoError(t, <-ended) })
	return q
}

func TestContract(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Open: func(t *testing.T, target http.Handler) (queue.Queue, string) {
		server := httptest.NewServer(target)
		t.Cleanup(server.Close)
		return run(t, cloudqueue.Config{}, localqueue.Options{MinBackoff: 5 * time.Millisecond}), server.URL
	}})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestDeliveriesFollowModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		var mu sync.Mutex
		delivered := map[string]time.Time{}
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			delivered[r.Header.Get(queue.HeaderTaskName)] = clock.System{}.Now()
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
		})}
		model := cloudqueue.CloudTasks()
		q := run(t, cloudqueue.Config{
			Model: model, Clock: clock.System{}, Random: latency.NewSource(rand.New(rand.NewPCG(1, 2))),
		}, localqueue.Options{Client: client})
		began := clock.System{}.Now()
		var calls []time.Duration
		var creating sync.WaitGroup
		for i := range n {
			creating.Go(func() {
				err := q.Create(t.Context(), queue.Task{Queue: "default", Name: fmt.Sprintf("t%04d", i), URL: "http://worker/execute"})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("create: %v", err)
				}
				calls = append(calls, clock.System{}.Now().Sub(began))
			})
		}
		creating.Wait()
		slices.Sort(calls)
		require.InEpsilon(t, model.Call.P50, calls[n/2], 0.05)
		require.InEpsilon(t, model.Call.P99, calls[n*99/100], 0.15)

		later := clock.System{}.Now().Add(time.Hour)
		require.NoError(t, q.Create(t.Context(), queue.Task{Queue: "timers", Name: "timer", URL: "http://d/fire", ScheduleTime: later}))
		require.NoError(t, q.Create(t.Context(), queue.Task{Queue: "timers", Name: "gone", URL: "http://d/fire", ScheduleTime: later}))
		there, err := q.Exists(t.Context(), "timers", "gone")
		require.NoError(t, err)
		require.True(t, there)
		require.NoError(t, q.Delete(t.Context(), "timers", "gone"))
		require.NoError(t, (clock.System{}).Sleep(t.Context(), 2*time.Hour))

		mu.Lock()
		defer mu.Unlock()
		require.True(t, delivered["timer"].After(later), "never before its time")
		delete(delivered, "timer")
		require.Len(t, delivered, n)
		var last time.Time
		for _, at := range delivered {
			if at.After(last) {
				last = at
			}
		}
		require.InDelta(t, n/500, last.Sub(began).Seconds(), 1.5, "500 a second, plus the delay of the last deliveries")
		created, pushed := q.Operations()
		require.EqualValues(t, n+4, created)
		require.EqualValues(t, n+1, pushed)
	})
}

func TestCreateCanceledEarlyQueuesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := run(t, cloudqueue.Config{
			Model: cloudqueue.Model{Call: latency.Dist{P50: time.Second}}, Clock: clock.System{},
			Random: latency.NewSource(rand.New(rand.NewPCG(1, 2))),
		}, localqueue.Options{})
		for _, row := range []struct {
			timeout time.Duration
			there   bool
		}{{400 * time.Millisecond, false}, {600 * time.Millisecond, true}} {
			ctx, cancel := context.WithTimeout(t.Context(), row.timeout)
			err := q.Create(ctx, queue.Task{Queue: "q", Name: "t", URL: "http://d/", ScheduleTime: clock.System{}.Now().Add(time.Hour)})
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.False(t, errors.Is(err, queue.ErrExists) || errors.Is(err, queue.ErrInvalid))
			there, err := q.Exists(t.Context(), "q", "t")
			require.NoError(t, err)
			require.Equal(t, row.there, there)
		}
	})
}

func TestCreateAcceptsMaxSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := run(t, cloudqueue.Config{
			Model: cloudqueue.CloudTasks(), Clock: clock.System{}, Random: latency.NewSource(rand.New(rand.NewPCG(1, 2))),
		}, localqueue.Options{})
		for i := range 100 {
			task := queue.Task{Queue: "q", Name: fmt.Sprint(i), URL: "http://d/", ScheduleTime: clock.System{}.Now().Add(queue.MaxSchedule)}
			require.NoError(t, q.Create(t.Context(), task))
			task.Name, task.ScheduleTime = "beyond", clock.System{}.Now().Add(queue.MaxSchedule+time.Hour)
			require.ErrorIs(t, q.Create(t.Context(), task), queue.ErrInvalid)
		}
	})
}
