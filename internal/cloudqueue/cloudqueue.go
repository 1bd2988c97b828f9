// Package cloudqueue wraps a [queue.Queue] to behave like a cloud task queue: it adds the
// latency of calls, the delay from due time to delivery, a delivery rate per queue, and a
// meter of billed operations.
//
// The [Config] sets the latencies and the rate. A queue with the zero Config only counts operations. The
// wrapped queue retries failed deliveries, without an additional delay.
package cloudqueue

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/internal/latency"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// Model describes how a queue behaves. The zero Model accepts and delivers without delay.
type Model struct {
	Call     latency.Dist // latency of create, delete and exists
	Delivery latency.Dist // delay from the due time to the delivery
	// Every is the minimum interval between first deliveries of tasks of the same queue. It applies only to tasks that
	// are already due when they are created.
	Every time.Duration
}

// CloudTasks returns a model of Google Cloud Tasks, with 500 deliveries per second for each queue.
func CloudTasks() Model {
	ms := latency.Milliseconds
	return Model{Call: ms(20, 100), Delivery: ms(50, 400), Every: time.Second / 500} //nolint:mnd // the figures of the model
}

// MaxConcurrent is the default limit of Cloud Tasks on concurrent deliveries of one queue.
const MaxConcurrent = 1000

// Config configures a Queue.
type Config struct {
	Model Model
	// Clock and Random are required if Model has latencies or a rate.
	Clock  clock.Clock
	Random *latency.Source
}

// Queue is a queue with the latencies and the delivery rate of a [Model]. Create it with [New].
type Queue struct {
	inner queue.Queue
	cfg   Config

	calls, deliveries atomic.Int64

	mu   sync.Mutex
	next map[string]time.Time // when a queue may deliver again
}

var _ queue.Queue = (*Queue)(nil)

// New wraps the queue that the function inner returns. New calls inner with a client that counts requests; the queue
// must deliver its tasks with this client.
func New(cfg Config, client *http.Client, inner func(*http.Client) queue.Queue) *Queue {
	q := &Queue{cfg: cfg, next: map[string]time.Time{}}
	counted := *client
	if counted.Transport == nil {
		counted.Transport = http.DefaultTransport
	}
	counted.Transport = &transport{counted.Transport, &q.deliveries}
	q.inner = inner(&counted)
	return q
}

// transport counts requests.
type transport struct {
	http.RoundTripper
	n *atomic.Int64
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.n.Add(1)
	return t.RoundTripper.RoundTrip(r)
}

// Operations returns the number of billed operations: calls, whatever their outcome, and
// deliveries.
func (q *Queue) Operations() (calls, deliveries int64) { return q.calls.Load(), q.deliveries.Load() }

// call waits for half of the drawn latency, calls the function do, and waits for the other half.
func (q *Queue) call(ctx context.Context, verb, queueName, name string, do func() error) error {
	half := q.cfg.Random.Draw(q.cfg.Model.Call) / 2 //nolint:mnd // a half
	wait := func() error {
		if half <= 0 {
			return nil
		}
		if err := q.cfg.Clock.Sleep(ctx, half); err != nil {
			return fmt.Errorf("%s task %q of queue %q: %w", verb, name, queueName, err)
		}
		return nil
	}
	if err := wait(); err != nil {
		return err
	}
	q.calls.Add(1)
	err := do()
	if err := wait(); err != nil {
		return err
	}
	return err
}

// Create implements [queue.Queue].
func (q *Queue) Create(ctx context.Context, t queue.Task) error {
	t.Turn = queue.Turn{} // cloud queues do not dispatch tenants in turn
	return q.call(ctx, "create", t.Queue, t.Name, func() error {
		if q.cfg.Model.Delivery.P50 > 0 || q.cfg.Model.Every > 0 {
			t.ScheduleTime = q.deliveryTime(t)
		}
		return q.inner.Create(ctx, t)
	})
}

// deliveryTime returns when a task will be delivered.
func (q *Queue) deliveryTime(t queue.Task) time.Time {
	now := q.cfg.Clock.Now()
	at := t.ScheduleTime
	if !at.After(now) {
		at = q.reserve(t.Queue, now)
	}
	at = at.Add(q.cfg.Random.Draw(q.cfg.Model.Delivery))
	if most := now.Add(queue.MaxSchedule); at.After(most) && !t.ScheduleTime.After(most) {
		return most
	}
	return at
}

// reserve returns the earliest time at which a queue can deliver one more task, and
// reserves it.
func (q *Queue) reserve(name string, now time.Time) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := now
	if q.next[name].After(at) {
		at = q.next[name]
	}
	q.next[name] = at.Add(q.cfg.Model.Every)
	return at
}

// Delete implements [queue.Queue].
func (q *Queue) Delete(ctx context.Context, queueName, name string) error {
	return q.call(ctx, "delete", queueName, name, func() error { return q.inner.Delete(ctx, queueName, name) })
}

// Exists implements [queue.Queue].
func (q *Queue) Exists(ctx context.Context, queueName, name string) (there bool, err error) {
	err = q.call(ctx, "look for", queueName, name, func() (err error) {
		there, err = q.inner.Exists(ctx, queueName, name)
		return err
	})
	return there, err
}
