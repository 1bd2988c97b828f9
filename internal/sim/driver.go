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

// driver executes one event at a time.
type driver struct {
	wait   func()
	clock  clock.System // clock of the bubble
	start  time.Time
	events events
	seq    int
	onCall func(*call) // called with each call before it begins
	steps  int

	mu      sync.Mutex
	arrived []*call
	notify  chan struct{}
}

// call is a request of a process to the world. Its goroutine is parked until the driver closes
// done.
type call struct {
	proc   *process
	label  string
	begin  func()          // the driver calls this function when the call begins
	serves int             // number of the request that the call serves; the driver sorts equal calls by it
	ctx    context.Context //nolint:containedctx // the caller's context
	done   chan struct{}
}

// serving is the key of a context value: the number of the request that a call serves.
type serving struct{}

// scheduled is an event that the driver will execute.
type scheduled struct {
	at   time.Time
	seq  int
	proc *process // the event waits while proc is frozen, and is dropped if proc is dead; nil: no process
	do   func()
}

type events []*scheduled

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return cmp.Or(e[i].at.Compare(e[j].at), cmp.Compare(e[i].seq, e[j].seq)) < 0
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*scheduled)) } //nolint:forcetypeassert,errcheck // container/heap
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

// callAfter schedules a call of the function "do" after a delay. Only the driver's goroutine may call it.
func (d *driver) callAfter(wait time.Duration, proc *process, do func()) {
	d.seq++
	heap.Push(&d.events, &scheduled{d.now().Add(max(wait, 1)), d.seq, proc, do})
}

// park passes a call to the driver and waits until the call is done. It returns the error of ctx, or errDead.
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

// beginCalls waits until all goroutines are parked, and begins their calls in a deterministic
// order.
func (d *driver) beginCalls() {
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
			// Whether a call or its cancellation came first depends on Go's scheduler. To be deterministic, the call
			// counts as cancelled in both cases.
			if !c.proc.isDead() && c.ctx.Err() == nil {
				d.onCall(c) // onCall may kill the process
				if !c.proc.isDead() {
					c.begin()
				}
			}
		}
	}
}

// step executes the next event. It returns false if none is due before the deadline.
func (d *driver) step(deadline time.Time) bool {
	for {
		d.beginCalls()
		if len(d.events) == 0 || d.events[0].at.After(deadline) {
			return false
		}
		next := d.events[0]
		if wait := next.at.Sub(d.now()); wait > 0 {
			d.pass(wait)
			continue // a call may have arrived
		}
		heap.Pop(&d.events)
		if p := next.proc; p != nil {
			if p.isDead() {
				continue
			}
			if thaw := p.machine.frozenUntil; thaw.After(d.now()) {
				d.callAfter(thaw.Sub(d.now()), p, next.do)
				continue
			}
		}
		d.steps++
		next.do()
		return true
	}
}

// pass waits for the given time, or until a call arrives.
func (d *driver) pass(wait time.Duration) {
	timer := time.NewTimer(wait)
	select {
	case <-d.notify:
	case <-timer.C:
	}
	timer.Stop()
}
