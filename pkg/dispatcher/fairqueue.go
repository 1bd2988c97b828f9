package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// FairQueue is a fair queue in front of the task queue. It shares a process's calls between tenants by
// deficit round-robin: in each round a tenant gets as many turns as its weight. Even if a tenant has
// a thousand waiting tasks, it delays the other tenants by only one round. Tasks of one tenant get
// their turns in order of arrival.
//
// Each process has its own FairQueue, so the shares are only approximate if there are several processes. A FairQueue
// has an effect only if tasks wait in it instead of in the task queue, which is first in, first out. The rate limit
// makes them wait here.
type FairQueue struct {
	// OnWaiting is called with the change of the number of waiting tasks. It may be nil.
	OnWaiting func(more int)
	// OnTurn is called when a turn begins, with the time that the task waited for its turn. It may be nil.
	OnTurn func(waited time.Duration)

	clock    clock.Clock
	parallel int
	rate     int // tasks a second; 0: no limit
	weights  map[string]int

	mu     sync.Mutex
	free   int // slots
	due    time.Time
	queues map[string]*tenantQueue
	ring   []*tenantQueue // non-empty queues; the first one is being served
}

// tenantQueue holds the waiting tasks of one tenant.
type tenantQueue struct {
	tenant  string
	waiting []*waiter
	deficit int // turns left in this round
}

type waiter struct {
	granted chan struct{}
	at      time.Time // when the turn begins; set when it is granted
}

// NewFairQueue returns a fair queue. The parameter parallel is the maximum number of turns at once, and rate the
// maximum number of turns a second. A tenant without a weight has weight 1.
func NewFairQueue(c clock.Clock, parallel, rate int, weights map[string]int) *FairQueue {
	return &FairQueue{clock: c, parallel: parallel, rate: rate, weights: weights, free: parallel, queues: map[string]*tenantQueue{}}
}

// Acquire waits for a turn of a tenant. The caller must call release when the turn is over. A nil
// FairQueue grants every turn immediately.
func (t *FairQueue) Acquire(ctx context.Context, tenant string) (release func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for a turn of tenant %s: %w", tenant, ctx.Err())
	}
	joined := t.clock.Now()
	w := t.join(tenant)
	if t.OnWaiting != nil {
		t.OnWaiting(1)
		defer t.OnWaiting(-1)
	}
	select {
	case <-w.granted:
	case <-ctx.Done():
		t.leave(tenant, w)
		return nil, fmt.Errorf("wait for a turn of tenant %s: %w", tenant, ctx.Err())
	}
	if err := t.clock.Sleep(ctx, w.at.Sub(t.clock.Now())); err != nil {
		t.release()
		return nil, fmt.Errorf("wait for a turn of tenant %s: %w", tenant, err)
	}
	if t.OnTurn != nil {
		t.OnTurn(t.clock.Now().Sub(joined))
	}
	return t.release, nil
}

func (t *FairQueue) join(tenant string) *waiter {
	w := &waiter{granted: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[tenant]
	if q == nil {
		q = &tenantQueue{tenant: tenant}
		t.queues[tenant] = q
		t.ring = append(t.ring, q)
	}
	q.waiting = append(q.waiting, w)
	t.grant()
	return w
}

// leave removes a waiter. If its turn was granted at the same moment, it releases the turn.
func (t *FairQueue) leave(tenant string, w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.queues[tenant]; q != nil {
		if i := slices.Index(q.waiting, w); i >= 0 {
			q.waiting = slices.Delete(q.waiting, i, i+1)
			t.dropIfEmpty(q)
			return
		}
	}
	t.free++
	t.grant()
}

func (t *FairQueue) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	t.grant()
}

// grant grants turns while slots are free.
func (t *FairQueue) grant() {
	for t.free > 0 && len(t.ring) > 0 {
		w := t.next()
		t.free--
		w.at = t.pace()
		close(w.granted)
	}
}

// next removes and returns the next waiter: the first of the tenant that is being served. The tenant's round ends
// when the tenant has had all turns of the round, or when its queue is empty; unused turns are lost.
func (t *FairQueue) next() *waiter {
	q := t.ring[0]
	if q.deficit == 0 {
		q.deficit = max(1, t.weights[q.tenant])
	}
	w := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	q.deficit--
	if t.dropIfEmpty(q); len(q.waiting) > 0 && q.deficit == 0 {
		t.ring = append(t.ring[1:], q)
	}
	return w
}

func (t *FairQueue) dropIfEmpty(q *tenantQueue) {
	if len(q.waiting) == 0 {
		delete(t.queues, q.tenant)
		t.ring = slices.DeleteFunc(t.ring, func(other *tenantQueue) bool { return other == q })
	}
}

// pace returns when the turn that is being granted begins. The rate determines the interval between turns. After a
// pause, the turns of a tenth of a second may begin at once.
//
// A granted turn occupies a slot, also before it begins. So the last granted turn begins at most as many intervals from
// now as there are slots. If it begins later, the clock was set back. The turns then begin as after a pause.
func (t *FairQueue) pace() time.Time {
	now := t.clock.Now()
	if t.rate <= 0 {
		return now
	}
	apart := time.Second / time.Duration(t.rate)
	const burst = time.Second / 10
	if t.due.Before(now.Add(-burst)) || t.due.After(now.Add(time.Duration(t.parallel)*apart)) {
		t.due = now.Add(-burst)
	}
	t.due = t.due.Add(apart)
	return t.due
}
