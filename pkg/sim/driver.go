package sim

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
)

// driver lets one thing happen at a time.
type driver struct {
	wait   func()
	clock  clock.System // of the bubble
	start  time.Time
	events events
	seq    int
	asked  func(*call) // is told of each call that is taken up
	steps  int

	mu      sync.Mutex
	arrived []*call
	notify  chan struct{}
}

// call is something that a process asks of the world. Its goroutine is parked
// until the driver closes done.
type call struct {
	proc   *process
	label  string
	begin  func()          // is called by the driver
	serves int             // the request on whose behalf it is made: what is asked twice at once is told apart
	ctx    context.Context //nolint:containedctx // the caller's
	done   chan struct{}
}

// serving is the key of a context's request, by its number.
type serving struct{}

// happening is something that is going to happen.
type happening struct {
	at   time.Time
	seq  int
	proc *process // nil, or whose event it is: it waits while that is frozen, and is dropped when it is dead
	do   func()
}

type events []*happening

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].seq, e[j].seq)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*happening)) } //nolint:forcetypeassert,errcheck // heap's
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return last
}

func newDriver(wait func()) *driver {
	d := &driver{wait: wait, notify: make(chan struct{}, 1)}
	d.start = d.clock.Now()
	return d
}

func (d *driver) now() time.Time { return d.clock.Now() }

// after has something happen when a while has passed. It belongs to the driver's
// goroutine.
func (d *driver) after(wait time.Duration, proc *process, do func()) {
	d.seq++
	heap.Push(&d.events, &happening{d.now().Add(max(wait, 1)), d.seq, proc, do})
}

// park hands a call to the driver and waits until it is answered. The error is
// that of ctx, or errDead.
func (d *driver) park(ctx context.Context, c *call) error {
	if c.proc.isDead() {
		return errDead
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.ctx, c.done = ctx, make(chan struct{})
	c.serves, _ = ctx.Value(serving{}).(int)
	d.arrive(c)
	select {
	case <-c.done:
		return nil
	case <-c.proc.killed:
		return errDead
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *driver) arrive(c *call) {
	d.mu.Lock()
	d.arrived = append(d.arrived, c)
	d.mu.Unlock()
	select {
	case d.notify <- struct{}{}:
	default:
	}
}

// settle waits until all goroutines are parked, and begins what they ask for, in
// an order of its own.
func (d *driver) settle() {
	for {
		d.wait()
		d.mu.Lock()
		calls := d.arrived
		d.arrived = nil
		d.mu.Unlock()
		if len(calls) == 0 {
			return
		}
		slices.SortStableFunc(calls, func(a, b *call) int {
			return cmp.Or(cmp.Compare(a.proc.id, b.proc.id), cmp.Compare(a.label, b.label), cmp.Compare(a.serves, b.serves))
		})
		for _, c := range calls {
			// Whether somebody was faster to ask than somebody else was to call it off
			// is the scheduler's whim: both count as called off.
			if !c.proc.isDead() && c.ctx.Err() == nil {
				d.asked(c)
				c.begin()
			}
		}
	}
}

// step lets the next thing happen; false: nothing will, before the deadline.
func (d *driver) step(deadline time.Time) bool {
	for {
		d.settle()
		if len(d.events) == 0 || d.events[0].at.After(deadline) {
			return false
		}
		next := d.events[0]
		if wait := next.at.Sub(d.now()); wait > 0 {
			d.pass(wait)
			continue // something may have come meanwhile
		}
		heap.Pop(&d.events)
		if p := next.proc; p != nil {
			if p.isDead() {
				continue
			}
			if thaw := p.machine.frozenUntil; thaw.After(d.now()) {
				d.after(thaw.Sub(d.now()), p, next.do)
				continue
			}
		}
		d.steps++
		next.do()
		return true
	}
}

// pass lets time pass, or less of it if a call arrives.
func (d *driver) pass(wait time.Duration) {
	timer := time.NewTimer(wait)
	select {
	case <-d.notify:
	case <-timer.C:
	}
	timer.Stop()
}
