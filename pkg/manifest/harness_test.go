package manifest_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

// now returns the current time, which is virtual in a synctest bubble.
func now() time.Time { return clock.System{}.Now() }

var domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

var timeline = ids.AtTime(time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC))

// fixture is the storage of a domain, with faults that a test injects.
type fixture struct {
	blobs *memblob.Store
	clock clock.Clock

	mu   sync.Mutex
	hook faultblob.Hook
}

func newFixture() *fixture {
	return &fixture{blobs: memblob.New(memblob.Options{}), clock: clock.System{}}
}

// writer returns the store of a new process, with its own ids and caches.
func (fx *fixture) writer() *manifest.Store {
	s, _ := fx.process(fx.clock)
	return s
}

// process returns a writer that uses clock c, and its id source.
func (fx *fixture) process(c clock.Clock) (*manifest.Store, *ids.Source) {
	faulty := faultblob.New(fx.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		fx.mu.Lock()
		hook := fx.hook
		fx.mu.Unlock()
		if hook == nil {
			return faultblob.None
		}
		return hook(op, key)
	})
	source := ids.NewSource(c.Now, nil)
	return manifest.New(manifest.Config{Domain: domain, Store: faulty, IDs: source, Clock: c}), source
}

// faults sets the hook that decides which operations fail.
func (fx *fixture) faults(hook faultblob.Hook) {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	fx.hook = hook
}

// nth returns a hook that makes the n-th operation of the given kind fail, counting from 1.
func nth(op faultblob.Op, n int, fault faultblob.Fault) faultblob.Hook {
	var mu sync.Mutex
	seen := 0
	return func(o faultblob.Op, _ string) faultblob.Fault {
		mu.Lock()
		defer mu.Unlock()
		if o != op {
			return faultblob.None
		}
		if seen++; seen == n {
			return fault
		}
		return faultblob.None
	}
}

// boundary replaces the boundary as retention and rebuilds do.
func (fx *fixture) boundary(t *testing.T, timeline string, through int64) {
	t.Helper()
	_, version, err := fx.writer().Boundary(t.Context())
	require.NoError(t, err)
	data := fmt.Appendf(nil, `{"timeline":%q,"deleted_through":%d}`, timeline, through)
	_, err = fx.blobs.Replace(t.Context(), manifest.BoundaryKey(domain), data, version)
	require.NoError(t, err)
}

// collect pins some revisions, raises the boundary, and deletes the revisions up to it.
func (fx *fixture) collect(t *testing.T, through int64, pinned ...int64) {
	t.Helper()
	for _, revision := range pinned {
		data, _, err := fx.blobs.Get(t.Context(), manifest.Key(domain, revision))
		require.NoError(t, err)
		_, err = fx.blobs.Create(t.Context(), manifest.PinKey(domain, revision), data)
		require.NoError(t, err)
	}
	fx.boundary(t, timeline, through)
	for revision := range through {
		require.NoError(t, fx.blobs.Delete(t.Context(), manifest.Key(domain, revision+1)))
	}
}

// publish publishes n revisions after cur, which may be nil.
func publish(t *testing.T, s *manifest.Store, cur *manifest.Manifest, n int) *manifest.Manifest {
	t.Helper()
	for range n {
		next := manifest.First(domain, timeline, "test")
		if cur != nil {
			next = cur.Successor("test")
		}
		require.NoError(t, s.Publish(t.Context(), next))
		cur = next
	}
	return cur
}

// full returns a manifest in which every field is set.
func full() *manifest.Manifest {
	id := ids.AtTime(time.Unix(1_700_000_000, 0))
	file := func(table, tier string) manifest.File {
		return manifest.File{
			Table: table, Key: manifest.StateKey(domain, table, tier, id), Size: 12, Rows: 3,
			CRC32C: blob.CRC32C([]byte("hello, world")), MinRun: id, MaxRun: id,
		}
	}
	m := manifest.First(domain, timeline, "compactor-1").Successor("compactor-1")
	m.Revision, m.Parent = 5, &manifest.Ref{Revision: 4, Nonce: id}
	m.Nonce = id
	m.PublishedAt = event.At(time.Unix(1_700_000_001, 0))
	m.FoldSeq = 7
	m.FoldTime = m.PublishedAt
	m.Watermarks = manifest.Watermarks{
		EventsProcessedThrough: id, LastProcessedFile: "ledger/x.json", LastProcessedAt: m.PublishedAt,
		CompleteThrough: id, CaughtUpAt: m.PublishedAt,
	}
	m.Wakeup = manifest.Wakeup{At: event.At(time.Unix(1_700_000_400, 0)), Through: event.At(time.Unix(1_699_999_800, 0))}
	m.BaseSnapshot = manifest.BaseSnapshot{
		ID: id, Revision: 2, PublishedAt: m.PublishedAt, Files: []manifest.File{file("runs", manifest.TierBase)},
		FoldSeq: 5, FoldTime: m.FoldTime, EntriesFrom: id, RunsFrom: "01GH5M5P000000000000000000",
	}
	m.L1 = []manifest.Delta{{ID: id, Revision: 3, Files: []manifest.File{file("runs", manifest.TierL1)}, Rows: 3, Bytes: 12}}
	row := manifest.NewRows("limits", 1, []byte(`[{"scope":"pool","name":"db","slots":2,"row_seq":7}]`))
	m.L0 = []manifest.Delta{
		{ID: id, Revision: 4, Files: []manifest.File{file("tasks", manifest.TierL0)}, Rows: 3, Bytes: 12},
		{ID: id, Revision: 5, Inline: []manifest.Rows{row}, Rows: 1, Bytes: int64(len(row.JSON))},
	}
	m.L0Count = 2
	m.L0Limits = manifest.L0Limits{MaxCount: 16, MaxBytes: 8 << 20}
	index := file("runs", manifest.TierHistory)
	index.Key = manifest.IndexKey(domain, "runs", id)
	m.History = map[string]manifest.File{"runs": index}
	m.OrphanFloor = id
	m.RowCounts = map[string]int64{"runs": 3, "tasks": 3}
	return m
}
