package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// Turns shares what a process may ask of the queue between tenants, by deficit
// round-robin: each tenant with tasks that wait to be queued has as many turns a round
// as its weight, so that one with a thousand of them holds up one with a few by a round,
// not by a thousand. Tasks of one tenant have their turns as they came.
//
// It is of this process alone, and so approximate where there are several. It takes
// effect as long as tasks wait here and not in the queue, which is first in, first out:
// that is what the rate is for.
type Turns struct {
	// OnWaiting is told how many more tasks wait, or fewer; nil: nobody is.
	OnWaiting func(more int)

	clock    clock.Clock
	parallel int
	rate     int // tasks a second; 0: no bound
	weights  map[string]int

	mu    sync.Mutex
	free  int // slots
	due   time.Time
	lines map[string]*line
	ring  []*line // those in which somebody waits, the one whose visit it is first
}

// line is where the tasks of a tenant wait.
type line struct {
	tenant  string
	waiting []*waiter
	credit  int // turns left of this visit
}

type waiter struct {
	granted chan struct{}
	at      time.Time // its turn, once it is granted
}

// NewTurns makes turns, of which parallel calls to the queue are had at once and
// rate are given a second. A tenant without a weight has 1.
func NewTurns(c clock.Clock, parallel, rate int, weights map[string]int) *Turns {
	return &Turns{clock: c, parallel: parallel, rate: rate, weights: weights, free: parallel, lines: map[string]*line{}}
}

// Take waits for a turn of a tenant; release must be called when it is over. The
// turns of nil come at once.
func (t *Turns) Take(ctx context.Context, tenant string) (release func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for a turn of tenant %s: %w", tenant, ctx.Err())
	}
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
	return t.release, nil
}

func (t *Turns) join(tenant string) *waiter {
	w := &waiter{granted: make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[tenant]
	if l == nil {
		l = &line{tenant: tenant}
		t.lines[tenant] = l
		t.ring = append(t.ring, l)
	}
	l.waiting = append(l.waiting, w)
	t.grant()
	return w
}

// leave gives up a place, or the turn that was granted at the same moment.
func (t *Turns) leave(tenant string, w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lines[tenant]; l != nil {
		if i := slices.Index(l.waiting, w); i >= 0 {
			l.waiting = slices.Delete(l.waiting, i, i+1)
			t.dropIfEmpty(l)
			return
		}
	}
	t.free++
	t.grant()
}

func (t *Turns) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free++
	t.grant()
}

// grant gives free slots to those whose turn it is.
func (t *Turns) grant() {
	for t.free > 0 && len(t.ring) > 0 {
		w := t.next()
		t.free--
		w.at = t.pace()
		close(w.granted)
	}
}

// next takes out who is next: the first of the tenant whose visit it is. The visit
// ends with its last turn, or when nobody of the tenant waits any more, and then
// nothing of it is left for later.
func (t *Turns) next() *waiter {
	l := t.ring[0]
	if l.credit == 0 {
		l.credit = max(1, t.weights[l.tenant])
	}
	w := l.waiting[0]
	l.waiting[0] = nil
	l.waiting = l.waiting[1:]
	l.credit--
	if t.dropIfEmpty(l); len(l.waiting) > 0 && l.credit == 0 {
		t.ring = append(t.ring[1:], l)
	}
	return w
}

func (t *Turns) dropIfEmpty(l *line) {
	if len(l.waiting) == 0 {
		delete(t.lines, l.tenant)
		t.ring = slices.DeleteFunc(t.ring, func(other *line) bool { return other == l })
	}
}

// pace is when the turn that is granted now begins: the rate apart, but for a tenth of
// a second's turns, which may come at once after a pause. Turns that were granted and
// have not begun are as many as there are slots; a clock that was set back does not
// make more of them.
func (t *Turns) pace() time.Time {
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
