package tiers_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

var codec = snapshot.NewCodec()

// fixture publishes the state of a fold through tiers, as a compactor does. It waits for merges
// after each publish.
type fixture struct {
	*foldtest.World
	t         *testing.T
	options   tiers.Options
	blobs     *memblob.Store
	ids       *ids.Source
	hook      faultblob.Hook
	manifests *manifest.Store
	manifest  *manifest.Manifest // the newest manifest, or nil
	floor     string             // the orphan floor of the next manifest
	tiers     *tiers.Tiers
}

// now is the clock of a fixture. Its Sleep returns immediately.
type now func() time.Time

func (n now) Now() time.Time                             { return n() }
func (n now) Sleep(context.Context, time.Duration) error { return nil }

func newFixture(t *testing.T, options tiers.Options) *fixture {
	t.Helper()
	f := &fixture{World: foldtest.New(t), t: t, options: options}
	f.blobs = memblob.New(memblob.Options{Now: f.now})
	f.ids = ids.NewSource(f.now, nil)
	f.open()
	return f
}

func (f *fixture) now() time.Time { return f.Now }

// open loads the newest revision, as a new process does.
func (f *fixture) open() {
	f.t.Helper()
	store := faultblob.New(f.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		if f.hook == nil {
			return faultblob.None
		}
		return f.hook(op, key)
	})
	h := domain.Open(domain.Handle{Domain: foldtest.Domain, Store: store, Codec: codec, IDs: f.ids, Clock: now(f.now)})
	f.manifests = h.Manifests
	f.tiers = tiers.New(tiers.Config{Handle: h, Options: f.options, OnStored: func(time.Time) {}})
	if f.manifest != nil {
		f.State = f.load().State
	}
	f.tiers.Follow(f.manifest, false)
}

// publish publishes the rows that the fold has changed since the last publish.
func (f *fixture) publish() {
	f.t.Helper()
	changed := f.State.Changed()
	change, err := f.tiers.Store(f.t.Context(), changed)
	require.NoError(f.t, err)
	next := manifest.First(foldtest.Domain, f.ids.New(), "writer")
	base := ""
	if f.manifest != nil {
		next, base = f.manifest.Successor("writer"), f.manifest.BaseSnapshot.ID
	}
	next.FoldSeq, next.FoldTime, next.OrphanFloor = f.State.FoldSeq, f.State.FoldTime, f.floor
	next.Watermarks.CompleteThrough = ids.AtTime(f.Now)
	require.NoError(f.t, f.tiers.Include(next, &change))
	if next.BaseSnapshot.ID != base {
		f.State.Evict(snapshot.CutoffOf(next))
	}
	next.RowCounts = f.State.Counts()
	require.NoError(f.t, f.manifests.Publish(f.t.Context(), next))
	f.State.Drain()
	f.manifest = next
	f.tiers.Advance(next, &change)
	f.tiers.StartMerges(f.t.Context(), f.State)
	f.tiers.AwaitMerges()
}

// load reads the newest revision.
func (f *fixture) load() *snapshot.Snapshot {
	f.t.Helper()
	snap, err := snapshot.NewReader(foldtest.Domain, codec, f.manifests, now(f.now)).Current(f.t.Context())
	require.NoError(f.t, err)
	return snap
}

// verify compares the newest revision with the state in memory.
func (f *fixture) verify() {
	f.t.Helper()
	require.Empty(f.t, state.Diff(f.State, f.load().State, 5), "revision %d", f.manifest.Revision)
}

// fold folds payloads and publishes a revision. It does not call verify, because the state may be large.
func (f *fixture) fold(payloads ...event.Payload) {
	f.t.Helper()
	f.Pass(time.Millisecond)
	require.Equal(f.t, state.Folded, fold.Apply(f.State, f.Group(payloads...)).Row.Outcome)
	f.publish()
}

// run triggers a run and publishes a revision.
func (f *fixture) run(defs ...event.TaskDef) string {
	f.t.Helper()
	var p event.RunTriggered
	f.fold(f.Triggered(&p, defs...)...)
	return p.RunID
}

// endedRun adds a run whose only task has ended.
func (f *fixture) endedRun() string {
	f.t.Helper()
	run := f.run(foldtest.Task("a"))
	f.fold(f.Finished(run, "a", 1, event.Succeeded))
	return run
}

// rebase adds runs until two new bases are published. One base is not enough, because it may contain a state from
// before the call.
func (f *fixture) rebase() {
	f.t.Helper()
	bases := map[string]bool{f.manifest.BaseSnapshot.ID: true}
	for range 20 {
		f.endedRun()
		if bases[f.manifest.BaseSnapshot.ID] = true; len(bases) > 2 {
			return
		}
	}
	f.t.Fatal("no new base was published")
}

// counts returns a counter of all later operations for which match returns true. Operations may run in parallel.
func (f *fixture) counts(match func(op faultblob.Op, key string) bool) *atomic.Int64 {
	var n atomic.Int64
	f.hook = func(op faultblob.Op, key string) faultblob.Fault {
		if match(op, key) {
			n.Add(1)
		}
		return faultblob.None
	}
	return &n
}

// named returns the definitions of n tasks.
func named(n int) []event.TaskDef {
	defs := make([]event.TaskDef, n)
	for i := range defs {
		defs[i] = foldtest.Task(fmt.Sprintf("t%03d", i))
	}
	return defs
}
