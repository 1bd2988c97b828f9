package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// onlineWriter names the process that rebuilds a domain while others work on it, and
// bareWriter the one that does so from the bare ledger.
const (
	onlineWriter = "online"
	bareWriter   = "online, bare"
)

// scheduleOnline has domains rebuilt while everything else goes on.
func (w *world) scheduleOnline() {
	r := random(w.cfg.Seed, "online", 1)
	for range w.cfg.Online {
		at := time.Duration(r.Int64N(int64(w.cfg.horizon())))
		f := w.oracle.domains[w.domains[r.IntN(len(w.domains))]]
		m := &machine{w: w, kind: "rebuild", name: "rebuild"}
		bare := r.IntN(3) == 0
		m.main = func(ctx context.Context, p *process) { w.rebuildOnline(ctx, p, f, bare) }
		w.visitors = append(w.visitors, m)
		w.after(at, nil, func() {
			if w.counts["under repair"] == 0 && !w.over {
				m.start()
			}
		})
	}
}

// maxOnline is how often an operator repeats a rebuild that fails.
const maxOnline = 5

// rebuildOnline is an operator's rebuild. Each try ends with the state that the domain
// has, or with an error and nothing changed: it writes files that nobody refers to, and at
// most one manifest, which the oracle compares with the state of the revision before. A
// rebuild of the bare ledger may end with another state, and creates a wakeup. It may
// write the boundary, if manifests are missing.
func (w *world) rebuildOnline(ctx context.Context, p *process, f *followed, bare bool) {
	source := ids.NewSource(p.now, p.entropy)
	blobs := faultblob.New(store{p}, func(op faultblob.Op, key string) faultblob.Fault {
		writes := op != faultblob.Get && op != faultblob.Open && op != faultblob.Head && op != faultblob.List
		if writes && !strings.HasPrefix(key, "state/") && !strings.HasPrefix(key, "manifests/") && !strings.HasPrefix(key, "hints/") && !strings.HasPrefix(key, "due/") &&
			(!bare && w.counts["wiped"] == 0 || !strings.HasPrefix(key, "boundary/")) {
			w.atDriver(p, func() { w.oracle.violation("online rebuild", "it writes %s", key) })
		}
		return faultblob.None
	})
	cfg := repair.Config{
		Domain: f.domain, Store: blobs, Codec: w.codec, IDs: source, Writer: onlineWriter, Clock: machineClock{p}, Wakeups: true,
		Manifests: manifest.New(manifest.Config{Domain: f.domain, Store: blobs, IDs: source, Clock: machineClock{p}}),
	}
	if cfg.Bare = bare; bare {
		cfg.Writer = bareWriter
	}
	for range maxOnline {
		_, err := repair.Rebuild(ctx, cfg)
		if ctx.Err() != nil {
			return
		}
		w.atDriver(p, func() {
			switch {
			case err != nil:
				w.fault("online rebuild failed")
			case bare:
				w.fault("online rebuild of the bare ledger")
			default:
				w.fault("online rebuild")
			}
			lost := new(repair.LostError)
			if errors.As(err, &lost) {
				w.oracle.violation("online rebuild", "%v", err)
			}
		})
		if err == nil || (machineClock{p}).Sleep(ctx, 10*time.Second) != nil {
			return
		}
	}
}

// atDriver has the driver do something on a process's behalf, and waits for it.
func (w *world) atDriver(p *process, do func()) {
	k := &call{proc: p, label: "tell"}
	k.begin = func() {
		do()
		close(k.done)
	}
	_ = w.park(context.Background(), k)
}

// rebuiltOnline checks that a rebuild in the recorded order changed no row.
func (o *oracle) rebuiltOnline(f *followed, m *manifest.Manifest, before, after *state.State) {
	was, is := state.New(f.domain), state.New(f.domain)
	was.Load(before.All().KeptFrom(m.BaseSnapshot.RunsFrom))
	is.Load(after.All().KeptFrom(m.BaseSnapshot.RunsFrom))
	for _, line := range state.Diff(was, is, 5) {
		o.violation("online rebuild", "revision %d of %s is another state than the one before: %s", m.Revision, f.domain, line)
	}
	if m.FoldSeq != f.manifest.FoldSeq {
		o.violation("online rebuild", "revision %d of %s has folded %d events, the one before %d", m.Revision, f.domain, m.FoldSeq, f.manifest.FoldSeq)
	}
}

// rebuiltBare accepts a rebuild of the bare ledger: timers and limits may have decided
// otherwise. No entry that was folded may be missing.
func (o *oracle) rebuiltBare(f *followed, before, after *state.State) {
	f.unordered, f.rebuiltAt = true, o.w.now()
	for row := range before.Entries.All {
		if lastSeq(after, row.Entry) < 0 {
			o.violation("online rebuild", "the rebuild of the bare ledger of %s has not folded entry %s, which the revision before had", f.domain, row.Entry)
		}
	}
}
