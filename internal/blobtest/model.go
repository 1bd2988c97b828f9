package blobtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// contextOf returns the context of a test or of a rapid check.
func contextOf(t require.TestingT) context.Context {
	if c, ok := t.(interface{ Context() context.Context }); ok {
		return c.Context()
	}
	return context.Background()
}

// model compares a store with a map, for the keys under one folder.
type model struct {
	store   blob.Store
	folder  string // the folder's name, which ends in a slash
	objects map[string]modelObject
	used    map[int64]bool // versions that the store has used so far
}

type modelObject struct {
	data    []byte
	version int64
}

func newModel(s blob.Store, folder string) *model {
	return &model{store: s, folder: folder, objects: map[string]modelObject{}, used: map[int64]bool{}}
}

// step is one operation, drawn in advance so that goroutines can run it.
type step struct {
	op   string
	key  string
	data []byte
	text string // list prefix
	from string // list start
	old  bool   // replace with a version that is not current
}

func drawStep(t *rapid.T) step {
	folder := rapid.SampledFrom([]string{"", "d/", "d-/", "d/e/", "d=1%/"})
	key := func(label string) string {
		// Names of files end in a digit and names of folders do not, so no path is both a file and a folder.
		return folder.Draw(t, label+" folder") + rapid.SampledFrom([]string{"a", "a-", "b"}).Draw(t, label) +
			rapid.StringMatching(`[0-2]`).Draw(t, label+" number")
	}
	return step{
		op: rapid.SampledFrom([]string{
			"create", "create", "create_from", "replace", "replace", "put", "get", "open", "head", "list", "delete", "delete",
		}).Draw(t, "op"),
		key:  key("key"),
		data: rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "data"),
		text: rapid.SampledFrom([]string{"", "d", "d/", "d-", "d/e", "a", "b1", "d/e/a-"}).Draw(t, "prefix"),
		from: rapid.SampledFrom([]string{"", "a1", "d", "d/", "d/a1", "d/e/a-2", "z"}).Draw(t, "start"),
		old:  rapid.Bool().Draw(t, "old"),
	}
}

// run executes a step on the store and on the map, and compares the results.
func (m *model) run(t require.TestingT, st step) {
	ctx, key := contextOf(t), m.folder+st.key
	present, exists := m.objects[key]
	switch st.op {
	case "create":
		o, err := m.store.Create(ctx, key, st.data)
		m.wrote(t, st, o, err, exists, blob.ErrExists)
	case "create_from":
		o, err := m.store.CreateFrom(ctx, key, bytes.NewReader(st.data))
		m.wrote(t, st, o, err, exists, blob.ErrExists)
	case "replace":
		version := present.version
		if st.old {
			version++
		}
		o, err := m.store.Replace(ctx, key, st.data, version)
		m.wrote(t, st, o, err, st.old, blob.ErrMismatch)
	case "put":
		o, err := m.store.Put(ctx, key, st.data)
		m.wrote(t, st, o, err, false, nil)
	case "delete":
		require.NoError(t, m.store.Delete(ctx, key))
		delete(m.objects, key)
	case "list":
		m.compareListing(t, st.text, st.from)
	default:
		m.compareObject(t, st.op, key)
	}
}

// wrote checks the result of a write. If refused is true, err must match wantErr. Otherwise err must be nil, and wrote
// records the written object.
func (m *model) wrote(t require.TestingT, st step, o blob.Object, err error, refused bool, wantErr error) {
	key := m.folder + st.key
	if refused {
		require.ErrorIs(t, err, wantErr, "%s of %q", st.op, key)
		return
	}
	require.NoError(t, err, "%s of %q", st.op, key)
	require.EqualValues(t, len(st.data), o.Size)
	require.Equal(t, blob.CRC32C(st.data), o.CRC32C)
	require.False(t, m.used[o.Version], "version %d of %q was used before", o.Version, key)
	m.used[o.Version] = true
	m.objects[key] = modelObject{data: bytes.Clone(st.data), version: o.Version}
}

func (m *model) compareObject(t require.TestingT, op, key string) {
	var data []byte
	var o blob.Object
	var err error
	switch op {
	case "get":
		data, o, err = m.store.Get(contextOf(t), key)
	case "open":
		var r io.ReadCloser
		if r, o, err = m.store.Open(contextOf(t), key); err == nil {
			data, err = io.ReadAll(r)
			require.NoError(t, r.Close())
		}
	case "head":
		o, err = m.store.Head(contextOf(t), key)
	}
	want, exists := m.objects[key]
	if !exists {
		require.ErrorIs(t, err, blob.ErrNotFound, "%s of %q", op, key)
		return
	}
	require.NoError(t, err, "%s of %q", op, key)
	require.Equal(t, want.version, o.Version, "%s of %q", op, key)
	require.EqualValues(t, len(want.data), o.Size, "%s of %q", op, key)
	if op != "head" {
		require.True(t, bytes.Equal(want.data, data), "%s of %q returns other bytes", op, key)
	}
}

func (m *model) compareListing(t require.TestingT, prefix, from string) {
	var want []string
	for key := range m.objects {
		if strings.HasPrefix(key, m.folder+prefix) && key > m.folder+from {
			want = append(want, key)
		}
	}
	slices.Sort(want)
	got := list(t, m.store, blob.ListOptions{Prefix: m.folder + prefix, StartAfter: m.folder + from})
	require.True(t, slices.Equal(want, keys(got)), "List prefix %q after %q: want %q, got %q", prefix, from, want, keys(got))
	for _, o := range got {
		require.Equal(t, m.objects[o.Key].version, o.Version, "List of %q", o.Key)
		require.EqualValues(t, len(m.objects[o.Key].data), o.Size, "List of %q", o.Key)
	}
}

func behavesAsMap(t *testing.T, s blob.Store) {
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		m := newModel(s, fmt.Sprintf("round-%d/", round))
		for _, st := range rapid.SliceOfN(rapid.Custom(drawStep), 1, 60).Draw(rt, "steps") {
			m.run(rt, st)
		}
		m.compareListing(rt, "", "")
	})
}

func concurrentMaps(t *testing.T, s blob.Store) {
	const goroutines = 4
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		var wg sync.WaitGroup
		var problems collector
		for g := range goroutines {
			steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 15).Draw(rt, fmt.Sprintf("steps of %d", g))
			// The folders of all goroutines have the same parent, so that the goroutines create and remove folders in
			// it concurrently.
			m := newModel(s, fmt.Sprintf("shared-%d/g%d/", round, g))
			wg.Go(func() {
				for _, st := range steps {
					m.run(&problems, st)
				}
				m.compareListing(&problems, "", "")
				for key := range m.objects {
					m.run(&problems, step{op: "delete", key: strings.TrimPrefix(key, m.folder)})
				}
			})
		}
		wg.Wait()
		require.False(rt, problems.failed.Load(), "%s", problems.String())
		require.Empty(rt, list(rt, s, blob.ListOptions{Prefix: fmt.Sprintf("shared-%d/", round)}))
	})
}

// collector lets goroutines use package require, whose FailNow may only be called by the test's own goroutine. It
// records failures and continues.
type collector struct {
	failed atomic.Bool
	mu     sync.Mutex
	text   strings.Builder
}

// Errorf implements [require.TestingT].
func (c *collector) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(&c.text, format+"\n", args...)
}

// FailNow implements [require.TestingT].
func (c *collector) FailNow() { c.failed.Store(true) }

func (c *collector) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}
