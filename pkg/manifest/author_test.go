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

// tick is a manual clock. Sleep advances it and returns immediately. If tick has a reference to another clock, it
// shows the time of that clock plus skew.
type tick struct {
	mu        sync.Mutex
	now       time.Time
	skew      time.Duration
	reference *tick
}

func (c *tick) Now() time.Time {
	if c.reference != nil {
		return c.reference.Now().Add(c.skew)
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
	if c.reference != nil {
		c = c.reference
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// newTickFixture returns a fixture with a manual clock.
func newTickFixture() (*fixture, *tick) {
	fx, c := newFixture(), &tick{now: epoch}
	fx.clock = c
	return fx, c
}

// author is a process that publishes as a compactor does: one file per revision, and sometimes a base that replaces
// these files. Between writing a base and publishing it, the author publishes other revisions.
type author struct {
	fx        *fixture
	s         *manifest.Store
	ids       *ids.Source
	clock     *tick
	collector *manifest.Collector

	cur     *manifest.Manifest
	rewrite *base
	pending string // the id of a file written for the revision after cur
}

// base is a merge of the deltas of a manifest.
type base struct {
	of   *manifest.Manifest
	file manifest.File
}

func (fx *fixture) author(c *tick) *author {
	s, source := fx.process(c)
	return &author{fx: fx, s: s, ids: source, clock: c, collector: manifest.NewCollector(s, manifest.Policy{})}
}

func (fx *fixture) write(ctx context.Context, tier, id string) (manifest.File, error) {
	data := []byte("rows of " + id)
	f := manifest.File{
		Table: "runs", Key: manifest.StateKey(domain, "runs", tier, id), Size: int64(len(data)), CRC32C: blob.CRC32C(data),
	}
	_, err := fx.blobs.Create(ctx, f.Key, data)
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
	if _, err := a.fx.write(ctx, manifest.TierL0, id); err != nil {
		return err
	}
	a.pending = id
	return nil
}

// beginRewrite writes a base that is to replace the files of the current manifest.
func (a *author) beginRewrite(ctx context.Context) (err error) {
	if a.cur == nil || a.rewrite != nil {
		return nil
	}
	a.rewrite = &base{of: a.cur}
	a.rewrite.file, err = a.fx.write(ctx, manifest.TierBase, a.ids.New())
	return err
}

// publish publishes the file that begin wrote. On a conflict it loads the newest
// revision.
func (a *author) publish(ctx context.Context) error {
	if a.pending == "" {
		if err := a.begin(ctx); err != nil {
			return err
		}
	}
	next := manifest.First(domain, timeline, "author")
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

// collect collects until no work remains.
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

// publishMany makes the author publish n revisions, one per step. Sometimes the author also rewrites the base.
func (a *author) publishMany(t *testing.T, n int, step time.Duration) {
	t.Helper()
	for range n {
		a.clock.pass(step)
		if a.cur != nil && a.cur.Revision%7 == 3 {
			require.NoError(t, a.beginRewrite(t.Context()))
		}
		require.NoError(t, a.publish(t.Context()))
	}
}

func (fx *fixture) keys(ctx context.Context, prefix string) []string {
	var keys []string
	for object, err := range fx.blobs.List(ctx, blob.ListOptions{Prefix: prefix}) {
		if err != nil {
			panic(err) // memblob.Store does not fail
		}
		keys = append(keys, object.Key)
	}
	return keys
}

// audit reads every revision and every pin, with all of their files. It returns an error if one of these objects is
// missing or damaged, or if the newest revision is not listed. It returns the kept revisions, and the files that none
// of them references.
func (fx *fixture) audit(ctx context.Context) (kept []int64, orphans []string, err error) {
	s := manifest.New(manifest.Config{Domain: domain, Store: fx.blobs, IDs: ids.NewSource(fx.clock.Now, nil), Clock: fx.clock})
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
	for _, key := range fx.keys(ctx, "state/") {
		if !referenced[key] {
			orphans = append(orphans, key)
		}
	}
	return kept, orphans, nil
}
