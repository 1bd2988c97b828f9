package sim

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/servo-orchestration/servo/pkg/queue"
)

// cloudQueue is the cloud's task queue, which never goes down.
type cloudQueue struct {
	w *world
	// used contains the names of all tasks that were created. The real queue forgets names after a day.
	used map[string]bool
	// waiting holds the unfinished tasks.
	waiting map[string]*queued
}

type queued struct {
	queue.Task
	since time.Time
	tries int
}

// Backoff between failed deliveries.
const (
	firstDelivery = time.Second
	lastDelivery  = time.Minute
	// maxDeliveries is how many times a task is delivered before the queue drops it.
	maxDeliveries = 60
)

func (q *cloudQueue) create(t queue.Task) error {
	if err := queue.Validate(t, q.w.now()); err != nil {
		return err
	}
	id := t.Queue + "/" + t.Name
	if q.used[id] {
		return fmt.Errorf("create %s: %w", id, queue.ErrExists)
	}
	q.used[id] = true
	f := q.w.faults.delivery()
	if f.lost {
		return nil // the queue accepts the task, but loses it
	}
	task := &queued{Task: t, since: q.w.now()}
	q.waiting[id] = task
	due := max(t.ScheduleTime.Sub(q.w.now()), 0) + f.delay
	q.w.callAfter(due, nil, func() { q.deliver(id, task, true) })
	if f.again > 0 {
		q.w.callAfter(due+f.again, nil, func() { q.deliver(id, task, false) })
	}
	return nil
}

// deliver pushes a task to its service. A regular delivery is retried if it fails; an extra delivery, which is a
// fault, is not.
func (q *cloudQueue) deliver(id string, t *queued, regular bool) {
	if regular && q.waiting[id] != t {
		return // the task was deleted meanwhile
	}
	if wait := max(q.w.faults.stalled(), q.w.pausedFor()); wait > 0 {
		q.w.delayedUntil = latest(q.w.delayedUntil, q.w.now().Add(wait))
		q.w.callAfter(wait+q.w.faults.latency(), nil, func() { q.deliver(id, t, regular) })
		return
	}
	q.w.note("deliver %s", id)
	header := http.Header{}
	for name, value := range t.Header {
		header.Set(name, value)
	}
	header.Set(queue.HeaderQueueName, t.Queue)
	header.Set(queue.HeaderTaskName, t.Name)
	header.Set(queue.HeaderRetryCount, strconv.Itoa(t.tries))
	over := false
	done := func(status int, err error) {
		if over || !regular {
			return
		}
		over = true
		q.delivered(id, t, status, err)
	}
	q.w.push(t.URL, header, t.Body, func(a answer) { done(a.status, a.err) })
	if deadline := t.DispatchDeadline; deadline > 0 {
		q.w.callAfter(deadline, nil, func() { done(0, context.DeadlineExceeded) })
	}
}

func (q *cloudQueue) delivered(id string, t *queued, status int, err error) {
	if q.waiting[id] != t {
		return
	}
	if err == nil && status >= 200 && status < 300 {
		delete(q.waiting, id)
		return
	}
	if t.tries++; t.tries == maxDeliveries || q.w.faults.chance(q.w.faults.Dropped, "queue task dropped") {
		q.w.note("drop %s", id)
		delete(q.waiting, id)
		return
	}
	q.w.callAfter(backoff(t.tries-1, firstDelivery, lastDelivery), nil, func() { q.deliver(id, t, true) })
}

// queueClient is the queue as seen by a process.
type queueClient struct{ p *process }

var _ queue.Queue = queueClient{}

func (c queueClient) Create(ctx context.Context, t queue.Task) error {
	return c.call(ctx, "create", t.Queue+"/"+t.Name, func() error { return c.p.machine.w.queue.create(t) })
}

func (c queueClient) Delete(ctx context.Context, name, task string) error {
	return c.call(ctx, "delete", name+"/"+task, func() error {
		delete(c.p.machine.w.queue.waiting, name+"/"+task)
		return nil
	})
}

func (c queueClient) Exists(ctx context.Context, name, task string) (bool, error) {
	there := false
	err := c.call(ctx, "exists", name+"/"+task, func() error {
		_, there = c.p.machine.w.queue.waiting[name+"/"+task]
		return nil
	})
	return there, err
}

// call sends a request to the queue. The request can have the same faults as a request to the store.
func (c queueClient) call(ctx context.Context, verb, task string, effect func() error) error {
	w := c.p.machine.w
	var err error
	k := &call{proc: c.p, label: "queue " + verb + " " + task}
	k.begin = func() {
		f := w.faults.storage(c.p, verb != "exists")
		w.callAfter(w.faults.latency()+f.delay, nil, func() {
			switch {
			case f.killBefore:
				c.p.kill("before queue " + verb)
				return
			case f.before:
				err = fmt.Errorf("queue %s %s: %w", verb, task, errUnavailable)
			default:
				err = effect()
				if f.killAfter {
					c.p.kill("after queue " + verb)
					return
				}
				if f.after {
					err = fmt.Errorf("queue %s %s: %w", verb, task, errLost)
				}
			}
			w.note("%s queue %s %s: %s", c.p.id, verb, task, outcome(err))
			w.callAfter(w.faults.latency(), c.p, func() { close(k.done) })
		})
	}
	if parked := w.park(ctx, k); parked != nil {
		return fmt.Errorf("queue %s %s: %w", verb, task, parked)
	}
	return err
}
