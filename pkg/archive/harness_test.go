package archive_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

var (
	domain = ids.Domain{Tenant: "acme", Workspace: "prod"}
	epoch  = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
)

// still is a manual clock. Sleep advances it and returns immediately.
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

// fixture is a ledger and its archive.
type fixture struct {
	t      *testing.T
	blobs  *memblob.Store
	clock  *still
	source *ids.Source
	hook   faultblob.Hook
	// damaged contains the keys of the objects whose content is modified when it is read.
	damaged map[string]bool
	wrote   map[string][]byte // all entries by id
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	c := &still{now: epoch}
	return &fixture{
		t: t, blobs: memblob.New(memblob.Options{Now: c.Now}), clock: c, source: ids.NewSource(c.Now, nil),
		damaged: map[string]bool{}, wrote: map[string][]byte{},
	}
}

// flawed is a store that modifies the content of damaged objects on reads.
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

func (fx *fixture) store() blob.Store { return faultblob.New(flawed{fx.blobs, fx.damaged}, fx.hook) }

// append advances the clock by an hour and writes an entry.
func (fx *fixture) append(data string) string {
	fx.t.Helper()
	return fx.appendAt(fx.clock.now.Add(time.Hour), data)
}

func (fx *fixture) appendAt(at time.Time, data string) string {
	fx.t.Helper()
	fx.clock.now = at
	fx.source.Observe(ids.AtTime(at))
	return fx.put(fx.source.New(), data)
}

func (fx *fixture) put(id, data string) string {
	fx.t.Helper()
	_, err := fx.blobs.Create(fx.t.Context(), ledger.Key(domain, id), []byte(data))
	require.NoError(fx.t, err)
	fx.wrote[id] = []byte(data)
	return id
}

// hours appends n entries, one per hour.
func (fx *fixture) hours(n int) (names []string) {
	fx.t.Helper()
	for i := range n {
		names = append(names, fx.append(fmt.Sprintf("{\"event_type\":\"E%d\"}\n{\"event_type\":\"F%d\"}\n", i, i)))
	}
	return names
}

func (fx *fixture) archiver(cfg archive.Config) *archive.Archiver {
	cfg.Domain, cfg.Store, cfg.Clock = domain, fx.store(), fx.clock
	return archive.New(cfg)
}

func stands(context.Context) (bool, error) { return true, nil }

// cutoff returns the history cutoff that corresponds to a time.
func cutoff(at time.Time) string { return ids.AtTime(at) }

// archive archives all entries below the cutoff and returns the number of calls.
func (fx *fixture) archive(a *archive.Archiver, cutoff string) int {
	fx.t.Helper()
	for n := 1; ; n++ {
		more, err := a.Archive(fx.t.Context(), cutoff, stands)
		require.NoError(fx.t, err)
		if !more {
			return n
		}
		require.Less(fx.t, n, 1000, "archiving does not end")
	}
}

// keys returns the keys below a prefix, without the prefix.
func (fx *fixture) keys(prefix string) (keys []string) {
	fx.t.Helper()
	for object, err := range fx.blobs.List(fx.t.Context(), blob.ListOptions{Prefix: prefix}) {
		require.NoError(fx.t, err)
		keys = append(keys, strings.TrimPrefix(object.Key, prefix))
	}
	return keys
}

// requireComplete requires that a listing yields every written entry once, and that List
// and Read return the bytes that were written.
func (fx *fixture) requireComplete() {
	fx.t.Helper()
	r := archive.NewReader(fx.store(), domain)
	last, n := "", 0
	for e, err := range r.List(fx.t.Context(), archive.Range{}) {
		require.NoError(fx.t, err)
		require.Greater(fx.t, e.ID, last)
		last = e.ID
		n++
		if len(e.Data) > 0 {
			require.Equal(fx.t, fx.wrote[e.ID], e.Data)
		}
	}
	require.Len(fx.t, fx.wrote, n)
	for id, want := range fx.wrote {
		got, err := r.Read(fx.t.Context(), id)
		require.NoError(fx.t, err, id)
		require.Equal(fx.t, string(want), string(got))
	}
}

// neighbor returns an id that differs from the given id only in the last character.
func neighbor(id string) string {
	if id[25] == 'Z' {
		return id[:25] + "Y"
	}
	return id[:25] + "Z"
}

// archived returns, for each archived entry, the number of files that contain it.
func (fx *fixture) archived() (times map[string]int) {
	fx.t.Helper()
	times = map[string]int{}
	for _, key := range fx.keys(archive.Prefix(domain)) {
		data, _, err := fx.blobs.Get(fx.t.Context(), archive.Prefix(domain)+key)
		require.NoError(fx.t, err)
		entries, err := archive.Decode(data)
		require.NoError(fx.t, err)
		require.Equal(fx.t, archive.Prefix(domain)+key, archive.Key(domain, entries[0].ID))
		for _, e := range entries {
			times[e.ID]++
		}
	}
	return times
}
