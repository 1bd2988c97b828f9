package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// errDead is the error of calls by a dead process.
var errDead = errors.New("the process is dead")

// machine runs a process, and restarts it when it has died.
type machine struct {
	w    *world
	kind string // "compactor", "dispatcher", …
	name string
	main func(ctx context.Context, p *process)
	skew time.Duration
	leap time.Duration // a temporary additional error of the clock
	// unknown is an event type that the machine's build does not know, or "".
	unknown string
	n       int      // number of processes that the machine has started so far
	alive   *process // nil while the machine is down
	// frozenUntil is the time until which the machine's process is frozen.
	frozenUntil time.Time
}

// process is one execution of a program.
type process struct {
	machine *machine
	id      string          // the same in every simulation of a world, because calls are sorted by id
	ctx     context.Context //nolint:containedctx // ends with the process
	cancel  context.CancelFunc
	killed  chan struct{}
	dead    atomic.Bool
	fell    bool            // the process died before the end of the world
	handler http.Handler    // handler of its endpoint; nil until the process serves
	work    context.Context //nolint:containedctx // parent of the contexts of the requests that the process serves
	open    []*request
	began   time.Time // in a collector of outputs: start of its last pass
	wg      sync.WaitGroup
	entropy io.Reader
}

// start starts a process on a machine.
func (m *machine) start() {
	m.n++
	p := &process{machine: m, id: fmt.Sprintf("%s.%d", m.name, m.n), killed: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.entropy = &entropy{rng: random(m.w.cfg.Seed, "ids "+m.name, m.n)}
	m.alive = p
	m.w.note("start %s", p.id)
	m.w.alive.Go(func() {
		m.main(p.ctx, p)
		p.wg.Wait()
		m.w.ended(p)
	})
}

// kill kills a process: its later calls have no effect.
func (p *process) kill(why string) {
	if p.dead.Swap(true) {
		return
	}
	w := p.machine.w
	p.fell = !w.over
	w.fault("kill")
	w.note("kill %s: %s", p.id, why)
	p.machine.alive = nil
	p.machine.frozenUntil = time.Time{}
	close(p.killed)
	p.cancel()
	for _, r := range slices.Clone(p.open) {
		r.breakOff()
	}
	p.open = nil
}

func (p *process) isDead() bool { return p.dead.Load() }

// now returns the time of the machine's clock.
func (p *process) now() time.Time { return p.machine.w.now().Add(p.machine.skew + p.machine.leap) }

// entropy is randomness from a seed. It is safe for concurrent use.
type entropy struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (e *entropy) Read(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range b {
		b[i] = byte(e.rng.Uint32())
	}
	return len(b), nil
}

// machineClock is the clock of a process.
type machineClock struct{ p *process }

func (c machineClock) Now() time.Time { return c.p.now() }

func (c machineClock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	w := c.p.machine.w
	k := &call{proc: c.p, label: fmt.Sprintf("sleep %d", d)}
	k.begin = func() { w.callAfter(d, c.p, func() { close(k.done) }) }
	return w.park(ctx, k)
}
