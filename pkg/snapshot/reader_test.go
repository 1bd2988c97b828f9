package snapshot_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
)

// still is a stopped clock. Its Sleep returns immediately.
type still struct{}

func (still) Now() time.Time                                   { return foldtest.Epoch }
func (still) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

var (
	acme  = foldtest.Domain
	codec = snapshot.NewCodec()
)

// fixture is a domain with a compactor, and a reader that reads the store as a reader in another process does.
type fixture struct {
	*foldtest.World // makes events; its state is not used

	t        testing.TB
	blobs    *memblob.Store
	ids      *ids.Source
	compact  *compactor.Compactor
	appender *ledger.Appender
	reader   *snapshot.Reader
	entry    compactor.Entry
	options  compactor.Options
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	fx := &fixture{World: foldtest.New(t), t: t, blobs: memblob.New(memblob.Options{Now: still{}.Now}), ids: ids.NewSource(still{}.Now, nil)}
	fx.appender = ledger.NewAppender(ledger.Config{
		Domain: acme, Store: fx.blobs, IDs: fx.ids, Clock: still{},
		OnStored: func(e ledger.Entry) { fx.entry = compactor.Entry{ID: e.Name, Data: e.Data, Stored: e.Object.Updated} },
	})
	fx.reader = fx.newReader()
	fx.open()
	return fx
}

func (fx *fixture) manifests() *manifest.Store {
	return manifest.New(manifest.Config{Domain: acme, Store: fx.blobs, IDs: fx.ids, Clock: still{}})
}

func (fx *fixture) newReader() *snapshot.Reader {
	return snapshot.NewReader(acme, codec, fx.manifests(), still{})
}

func (fx *fixture) open() {
	fx.t.Helper()
	var err error
	fx.compact, err = compactor.Open(fx.t.Context(), compactor.Config{
		Handle:  domain.Open(domain.Handle{Domain: acme, Store: fx.blobs, Manifests: fx.manifests(), Codec: codec, IDs: fx.ids, Clock: still{}}),
		Writer:  "test",
		Options: fx.options,
	})
	require.NoError(fx.t, err)
}

// publish folds payloads into a new revision.
func (fx *fixture) publish(payloads ...event.Payload) {
	fx.t.Helper()
	group := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		group[i] = &event.Envelope{Domain: acme, Payload: p}
	}
	_, err := fx.appender.Append(fx.t.Context(), group)
	require.NoError(fx.t, err)
	_, err = fx.compact.Step(fx.t.Context(), compactor.Request{Entries: []compactor.Entry{fx.entry}})
	require.NoError(fx.t, err)
}

func (fx *fixture) run(defs ...event.TaskDef) string {
	fx.t.Helper()
	p := &event.RunTriggered{RunID: fx.ids.New()}
	fx.publish(fx.Triggered(p, defs...)...)
	return p.RunID
}

// current reads the newest state, requires that it equals the compactor's, and returns it, together with the number
// of requests that the read made.
func (fx *fixture) current() (*snapshot.Snapshot, memblob.Stats) {
	fx.t.Helper()
	before := fx.blobs.Stats()
	snap, err := fx.reader.Current(fx.t.Context())
	require.NoError(fx.t, err)
	cost := fx.blobs.Stats().Sub(before)
	want, _ := fx.compact.Latest().Get()
	require.Equal(fx.t, want.Revision, snap.Revision)
	require.Empty(fx.t, state.Diff(want.State, snap.State, 10))
	require.Equal(fx.t, want.State.FoldSeq, snap.State.FoldSeq)
	require.Zero(fx.t, cost.Creates+cost.Puts+cost.Replaces+cost.Deletes, "a reader writes nothing")
	return snap, cost
}

func TestCurrentOfNewDomainIsEmpty(t *testing.T) {
	fx := newFixture(t)
	for range 2 {
		snap, _ := fx.current()
		require.Zero(t, snap.Revision)
		require.Zero(t, snap.State.Runs.Len())
	}
	fx.run(foldtest.Task("a"))
	snap, _ := fx.current()
	require.Equal(t, 1, snap.State.Runs.Len())
}

func TestWarmReaderReadsOnlyNewRevisions(t *testing.T) {
	fx := newFixture(t)
	run := fx.run(foldtest.Task("a"), foldtest.Task("b", "a"))
	for range 20 {
		fx.run(foldtest.Task("x"))
	}
	fx.current()
	_, cost := fx.current()
	require.Equal(t, int64(1), cost.Gets, "only a probe for the next revision")
	require.Zero(t, cost.Lists)

	fx.publish(fx.Finished(run, "a", 1, event.Succeeded))
	snap, cost := fx.current()
	require.Equal(t, state.TaskReady, snap.State.Tasks.Get(state.Key2{A: run, B: "b"}).State)
	require.Equal(t, int64(2), cost.Gets, "the manifest with its inline rows, and a probe for the next revision")
	require.Zero(t, cost.Lists)
}

// Await must not look for successors of the awaited revision.
func TestAwaitReadsNoFurtherThanNeeded(t *testing.T) {
	fx := newFixture(t)
	fx.run(foldtest.Task("a"))
	snap, _ := fx.current()
	fx.run(foldtest.Task("b"))
	fx.run(foldtest.Task("c"))
	await := func(after int64) (revision, gets int64) {
		before := fx.blobs.Stats()
		snap, err := fx.reader.Await(t.Context(), after)
		require.NoError(t, err)
		return snap.Revision, fx.blobs.Stats().Sub(before).Gets
	}
	revision, gets := await(snap.Revision - 1)
	require.Equal(t, []int64{snap.Revision, 0}, []int64{revision, gets}, "already read")
	revision, gets = await(snap.Revision)
	require.Equal(t, []int64{snap.Revision + 1, 1}, []int64{revision, gets}, "stops at the next revision")
	next, _ := fx.current()
	require.Equal(t, snap.Revision+2, next.Revision)
}

func TestSnapshotsAreImmutable(t *testing.T) {
	fx := newFixture(t)
	run := fx.run(foldtest.Task("a"))
	first, _ := fx.current()
	fx.publish(fx.Started(run, "a", 1))
	second, _ := fx.current()
	key := state.Key2{A: run, B: "a"}
	require.Equal(t, state.TaskReady, first.State.Tasks.Get(key).State)
	require.Equal(t, state.TaskRunning, second.State.Tasks.Get(key).State)
	require.Equal(t, int32(0), first.State.Runs.Get(run).TasksRunning)
}

func TestReaderAdvancesAcrossBaseRewrite(t *testing.T) {
	fx := newFixture(t)
	fx.options = compactor.Options{Tiers: tiers.Options{MaxDeltas: 4, MaxInline: 4000, MinBase: 50_000}}
	fx.open()
	run := fx.run(foldtest.Task("a"))
	stale := fx.newReader() // this reader reads again only after the publish of a base that contains later revisions
	_, err := stale.Current(t.Context())
	require.NoError(t, err)
	var base string
	for i := 0; base == "" || i < 20; i++ {
		require.Less(t, i, 200, "no base was written")
		fx.run(foldtest.Task(fmt.Sprint("x", i)))
		fx.compact.AwaitMerges()
		fx.current() // current compares the revision with the compactor's state
		m, err := fx.manifests().Load(t.Context())
		require.NoError(t, err)
		base = m.BaseSnapshot.ID
	}
	fx.publish(fx.Finished(run, "a", 1, event.Succeeded))
	_, cost := fx.current()
	require.Less(t, cost.Gets, int64(12), "a warm reader does not read the base")
	fx.reader = stale
	_, cost = fx.current()
	require.Equal(t, int64(1), cost.Lists, "a reader far behind loads the newest revision directly")
}

// Earlier builds of Servo did not record the revision of a base. Advance must not load such a base if the state that it
// advances already contains the rows of the base.
func TestAdvanceSkipsBaseThatIsLoaded(t *testing.T) {
	fx := newFixture(t)
	fx.options = compactor.Options{Tiers: tiers.Options{MaxDeltas: 2, MaxInline: 1000, MinBase: 10_000}}
	fx.open()
	load := func() *manifest.Manifest {
		m, err := fx.manifests().Load(t.Context())
		require.NoError(t, err)
		m.BaseSnapshot.Revision = 0
		return m
	}
	fx.run(foldtest.Task("x"))
	for load().BaseSnapshot.ID == "" {
		fx.run(foldtest.Task("x"))
		fx.compact.AwaitMerges()
	}
	fx.options = compactor.Options{} // with the default options, no second base is written
	fx.open()
	from := load()
	own, err := snapshot.Load(t.Context(), codec, fx.manifests(), from)
	require.NoError(t, err)
	fx.run(foldtest.Task("x"))
	m := load()
	require.Equal(t, from.BaseSnapshot.ID, m.BaseSnapshot.ID)
	before := fx.blobs.Stats()
	own, err = snapshot.Advance(t.Context(), codec, fx.manifests(), from, own, m)
	require.NoError(t, err)
	require.Less(t, fx.blobs.Stats().Sub(before).Gets, int64(len(m.BaseSnapshot.Files)))
	want, _ := fx.compact.Latest().Get()
	require.Empty(t, state.Diff(want.State, own, 5))
}

func TestNewReaderSeesNewTimeline(t *testing.T) {
	fx := newFixture(t)
	run := fx.run(foldtest.Task("a"))
	fx.current()
	_, err := repair.Rebuild(t.Context(), repair.Config{
		Handle: domain.Open(domain.Handle{Domain: acme, Store: fx.blobs, Manifests: fx.manifests(), Codec: codec, IDs: fx.ids}),
		Writer: "rebuild",
	})
	require.NoError(t, err)
	fx.open()
	fx.publish(fx.Started(run, "a", 1))
	fx.reader = fx.newReader() // the reader of a new process sees the new timeline immediately
	snap, _ := fx.current()
	require.Equal(t, state.TaskRunning, snap.State.Tasks.Get(state.Key2{A: run, B: "a"}).State)
	fx.publish(fx.Finished(run, "a", 1, event.Succeeded))
	snap, _ = fx.current()
	require.Equal(t, state.RunSucceeded, snap.State.Runs.Get(run).State)
}

// For ten seconds, a running reader does not read the boundary. Then it reads the boundary, and finds the new timeline.
func TestWarmReaderSeesNewTimelineAfterTrustWindow(t *testing.T) {
	fx := newFixture(t)
	run := fx.run(foldtest.Task("a"))
	at := &at{now: foldtest.Epoch}
	fx.reader = snapshot.NewReader(acme, codec,
		manifest.New(manifest.Config{Domain: acme, Store: fx.blobs, IDs: fx.ids, Clock: at}), at)
	fx.current()
	_, err := repair.Rebuild(t.Context(), repair.Config{
		Handle: domain.Open(domain.Handle{Domain: acme, Store: fx.blobs, Manifests: fx.manifests(), Codec: codec, IDs: fx.ids}),
		Writer: "rebuild",
	})
	require.NoError(t, err)
	fx.open()
	fx.publish(fx.Started(run, "a", 1))
	at.now = at.now.Add(10 * time.Second)
	snap, _ := fx.current()
	require.Equal(t, state.TaskRunning, snap.State.Tasks.Get(state.Key2{A: run, B: "a"}).State)
}

// at is a clock that a test sets.
type at struct{ now time.Time }

func (c *at) Now() time.Time                                 { return c.now }
func (*at) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// Callers that wait during a read must share the next read. The test fails if join returns a new read for each
// caller, or if Current does not call begin.
func TestWaitingCallersShareNextRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fx := newFixture(t)
		fx.run(foldtest.Task("a"))
		release, blocked := make(chan struct{}), make(chan struct{})
		reads := 0
		slow := faultblob.New(fx.blobs, func(op faultblob.Op, key string) faultblob.Fault {
			if op == faultblob.Get && strings.HasPrefix(key, "hints/") {
				if reads++; reads == 1 {
					close(blocked)
					<-release
				}
			}
			return faultblob.None
		})
		reader := snapshot.NewReader(acme, codec,
			manifest.New(manifest.Config{Domain: acme, Store: slow, IDs: fx.ids, Clock: still{}}), still{})
		got := make(chan int64, 10)
		ask := func(ctx context.Context) {
			snap, err := reader.Current(ctx)
			if err != nil {
				got <- -1
				return
			}
			got <- snap.Revision
		}
		go ask(t.Context())
		<-blocked
		ctx, cancel := context.WithCancel(t.Context())
		go ask(ctx)
		for range 5 {
			go ask(t.Context())
		}
		synctest.Wait()
		before := fx.blobs.Stats()
		fx.run(foldtest.Task("b"))
		wrote := fx.blobs.Stats().Sub(before).Gets
		cancel()
		require.Equal(t, int64(-1), <-got, "only the cancelled caller fails")
		close(release)
		require.Equal(t, int64(2), <-got, "the first read started before the publish, and lists after it")
		for range 5 {
			require.Equal(t, int64(2), <-got)
		}
		require.LessOrEqual(t, fx.blobs.Stats().Sub(before).Gets-wrote, int64(7), "two reads for six callers")
	})
}

func TestAwaitReturnsNextRevision(t *testing.T) {
	fx := newFixture(t)
	got := make(chan int64, 1)
	reader := fx.newReader()
	go func() {
		snap, err := reader.Await(t.Context(), 1)
		if err != nil {
			t.Errorf("await: %v", err)
			return
		}
		got <- snap.Revision
	}()
	fx.run(foldtest.Task("a"))
	require.Empty(t, got)
	fx.run(foldtest.Task("b"))
	require.Equal(t, int64(2), <-got)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := reader.Await(ctx, 2)
	require.ErrorIs(t, err, context.Canceled)
}

// A missing file is damage, unless the collector has deleted its revision during the read.
func TestCurrentNamesRepairForMissingFile(t *testing.T) {
	fx := newFixture(t)
	fx.options = compactor.Options{Tiers: tiers.Options{MaxInline: -1}}
	fx.open()
	fx.run(foldtest.Task("a"))
	for object, err := range fx.blobs.List(t.Context(), blob.ListOptions{Prefix: manifest.StatePrefix(acme)}) {
		require.NoError(t, err)
		require.NoError(t, fx.blobs.Delete(t.Context(), object.Key))
		break
	}
	_, err := fx.reader.Current(t.Context())
	require.ErrorIs(t, err, manifest.ErrMissing)
	require.ErrorContains(t, err, "servo admin rebuild")
}
