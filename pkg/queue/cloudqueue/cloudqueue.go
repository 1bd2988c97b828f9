// Package cloudqueue wraps a [queue.Queue] in what a task queue of a cloud adds to
// it: the time that a call takes, the time from when a task is due to its
// delivery, the rate at which a queue delivers, and a meter of what is billed.
//
// Each is in the [Config], and the zero Config only meters. Retries are the
// wrapped queue's, and are not held up.
package cloudqueue

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/latency"
	"github.com/servo-orchestration/servo/pkg/queue"
)

// Model is how a queue behaves. The zero Model is a queue that takes and delivers
// at once.
type Model struct {
	Call     latency.Dist // create, delete, exists
	Delivery latency.Dist // from when a task is due
	// Every is the time between deliveries of one queue, as far as first ones of
	// tasks that are due at once go.
	Every time.Duration
}

// CloudTasks is Google Cloud Tasks: 500 deliveries a second from a queue.
func CloudTasks() Model {
	ms := latency.Milliseconds
	return Model{Call: ms(20, 100), Delivery: ms(50, 400), Every: time.Second / 500} //nolint:mnd // the model is these figures
}

// MaxConcurrent is how many deliveries of a queue Cloud Tasks has under way at
// once, if it is not told otherwise.
const MaxConcurrent = 1000

// Config is what a queue works with.
type Config struct {
	Model Model
	// Clock and Random are needed where Model has latencies or a rate.
	Clock  clock.Clock
	Random *latency.Source
}

// Queue behaves as its model says. Create it with [New].
type Queue struct {
	inner queue.Queue
	cfg   Config

	calls, deliveries atomic.Int64

	mu   sync.Mutex
	next map[string]time.Time // when a queue may deliver again
}

var _ queue.Queue = (*Queue)(nil)

// New makes the queue around one that delivers with the client that it is given:
// its requests are counted.
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

// Operations is how many were billed: calls, whatever their answer, and
// deliveries.
func (q *Queue) Operations() (calls, deliveries int64) { return q.calls.Load(), q.deliveries.Load() }

// call does a call half-way through the time that it takes.
func (q *Queue) call(ctx context.Context, verb, queueName, name string, do func() error) error {
	half := q.cfg.Random.Draw(q.cfg.Model.Call) / 2 //nolint:mnd // half of it
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
	return q.call(ctx, "create", t.Queue, t.Name, func() error {
		if q.cfg.Model.Delivery.P50 > 0 || q.cfg.Model.Every > 0 {
			t.ScheduleTime = q.delivery(t)
		}
		return q.inner.Create(ctx, t)
	})
}

// delivery is when a task will be delivered.
func (q *Queue) delivery(t queue.Task) time.Time {
	now := q.cfg.Clock.Now()
	at := t.ScheduleTime
	if !at.After(now) {
		at = q.turn(t.Queue, now)
	}
	at = at.Add(q.cfg.Random.Draw(q.cfg.Model.Delivery))
	if most := now.Add(queue.MaxSchedule); at.After(most) && !t.ScheduleTime.After(most) {
		return most
	}
	return at
}

// turn is when a queue delivers one task more.
func (q *Queue) turn(name string, now time.Time) time.Time {
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
