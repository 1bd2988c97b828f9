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

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// Outcomes of an operation on the register.
const (
	loaded       = "loaded"
	committed    = "committed"
	conflict     = "conflict"
	notCommitted = "not committed"
	unknown      = "unknown"
)

// request is the input of a Load, or of a Publish. ref is the revision that the Publish creates, and parent is the
// parent of this revision.
type request struct {
	publish     bool
	parent, ref manifest.Ref
}

// response is the outcome of an operation. For a Load, ref is the returned revision, or
// zero if none was published.
type response struct {
	outcome string
	ref     manifest.Ref
}

// chain is the state of the model: the concatenated nonces of all revisions. As a string, it can be compared.
type chain string

const nonceLen = 26

func (c chain) head() manifest.Ref {
	if c == "" {
		return manifest.Ref{}
	}
	return manifest.Ref{Revision: int64(len(c) / nonceLen), Nonce: string(c[len(c)-nonceLen:])}
}

func (c chain) at(revision int64) string {
	if revision*nonceLen > int64(len(c)) {
		return ""
	}
	return string(c[(revision-1)*nonceLen : revision*nonceLen])
}

// register is the sequential specification: a chain of revisions that grows only at its
// head.
var register = porcupine.Model{
	Init: func() any { return chain("") },
	Step: func(state, input, output any) (bool, any) {
		c, in, out := state.(chain), input.(request), output.(response)
		switch {
		case !in.publish:
			return out.ref == c.head(), c
		case out.outcome == committed, out.outcome == unknown:
			// A publish whose outcome is unknown is in the history only if a Load returned its revision: see
			// (*recorder).history.
			return in.parent == c.head(), c + chain(in.ref.Nonce)
		default:
			owner := c.at(in.ref.Revision)
			return owner != "" && owner != in.ref.Nonce, c
		}
	},
}

// recorder records operations. Its clock counts calls and returns.
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

func (r *recorder) add(client int, call int64, in request, out response) {
	returned := r.tick()
	if out.outcome == unknown {
		returned = math.MaxInt64 // the operation may take effect at any time from now on
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: returned})
}

// history returns the operations to check. It omits each publish whose outcome is unknown and whose revision no Load
// returned, not even the final Load: such a publish had no visible effect.
func (r *recorder) history() []porcupine.Operation {
	seen := map[string]bool{}
	for _, op := range r.ops {
		seen[op.Output.(response).ref.Nonce] = true
	}
	var checked []porcupine.Operation
	for _, op := range r.ops {
		if op.Output.(response).outcome != unknown || seen[op.Input.(request).ref.Nonce] {
			checked = append(checked, op)
		}
	}
	return checked
}

// network connects the clients to the store. It delays every request and every response, and loses some of them. Some
// creates take effect seconds or hours after the client has received an error.
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

// pass lets a random virtual time of at most maxDelay elapse.
func (n *network) pass(maxDelay time.Duration) { elapse(n.t, time.Duration(1+n.draw(int64(maxDelay)))) }

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

// load returns the newest revision, or nil if none was published. ok is false if the
// load failed.
func (c *client) load() (*manifest.Manifest, bool) {
	call := c.r.tick()
	m, err := c.Load(c.n.t.Context())
	out := response{outcome: loaded}
	switch {
	case err == nil:
		out.ref = m.Ref()
	case errors.Is(err, faultblob.ErrInjected):
		return nil, false
	case !errors.Is(err, manifest.ErrNone):
		c.n.t.Error(err)
		return nil, false
	}
	c.r.add(c.name, call, request{}, out)
	return m, true
}

// publish publishes a successor of cur with a short timeout. If the outcome is unknown,
// it either gives up or publishes again, as part of the same operation.
func (c *client) publish(cur *manifest.Manifest) {
	next := manifest.First(domain, timeline, "w")
	if cur != nil {
		next = cur.Successor("w")
	}
	in, call := request{publish: true}, c.r.tick()
	for {
		ctx, cancel := context.WithTimeout(c.n.t.Context(), time.Duration(30+c.n.draw(300))*time.Millisecond)
		err := c.Publish(ctx, next)
		cancel()
		in.ref = next.Ref()
		if next.Parent != nil {
			in.parent = *next.Parent
		}
		out := response{}
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

// rounds loads and publishes n times. Before each publish it usually pauses briefly, and sometimes for so long that
// the loaded revision is collected.
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

// retain runs every half hour and collects the revisions that are older than an hour. It ends when it has found
// nothing to collect for a day.
func (c *client) retain(fx *fixture) {
	for idle := 0; idle < 48; idle++ {
		elapse(c.n.t, 30*time.Minute)
		b, _, err := fx.writer().Boundary(c.n.t.Context())
		require.NoError(c.n.t, err)
		through := b.DeletedThrough
		for {
			m, err := fx.writer().LoadAt(c.n.t.Context(), through+2) // the successor of the revision to collect
			if err != nil || now().Sub(m.PublishedAt.Time()) < time.Hour {
				break
			}
			through++
		}
		if through > b.DeletedThrough {
			fx.collect(c.n.t, through)
			idle = 0
		}
	}
}

// The revisions of a domain behave like a register with compare-and-swap, although clients lose responses, write late,
// time out, and sleep for longer than revisions are kept. So there is one order of the operations that explains all
// outcomes and in which each operation takes effect between its call and its return.
//
// This test detects four mistakes. Store.owner could take its own manifest for another writer's. Store.claim could
// trust ErrExists or another error without reading the object. Store.commit could omit to read the boundary. Store.Load
// could return the revision that the hint names without searching for later ones.
func TestPublishAndLoadAreLinearizable(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(100) {
		r := &recorder{}
		synctest.Test(t, func(t *testing.T) {
			fx := newFixture()
			n := &network{Store: fx.blobs, t: t, Rand: rand.New(rand.NewPCG(seed, 1))}
			connect := func(name int, store blob.Store) *client {
				return &client{n: n, r: r, name: name, Store: manifest.New(manifest.Config{
					Domain: domain, Store: store, Clock: clock.System{},
					IDs: ids.NewSource(clock.System{}.Now, rand.NewChaCha8([32]byte{byte(seed), byte(name)})),
				})}
			}
			var clients sync.WaitGroup
			for name := range 4 {
				clients.Go(func() {
					// Start the clients in a fixed order. Then the seed alone decides which values each client draws.
					elapse(t, time.Duration(1+name))
					connect(name, faultblob.New(n, n.fault)).rounds(15)
				})
			}
			last := connect(4, fx.blobs)
			clients.Go(func() { last.retain(fx) })
			clients.Wait()
			n.late.Wait()
			_, ok := last.load()
			require.True(t, ok)
		})
		for _, op := range r.ops {
			outcomes[op.Output.(response).outcome]++
		}
		result := porcupine.CheckOperationsTimeout(register, r.history(), 10*time.Second)
		require.Equal(t, porcupine.Ok, result, "seed %d: the history is not linearizable", seed)
	}
	t.Logf("operations by outcome: %v", outcomes)
	for _, outcome := range []string{loaded, committed, conflict, notCommitted, unknown} {
		require.Greater(t, outcomes[outcome], 20, "too few operations with outcome %q", outcome)
	}
}
