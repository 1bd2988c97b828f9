package compactor_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
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

// steppedClock is a clock that only the methods pass and Sleep advance. Sleep does not block, with one exception: if
// stay is set, a sleep of a minute or more lasts until ctx ends.
type steppedClock struct {
	mu   sync.Mutex
	now  time.Time
	stay bool
}

func (c *steppedClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *steppedClock) Sleep(ctx context.Context, d time.Duration) error {
	if c.stay && d >= time.Minute {
		<-ctx.Done()
		return ctx.Err()
	}
	c.pass(d)
	return ctx.Err()
}

func (c *steppedClock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is the storage of a domain, with a clock and faults.
type world struct {
	*foldtest.World // makes events; its state is not used

	t     *testing.T
	blobs *memblob.Store
	clock *steppedClock
	ids   *ids.Source

	options   compactor.Options
	archiving chan struct{}

	mu   sync.Mutex
	hook faultblob.Hook
}

// The limits in the variable small are so low that a few rows fill the lower tiers and reach the higher ones. With the
// options in the variable files, a compactor stores all rows in files, and none inline.
var (
	small = compactor.Options{Tiers: tiers.Options{MaxDeltas: 4, MaxInline: 4000, MinBase: 50_000}}
	files = compactor.Options{Tiers: tiers.Options{MaxInline: -1}}
)

func newWorld(t *testing.T) *world {
	t.Helper()
	c := &steppedClock{now: foldtest.Epoch}
	return &world{
		World: foldtest.New(t), t: t, blobs: memblob.New(memblob.Options{Now: c.Now}), clock: c,
		ids: ids.NewSource(c.Now, nil),
	}
}

func (w *world) faults(hook faultblob.Hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = hook
}

// counts returns a counter. From now on, it counts each operation for which counted returns true. Operations may run in
// parallel.
func (w *world) counts(counted func(op faultblob.Op, key string) bool) *atomic.Int64 {
	var n atomic.Int64
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if counted(op, key) {
			n.Add(1)
		}
		return faultblob.None
	})
	return &n
}

func (w *world) store() blob.Store {
	return faultblob.New(w.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		w.mu.Lock()
		hook := w.hook
		w.mu.Unlock()
		if hook == nil {
			return faultblob.None
		}
		return hook(op, key)
	})
}

// handle opens the domain on a store. The manifests of the domain are in the world's own store, with its faults.
func (w *world) handle(store blob.Store) *domain.Handle {
	return domain.Open(domain.Handle{Domain: foldtest.Domain, Store: store, Manifests: w.manifests(), Codec: codec, IDs: w.ids, Clock: w.clock})
}

func (w *world) manifests() *manifest.Store {
	return manifest.New(manifest.Config{Domain: foldtest.Domain, Store: w.store(), IDs: w.ids, Clock: w.clock})
}

// open opens a compactor as a new process does: it loads the state from the store.
func (w *world) open(writer string, edits ...func(*compactor.Config)) *compactor.Compactor {
	w.t.Helper()
	cfg := compactor.Config{Handle: w.handle(w.store()), Writer: writer, Options: w.options, ArchiveSlots: w.archiving}
	for _, edit := range edits {
		edit(&cfg)
	}
	c, err := compactor.Open(w.t.Context(), cfg)
	require.NoError(w.t, err)
	return c
}

var codec = snapshot.NewCodec()

// append writes payloads as one entry and returns it.
func (w *world) append(payloads ...event.Payload) compactor.Entry {
	w.t.Helper()
	w.clock.pass(time.Millisecond)
	w.Now = w.clock.Now()
	var durable ledger.Entry
	a := ledger.NewAppender(ledger.Config{
		Domain: foldtest.Domain, Store: w.blobs, IDs: w.ids, Clock: w.clock, Logger: slog.New(slog.DiscardHandler),
		OnStored: func(e ledger.Entry) { durable = e },
	})
	group := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		group[i] = &event.Envelope{Domain: foldtest.Domain, Payload: p}
	}
	_, err := a.Append(w.t.Context(), group)
	require.NoError(w.t, err)
	return compactor.Entry{
		ID: durable.Name, Data: durable.Data, Stored: durable.Object.Updated,
		Proof: compactor.Proof{Version: durable.Object.Version, CRC32C: durable.Object.CRC32C},
	}
}

// trigger appends the trigger of a run and returns the run's id and the entry.
func (w *world) trigger(defs ...event.TaskDef) (string, compactor.Entry) {
	w.t.Helper()
	w.Now = w.clock.Now()
	p := &event.RunTriggered{RunID: w.ids.New()}
	return p.RunID, w.append(w.Triggered(p, defs...)...)
}

func (w *world) step(c *compactor.Compactor, entries ...compactor.Entry) compactor.Result {
	w.t.Helper()
	result, err := c.Step(w.t.Context(), compactor.Request{Entries: entries})
	require.NoError(w.t, err)
	return result
}

func (w *world) states(c *compactor.Compactor, run string) []string {
	snap, _ := c.Latest().Get()
	st, err := snap.WithRun(w.t.Context(), run)
	require.NoError(w.t, err)
	var states []string
	if st == nil {
		return states
	}
	st.TasksOf(run, func(t *state.Task) bool {
		states = append(states, fmt.Sprintf("%s=%s", t.TaskKey, t.State))
		return true
	})
	return states
}

func (w *world) repair() repair.Config {
	return repair.Config{
		Handle: w.handle(w.blobs),
		Writer: "repair",
	}
}

// verify replays the ledger and compares every row with the published state.
func (w *world) verify() {
	w.t.Helper()
	w.faults(nil)
	report, err := repair.Verify(w.t.Context(), w.repair())
	require.NoError(w.t, err)
	for _, problem := range report.Problems {
		if !strings.HasPrefix(problem, "output of task") && problem != "…" { // no worker has written outputs
			w.t.Error(problem)
		}
	}
	require.NotZero(w.t, report.Groups)
}
