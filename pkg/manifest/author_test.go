package manifest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

var epoch = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// tick is a clock that moves only when told, and does not wait.
type tick struct {
	mu   sync.Mutex
	now  time.Time
	skew time.Duration
	of   *tick // the clock that this one is off by skew
}

func (c *tick) Now() time.Time {
	if c.of != nil {
		return c.of.Now().Add(c.skew)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *tick) Sleep(ctx context.Context, d time.Duration) error {
	c.pass(d)
	return ctx.Err()
}

func (c *tick) pass(d time.Duration) {
	if c.of != nil {
		c = c.of
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// ticking is a world with a clock of its own.
func ticking() (*world, *tick) {
	w, c := newWorld(), &tick{now: epoch}
	w.clock = c
	return w, c
}

// author is a process that publishes as a compactor does: a file a revision, and
// now and then a base in place of them, which is begun before and published after
// other revisions.
type author struct {
	w         *world
	s         *manifest.Store
	ids       *ids.Source
	clock     *tick
	collector *manifest.Collector

	cur     *manifest.Manifest
	rewrite *base
	pending string // a file that was written for the revision after cur
}

// base stands for the deltas of a manifest.
type base struct {
	of   *manifest.Manifest
	file manifest.File
}

func (w *world) author(c *tick) *author {
	s, source := w.process(c)
	return &author{w: w, s: s, ids: source, clock: c, collector: manifest.NewCollector(s, manifest.Policy{})}
}

func (w *world) write(ctx context.Context, tier, id string) (manifest.File, error) {
	data := []byte("rows of " + id)
	f := manifest.File{
		Table: "runs", Key: manifest.StateKey(domain, "runs", tier, id), Size: int64(len(data)), CRC32C: blob.CRC32C(data),
	}
	_, err := w.blobs.Create(ctx, f.Key, data)
	return f, err
}

func (a *author) load(ctx context.Context) error {
	m, err := a.s.Load(ctx)
	if err != nil && !errors.Is(err, manifest.ErrNone) {
		return err
	}
	a.cur, a.rewrite, a.pending = m, nil, ""
	return nil
}

// begin writes the file of the next revision.
func (a *author) begin(ctx context.Context) error {
	id := a.ids.New()
	if _, err := a.w.write(ctx, manifest.TierL0, id); err != nil {
		return err
	}
	a.pending = id
	return nil
}

// beginRewrite writes a base for what the current manifest refers to.
func (a *author) beginRewrite(ctx context.Context) (err error) {
	if a.cur == nil || a.rewrite != nil {
		return nil
	}
	a.rewrite = &base{of: a.cur}
	a.rewrite.file, err = a.w.write(ctx, manifest.TierBase, a.ids.New())
	return err
}

// publish publishes what begin wrote; if another author was faster, what that one
// published is loaded.
func (a *author) publish(ctx context.Context) error {
	if a.pending == "" {
		if err := a.begin(ctx); err != nil {
			return err
		}
	}
	next := manifest.First(domain, lineage, "author")
	if a.cur != nil {
		next = a.cur.Successor("author")
	}
	data := []byte("rows of " + a.pending)
	next.L0 = append(next.L0, manifest.Delta{ID: a.pending, Revision: next.Revision, Files: []manifest.File{{
		Table: "runs", Key: manifest.StateKey(domain, "runs", manifest.TierL0, a.pending), Size: int64(len(data)), CRC32C: blob.CRC32C(data),
	}}})
	floor := min(ids.AtTime(a.clock.Now().Add(-10*time.Minute)), a.pending)
	if r := a.rewrite; r != nil {
		floor = min(floor, ids.AtTime(ids.Time(id(r.file.Key))))
		if a.cur.Revision > r.of.Revision && manifest.NamedFrom(a.cur.OrphanFloor, []manifest.File{r.file}) {
			next.BaseSnapshot = manifest.BaseSnapshot{ID: id(r.file.Key), Files: []manifest.File{r.file}}
			next.L0 = next.L0[len(r.of.L0):]
			a.rewrite = nil
		}
	}
	next.OrphanFloor, next.L0Count = max(next.OrphanFloor, floor), len(next.L0)
	err := a.s.Publish(ctx, next)
	if errors.Is(err, manifest.ErrConflict) || errors.Is(err, manifest.ErrNotCommitted) {
		return a.load(ctx)
	}
	if err != nil {
		return err
	}
	a.cur, a.pending = next, ""
	return nil
}

func id(key string) string {
	name := key[strings.LastIndexByte(key, '/')+1:]
	return strings.TrimSuffix(name, ".parquet")
}

// collect collects until there is nothing more to do.
func (a *author) collect(ctx context.Context) error {
	for range 1000 {
		more, err := a.collector.Retain(ctx)
		if err != nil {
			return err
		}
		left, err := a.collector.Collect(ctx)
		if err != nil || !more && !left {
			return err
		}
	}
	return errors.New("collection does not end")
}

// live publishes revisions in even steps, and rewrites the base now and then.
func (a *author) live(t *testing.T, n int, step time.Duration) {
	t.Helper()
	for range n {
		a.clock.pass(step)
		if a.cur != nil && a.cur.Revision%7 == 3 {
			require.NoError(t, a.beginRewrite(t.Context()))
		}
		require.NoError(t, a.publish(t.Context()))
	}
}

func (w *world) keys(ctx context.Context, prefix string) []string {
	var keys []string
	for object, err := range w.blobs.List(ctx, blob.ListOptions{Prefix: prefix}) {
		if err != nil {
			panic(err) // in memory: cannot be
		}
		keys = append(keys, object.Key)
	}
	return keys
}

// audit reads the world as it lies: every revision that exists and every pin, with
// all of their files, and there is a newest revision if there ever was one. It
// gives the kept revisions, and the files that none of them refers to.
func (w *world) audit(ctx context.Context) (kept []int64, orphans []string, err error) {
	s := manifest.New(manifest.Config{Domain: domain, Store: w.blobs, IDs: ids.NewSource(w.clock.Now, nil), Clock: w.clock})
	referenced := map[string]bool{}
	for revision, err := range s.List(ctx) {
		if err != nil {
			return nil, nil, err
		}
		m, err := s.LoadAt(ctx, revision)
		if err != nil {
			return nil, nil, fmt.Errorf("revision %d is listed: %w", revision, err)
		}
		for _, f := range m.Files() {
			if _, err := s.LoadFile(ctx, f); err != nil {
				return nil, nil, fmt.Errorf("revision %d: %w", revision, err)
			}
			referenced[f.Key] = true
		}
		kept = append(kept, revision)
	}
	newest, err := s.Load(ctx)
	if err != nil && !errors.Is(err, manifest.ErrNone) {
		return nil, nil, err
	}
	if newest != nil && !slices.Contains(kept, newest.Revision) {
		return nil, nil, fmt.Errorf("the newest revision, %d, is not listed", newest.Revision)
	}
	for _, key := range w.keys(ctx, "state/") {
		if !referenced[key] {
			orphans = append(orphans, key)
		}
	}
	return kept, orphans, nil
}
