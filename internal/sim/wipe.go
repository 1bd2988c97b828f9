package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/repair"
)

// scheduleWipes schedules damage of projections, and their rebuild.
func (w *world) scheduleWipes() {
	r := random(w.cfg.Seed, "wipes", 0)
	for range w.cfg.Faults.Wipe {
		at := time.Duration(r.Int64N(int64(w.cfg.horizon())))
		domain := w.domains[r.IntN(len(w.domains))]
		how := r.IntN(3)
		w.callAfter(at, nil, func() {
			f := w.oracle.domains[domain]
			if f.manifest == nil {
				return
			}
			w.fault("projections damaged")
			w.note("wipe %s, %d", domain, how)
			w.counts["under repair"]++
			w.counts["wiped"]++
			f.broken = true
			w.damage(f, how)
			// If all manifests are gone, a compactor that still has an older state may publish a revision before the
			// rebuild. That compactor has folded the ledger in another order, so some of its decisions may differ. The
			// operator therefore rebuilds without the order that this compactor recorded.
			w.callAfter(time.Duration(r.Int64N(int64(2*time.Minute))), nil, func() { w.rebuild(f, how == 0) })
		})
	}
}

// damage deletes the projections or one of their files, or changes a byte of a file.
func (w *world) damage(f *followed, how int) {
	ctx := context.Background()
	files := w.oracle.filesOf(f, f.manifest)
	switch {
	case how == 0 || len(files) == 0:
		for object, err := range w.blobs.Copy().List(ctx, blob.ListOptions{}) {
			if err == nil && strings.Contains(object.Key, f.domain.Path()) &&
				(strings.HasPrefix(object.Key, "state/") || strings.HasPrefix(object.Key, "manifests/") || strings.HasPrefix(object.Key, "hints/")) {
				_ = w.blobs.Delete(ctx, object.Key) // cannot fail: the store is in memory
			}
		}
	case how == 1:
		w.noteUnreadable(f, files[len(files)/2].Key)
		_ = w.blobs.Delete(ctx, files[len(files)/2].Key)
	default:
		key := files[len(files)/2].Key
		w.noteUnreadable(f, key)
		if data, _, err := w.blobs.Get(ctx, key); err == nil {
			data[len(data)/2] ^= 0x40
			_, _ = w.blobs.Put(ctx, key, data)
		}
	}
}

// noteUnreadable is called before an index of history is damaged, and records the files that only this index names.
// After the damage, not even a pinned revision can find these files.
func (w *world) noteUnreadable(f *followed, key string) {
	for _, index := range f.manifest.History {
		if index.Key != key {
			continue
		}
		segments, err := f.manifests.Segments(context.Background(), index)
		for i := range segments {
			if err == nil {
				f.unreadable[segments[i].Key] = true
			}
		}
	}
}

// rebuild is an operator's rebuild: all writers are stopped, the state is rebuilt, and everything
// is restarted.
func (w *world) rebuild(f *followed, bare bool) {
	for _, m := range slices.Concat(w.machines, w.visitors) {
		if m.kind != "worker" && m.alive != nil {
			m.alive.kill("to be repaired")
		}
	}
	w.note("rebuild %s", f.domain)
	result, err := w.repair(f, bare)
	if err != nil {
		w.oracle.violation("I-17 rebuildable", "rebuild %s: %v", f.domain, err)
		return
	}
	f.unordered = f.unordered || !result.Recorded
	m, err := f.manifests.Load(context.Background())
	if err != nil {
		w.oracle.violation("I-17 rebuildable", "after the rebuild of %s: %v", f.domain, err)
		return
	}
	f.broken, f.rebuiltAt = false, w.now()
	w.oracle.commit(f, m)
	w.counts["under repair"]--
}

// repair rebuilds a domain. It first attempts up to three rebuilds in which every read after a random point
// fails. Then it rebuilds the domain without failing reads. It ignores the record of the folding order if bare is true
// or the record is damaged.
func (w *world) repair(f *followed, bare bool) (repair.Result, error) {
	r := random(w.cfg.Seed, "failing reads", w.counts["wiped"])
	for range r.IntN(4) {
		if result, err := w.rebuildFailing(f, bare, r.IntN(20)); err == nil {
			return result, nil // the rebuild published before a read failed
		}
	}
	cfg := w.oracle.repairs(f, w.blobs)
	cfg.Bare = bare
	result, err := repair.Rebuild(context.Background(), cfg)
	if record := new(repair.RecordError); errors.As(err, &record) {
		cfg.Bare = true
		return repair.Rebuild(context.Background(), cfg)
	}
	return result, err
}

// rebuildFailing rebuilds a domain while reads fail. The parameter "after" is the number of reads that succeed first.
// After the rebuild has tried to create a manifest, reads succeed again. If a read has failed, the rebuild must return
// an error and change nothing.
func (w *world) rebuildFailing(f *followed, bare bool, after int) (repair.Result, error) {
	var reads, failed atomic.Int64
	var created atomic.Bool
	blobs := faultblob.New(w.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "manifests/") {
			created.Store(true)
		}
		read := op == faultblob.Get || op == faultblob.Head || op == faultblob.List
		if !read || created.Load() || reads.Add(1) <= int64(after) {
			return faultblob.None
		}
		failed.Add(1)
		return faultblob.FailBefore
	})
	before, known := f.manifests.Load(context.Background())
	cfg := w.oracle.repairs(f, blobs)
	cfg.Bare = bare
	result, err := repair.Rebuild(context.Background(), cfg)
	if failed.Load() == 0 {
		return result, err
	}
	w.fault("rebuild with failing reads")
	now, stillKnown := f.manifests.Load(context.Background())
	if err == nil || (known == nil) != (stillKnown == nil) || known == nil && before.Ref() != now.Ref() {
		w.oracle.violation("I-17 rebuildable", "a rebuild of %s with failing reads returned %v, or changed the state", f.domain, err)
	}
	return result, err
}
