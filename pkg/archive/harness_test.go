package archive_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

var (
	domain = ids.Domain{Tenant: "acme", Workspace: "prod"}
	epoch  = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
)

// still is a clock that moves only when told.
type still struct {
	mu  sync.Mutex
	now time.Time
}

func (c *still) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *still) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	return ctx.Err()
}

// world is a ledger and its archive.
type world struct {
	t      *testing.T
	blobs  *memblob.Store
	clock  *still
	source *ids.Source
	hook   faultblob.Hook
	// damaged are keys whose objects read as other bytes than they were written.
	damaged map[string]bool
	wrote   map[string][]byte // all entries, by name
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c := &still{now: epoch}
	return &world{
		t: t, blobs: memblob.New(memblob.Options{Now: c.Now}), clock: c, source: ids.NewSource(c.Now, nil),
		damaged: map[string]bool{}, wrote: map[string][]byte{},
	}
}

// flawed reads damaged objects.
type flawed struct {
	blob.Store

	damaged map[string]bool
}

func (s flawed) Get(ctx context.Context, key string) ([]byte, blob.Object, error) {
	data, object, err := s.Store.Get(ctx, key)
	if err == nil && s.damaged[key] {
		data = append(data, '!')
	}
	return data, object, err
}

func (w *world) store() blob.Store { return faultblob.New(flawed{w.blobs, w.damaged}, w.hook) }

// append writes an entry, an hour after the one before.
func (w *world) append(data string) string {
	w.t.Helper()
	return w.appendAt(w.clock.now.Add(time.Hour), data)
}

func (w *world) appendAt(at time.Time, data string) string {
	w.t.Helper()
	w.clock.now = at
	w.source.Observe(ids.AtTime(at))
	return w.put(w.source.New(), data)
}

func (w *world) put(id, data string) string {
	w.t.Helper()
	_, err := w.blobs.Create(w.t.Context(), ledger.Key(domain, id), []byte(data))
	require.NoError(w.t, err)
	w.wrote[id] = []byte(data)
	return id
}

// hours appends an entry an hour.
func (w *world) hours(n int) (names []string) {
	w.t.Helper()
	for i := range n {
		names = append(names, w.append(fmt.Sprintf("{\"event_type\":\"E%d\"}\n{\"event_type\":\"F%d\"}\n", i, i)))
	}
	return names
}

func (w *world) archiver(cfg archive.Config) *archive.Archiver {
	cfg.Domain, cfg.Store, cfg.Clock = domain, w.store(), w.clock
	return archive.New(cfg)
}

func stands(context.Context) (bool, error) { return true, nil }

// cut is that at a time.
func cut(at time.Time) string { return ids.AtTime(at) }

// archive goes on until there is no more, and gives how many calls it took.
func (w *world) archive(a *archive.Archiver, cut string) int {
	w.t.Helper()
	for n := 1; ; n++ {
		more, err := a.Archive(w.t.Context(), cut, stands)
		require.NoError(w.t, err)
		if !more {
			return n
		}
		require.Less(w.t, n, 1000, "it does not end")
	}
}

// keys are what lies below a prefix.
func (w *world) keys(prefix string) (keys []string) {
	w.t.Helper()
	for object, err := range w.blobs.List(w.t.Context(), blob.ListOptions{Prefix: prefix}) {
		require.NoError(w.t, err)
		keys = append(keys, strings.TrimPrefix(object.Key, prefix))
	}
	return keys
}

// whole checks that every entry that was written is found, once, as it was written:
// by a listing, and by its name. It gives how many rows of files hold them.
func (w *world) whole() {
	w.t.Helper()
	r := archive.NewReader(w.store(), domain)
	last, n := "", 0
	for e, err := range r.List(w.t.Context(), archive.Range{}) {
		require.NoError(w.t, err)
		require.Greater(w.t, e.ID, last)
		last = e.ID
		n++
		if len(e.Data) > 0 {
			require.Equal(w.t, w.wrote[e.ID], e.Data)
		}
	}
	require.Len(w.t, w.wrote, n)
	for id, want := range w.wrote {
		got, err := r.Read(w.t.Context(), id)
		require.NoError(w.t, err, id)
		require.Equal(w.t, string(want), string(got))
	}
}

// beside is an id next to another one.
func beside(id string) string {
	if id[25] == 'Z' {
		return id[:25] + "Y"
	}
	return id[:25] + "Z"
}

// held is how often entries are in files.
func (w *world) held() (times map[string]int) {
	w.t.Helper()
	times = map[string]int{}
	for _, key := range w.keys(archive.Prefix(domain)) {
		data, _, err := w.blobs.Get(w.t.Context(), archive.Prefix(domain)+key)
		require.NoError(w.t, err)
		entries, err := archive.Decode(data)
		require.NoError(w.t, err)
		require.Equal(w.t, archive.Prefix(domain)+key, archive.Key(domain, entries[0].ID))
		for _, e := range entries {
			times[e.ID]++
		}
	}
	return times
}
