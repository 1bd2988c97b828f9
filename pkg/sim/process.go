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

// errDead is what a dead process gets from the world.
var errDead = errors.New("the process is dead")

// machine is a place where a process runs, and runs again when it has died.
type machine struct {
	w    *world
	kind string // "compactor", "dispatcher", …
	name string
	main func(ctx context.Context, p *process)
	skew time.Duration
	leap time.Duration // on top of that, for some minutes
	// unknown is an event type that the build on it does not know, or "".
	unknown string
	n       int      // processes so far
	alive   *process // nil while it is down
	// frozenUntil: nothing happens in its process before.
	frozenUntil time.Time
}

// process is one life of a program.
type process struct {
	machine *machine
	id      string          // sorts in a fixed order
	ctx     context.Context //nolint:containedctx // the process's life
	cancel  context.CancelFunc
	killed  chan struct{}
	dead    atomic.Bool
	fell    bool            // died while the world went on
	handler http.Handler    // of its endpoint, once it serves
	work    context.Context //nolint:containedctx // under which requests run
	open    []*request
	began   time.Time // when its last pass began, if it collects outputs
	wg      sync.WaitGroup
	entropy io.Reader
}

// start begins a life on a machine.
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

// kill ends a process where it stands: nothing that it does from now on has any
// effect.
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

// now is the time of day as the process's machine has it.
func (p *process) now() time.Time { return p.machine.w.now().Add(p.machine.skew + p.machine.leap) }

// entropy is randomness from a seed. The sources that read it are locked.
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

// machineClock is a process's clock.
type machineClock struct{ p *process }

func (c machineClock) Now() time.Time { return c.p.now() }

func (c machineClock) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	w := c.p.machine.w
	k := &call{proc: c.p, label: fmt.Sprintf("sleep %d", d)}
	k.begin = func() { w.after(d, c.p, func() { close(k.done) }) }
	return w.park(ctx, k)
}
