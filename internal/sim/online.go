package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
)

// onlineWriter is the name of the process that rebuilds a domain while other processes use it. bareWriter is the name
// of the process if this rebuild is from the bare ledger.
const (
	onlineWriter = "online"
	bareWriter   = "online, bare"
)

// scheduleOnline schedules rebuilds of domains that other processes use at the same time.
func (w *world) scheduleOnline() {
	r := random(w.cfg.Seed, "online", 1)
	for range w.cfg.Online {
		at := time.Duration(r.Int64N(int64(w.cfg.horizon())))
		f := w.oracle.domains[w.domains[r.IntN(len(w.domains))]]
		m := &machine{w: w, kind: "rebuild", name: "rebuild"}
		bare := r.IntN(3) == 0
		m.main = func(ctx context.Context, p *process) { w.rebuildOnline(ctx, p, f, bare) }
		w.visitors = append(w.visitors, m)
		w.callAfter(at, nil, func() {
			if w.counts["under repair"] == 0 && !w.over {
				m.start()
				w.insist(m, f)
			}
		})
	}
}

// insist repeats a bare rebuild that raised the boundary above all old revisions, but died or gave up before it
// published. Without another attempt, the domain would have no revision.
func (w *world) insist(m *machine, f *followed) {
	w.callAfter(time.Minute, nil, func() {
		if w.over || !f.ended && m.alive == nil {
			return
		}
		if m.alive == nil {
			m.start()
		}
		w.insist(m, f)
	})
}

// maxOnline is the maximum number of times that an operator tries a rebuild.
const maxOnline = 5

// rebuildOnline is an operator's rebuild. Each try either publishes a state, or returns an error and leaves the state
// unchanged. The published state is the same as before, unless the rebuild is bare. A try may write files that nothing
// references. It writes at most one manifest, which the oracle compares with the previous revision. A bare rebuild
// creates a wakeup. A bare rebuild, or any rebuild if manifests are missing, may also write the boundary.
func (w *world) rebuildOnline(ctx context.Context, p *process, f *followed, bare bool) {
	source := ids.NewSource(p.now, p.entropy)
	blobs := faultblob.New(store{p}, func(op faultblob.Op, key string) faultblob.Fault {
		writes := op != faultblob.Get && op != faultblob.Open && op != faultblob.Head && op != faultblob.List
		if writes && !strings.HasPrefix(key, "state/") && !strings.HasPrefix(key, "manifests/") && !strings.HasPrefix(key, "hints/") && !strings.HasPrefix(key, "wakeups/") &&
			(!bare && w.counts["wiped"] == 0 || !strings.HasPrefix(key, "boundary/")) {
			w.atDriver(p, func() { w.oracle.violation("online rebuild", "it writes %s", key) })
		}
		if op == faultblob.Replace && strings.HasPrefix(key, "boundary/") {
			w.atDriver(p, func() { f.ended, f.endedAt = true, w.now() })
		}
		return faultblob.None
	})
	cfg := repair.Config{
		Handle:  domain.Open(domain.Handle{Domain: f.domain, Store: blobs, Codec: w.codec, IDs: source, Clock: machineClock{p}}),
		Writer:  onlineWriter,
		Wakeups: true,
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
			if errors.As(err, &lost) && !w.allSkipped(lost) {
				w.oracle.violation("online rebuild", "%v", err)
			}
		})
		if err == nil || (machineClock{p}).Sleep(ctx, 10*time.Second) != nil {
			return
		}
	}
}

// allSkipped reports whether an operator has skipped all entries that a rebuild cannot read. Even so, such an entry may
// make the rebuild fail: a compactor may have folded the entry from the bytes that the writer handed over, and may
// publish its revision after the operator's decision. A rebuild must not drop a published entry unless the operator
// demands it.
func (w *world) allSkipped(lost *repair.LostError) bool {
	return !slices.ContainsFunc(lost.Groups, func(group string) bool {
		entry, _, _ := strings.Cut(strings.TrimPrefix(group, "ledger: entry "), ",")
		return !w.skipped[entry]
	})
}

// atDriver lets the driver call the function "do" on behalf of a process, and waits for the call.
func (w *world) atDriver(p *process, do func()) {
	k := &call{proc: p, label: "tell"}
	k.begin = func() {
		do()
		close(k.done)
	}
	_ = w.park(context.Background(), k)
}

// checkOnlineRebuild checks that a rebuild in the recorded order changed no row.
func (o *oracle) checkOnlineRebuild(f *followed, m *manifest.Manifest, before, after *state.State) {
	was, is := state.New(f.domain), state.New(f.domain)
	was.Load(before.All().KeptFrom(m.BaseSnapshot.RunsFrom))
	is.Load(after.All().KeptFrom(m.BaseSnapshot.RunsFrom))
	for _, line := range state.Diff(was, is, 5) {
		o.violation("online rebuild", "revision %d of %s, which a rebuild published, differs from the previous revision: %s", m.Revision, f.domain, line)
	}
	if m.FoldSeq != f.manifest.FoldSeq {
		o.violation("online rebuild", "revision %d of %s has folded %d events, but the previous revision has folded %d", m.Revision, f.domain, m.FoldSeq, f.manifest.FoldSeq)
	}
}

// checkBareRebuild checks the result of a bare rebuild. Rows may differ, because timers and limits may have decided
// differently. No folded entry may be missing, except abandoned ones: their writers have appended the events again, and
// checkEntries checks this.
func (o *oracle) checkBareRebuild(f *followed, before, after *state.State) {
	f.unordered, f.rebuiltAt = true, o.w.now()
	for row := range before.Entries.All {
		if _, abandoned := f.abandoned[row.Entry]; !abandoned && lastSeq(after, row.Entry) < 0 {
			o.violation("online rebuild", "the bare rebuild of %s has not folded entry %s, but the previous revision had", f.domain, row.Entry)
		}
	}
}
