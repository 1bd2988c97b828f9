package manifest_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// What an operation on the register was told.
const (
	loaded       = "loaded"
	committed    = "committed"
	conflict     = "conflict"
	notCommitted = "not committed"
	unknown      = "unknown"
)

// asked is a Load, or a Publish of ref after parent.
type asked struct {
	publish     bool
	parent, ref manifest.Ref
}

// told is the outcome, and of a Load the revision; zero: there is none.
type told struct {
	outcome string
	ref     manifest.Ref
}

// line is what the model knows: the nonces of all revisions so far, one after
// the other, which makes it a value that can be compared.
type line string

const nonceLen = 26

func (l line) head() manifest.Ref {
	if l == "" {
		return manifest.Ref{}
	}
	return manifest.Ref{Revision: int64(len(l) / nonceLen), Nonce: string(l[len(l)-nonceLen:])}
}

func (l line) at(revision int64) string {
	if revision*nonceLen > int64(len(l)) {
		return ""
	}
	return string(l[(revision-1)*nonceLen : revision*nonceLen])
}

// register is the sequential specification: a line of revisions that grows at
// its head only.
var register = porcupine.Model{
	Init: func() any { return line("") },
	Step: func(state, input, output any) (bool, any) {
		l, in, out := state.(line), input.(asked), output.(told)
		switch {
		case !in.publish:
			return out.ref == l.head(), l
		case out.outcome == committed, out.outcome == unknown:
			// Of unknown outcomes only those are checked that turned out to have
			// happened: see (*recorder).history.
			return in.parent == l.head(), l + line(in.ref.Nonce)
		default:
			holder := l.at(in.ref.Revision)
			return holder != "" && holder != in.ref.Nonce, l
		}
	},
}

// recorder notes operations, on a clock that counts calls and returns.
type recorder struct {
	mu    sync.Mutex
	ticks int64
	ops   []porcupine.Operation
}

func (r *recorder) tick() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ticks++
	return r.ticks
}

func (r *recorder) add(client int, call int64, in asked, out told) {
	returned := r.tick()
	if out.outcome == unknown {
		returned = math.MaxInt64 // it may happen at any time from now on
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: returned})
}

// history is what can be checked. A publish of unknown outcome that no Load ever
// saw, the last one of all included, did not happen, or nobody can tell.
func (r *recorder) history() []porcupine.Operation {
	seen := map[string]bool{}
	for _, op := range r.ops {
		seen[op.Output.(told).ref.Nonce] = true
	}
	var checked []porcupine.Operation
	for _, op := range r.ops {
		if op.Output.(told).outcome != unknown || seen[op.Input.(asked).ref.Nonce] {
			checked = append(checked, op)
		}
	}
	return checked
}

// network is what lies between the clients and the store. Everything takes a
// while, requests and answers are lost, and some creates arrive after their
// sender was told that they had failed: seconds late, or hours.
type network struct {
	blob.Store
	t  *testing.T
	mu sync.Mutex
	*rand.Rand
	late sync.WaitGroup
}

func (n *network) draw(most int64) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Int64N(most)
}

// pass lets up to so much virtual time pass.
func (n *network) pass(most time.Duration) { elapse(n.t, time.Duration(1+n.draw(int64(most)))) }

func (n *network) fault(faultblob.Op, string) faultblob.Fault {
	n.pass(50 * time.Millisecond)
	switch n.draw(12) {
	case 0:
		return faultblob.FailAfter
	case 1:
		return faultblob.FailBefore
	}
	return faultblob.None
}

// Create implements [blob.Store].
func (n *network) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	if n.draw(12) > 0 {
		return n.Store.Create(ctx, key, data)
	}
	most := 2 * time.Second
	if n.draw(3) == 0 {
		most = 3 * time.Hour
	}
	n.late.Go(func() {
		n.pass(most)
		_, err := n.Store.Create(context.WithoutCancel(ctx), key, data)
		if err != nil && !errors.Is(err, blob.ErrExists) {
			n.t.Error(err)
		}
	})
	return blob.Object{}, faultblob.ErrInjected
}

// client is a process that loads and publishes.
type client struct {
	*manifest.Store
	n    *network
	r    *recorder
	name int
}

// load gives what it has seen, and whether it has seen anything.
func (c *client) load() (*manifest.Manifest, bool) {
	call := c.r.tick()
	m, err := c.Load(c.n.t.Context())
	out := told{outcome: loaded}
	switch {
	case err == nil:
		out.ref = m.Ref()
	case errors.Is(err, faultblob.ErrInjected):
		return nil, false
	case !errors.Is(err, manifest.ErrNone):
		c.n.t.Error(err)
		return nil, false
	}
	c.r.add(c.name, call, asked{}, out)
	return m, true
}

// publish publishes what follows cur, with little patience. It repeats what has
// an unknown outcome, which makes one operation of several calls, or lets it be.
func (c *client) publish(cur *manifest.Manifest) {
	next := manifest.First(domain, lineage, "w")
	if cur != nil {
		next = cur.Successor("w")
	}
	in, call := asked{publish: true}, c.r.tick()
	for {
		ctx, cancel := context.WithTimeout(c.n.t.Context(), time.Duration(30+c.n.draw(300))*time.Millisecond)
		err := c.Publish(ctx, next)
		cancel()
		in.ref = next.Ref()
		if next.Parent != nil {
			in.parent = *next.Parent
		}
		out := told{}
		switch {
		case err == nil:
			out.outcome = committed
		case errors.Is(err, manifest.ErrConflict):
			out.outcome = conflict
		case errors.Is(err, manifest.ErrNotCommitted):
			out.outcome = notCommitted
		case errors.Is(err, manifest.ErrUnknown) && c.n.draw(2) == 0:
			c.n.pass(10 * time.Second)
			continue
		case errors.Is(err, manifest.ErrUnknown):
			out.outcome = unknown
		default:
			c.n.t.Error(err)
		}
		c.r.add(c.name, call, in, out)
		return
	}
}

// rounds are the life of a client. Between what it saw and what it publishes it
// thinks, mostly for a moment, now and then for so long that what it saw is
// collected meanwhile.
func (c *client) rounds(n int) {
	for range n {
		cur, ok := c.load()
		if !ok {
			continue
		}
		switch c.n.draw(8) {
		case 0:
			c.n.pass(4 * time.Hour)
		case 1:
			c.n.pass(time.Hour)
		default:
			c.n.pass(100 * time.Millisecond)
		}
		c.publish(cur)
	}
}

// retain collects every half hour what is older than an hour, as retention does,
// until there has been nothing to collect for a day.
func (c *client) retain(w *world) {
	for idle := 0; idle < 48; idle++ {
		elapse(c.n.t, 30*time.Minute)
		b, _, err := w.writer().Boundary(c.n.t.Context())
		require.NoError(c.n.t, err)
		through := b.DeletedThrough
		for {
			m, err := w.writer().LoadAt(c.n.t.Context(), through+2) // the newest stays
			if err != nil || now().Sub(m.PublishedAt.Time()) < time.Hour {
				break
			}
			through++
		}
		if through > b.DeletedThrough {
			w.collect(c.n.t, through)
			idle = 0
		}
	}
}

// A manifest's line of revisions is a register with a compare-and-swap, for
// clients that lose answers, write late, lose patience and fall asleep for
// longer than revisions are kept: what they were told, all of it, fits one order
// in which each operation took effect between its call and its return.
//
// Seen to fail with holder taking an own manifest for another writer's, with
// hold believing ErrExists or an error without reading, with commit not reading
// the boundary, and with Load giving what the hint names.
func TestPublishAndLoadAreLinearizable(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(100) {
		r := &recorder{}
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			n := &network{Store: w.blobs, t: t, Rand: rand.New(rand.NewPCG(seed, 1))}
			connect := func(name int, store blob.Store) *client {
				return &client{n: n, r: r, name: name, Store: manifest.New(manifest.Config{
					Domain: domain, Store: store, Clock: clock.System{},
					IDs: ids.NewSource(clock.System{}.Now, rand.NewChaCha8([32]byte{byte(seed), byte(name)})),
				})}
			}
			var clients sync.WaitGroup
			for name := range 4 {
				clients.Go(func() {
					elapse(t, time.Duration(1+name)) // the seed decides who is next, from the first draw on
					connect(name, faultblob.New(n, n.fault)).rounds(15)
				})
			}
			last := connect(4, w.blobs)
			clients.Go(func() { last.retain(w) })
			clients.Wait()
			n.late.Wait()
			_, ok := last.load()
			require.True(t, ok)
		})
		for _, op := range r.ops {
			outcomes[op.Output.(told).outcome]++
		}
		result := porcupine.CheckOperationsTimeout(register, r.history(), 10*time.Second)
		require.Equal(t, porcupine.Ok, result, "seed %d: the history is not linearizable", seed)
	}
	t.Logf("operations by outcome: %v", outcomes)
	for _, outcome := range []string{loaded, committed, conflict, notCommitted, unknown} {
		require.Greater(t, outcomes[outcome], 20, "%s: the test does not try what it is to try", outcome)
	}
}
