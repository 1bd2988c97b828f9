// Package corpus writes large state folders for measurements and tests. They contain many assets, many runs in history,
// and many partitions. The package writes the files of the tiers with the product's own codecs, and one manifest that
// names them. Nothing is in the ledger, so `servo admin verify` rejects such a folder. The same size and seed produce
// the same rows.
package corpus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Size says how much a corpus contains.
type Size struct {
	Assets     int
	Runs       int // number of closed runs with one task each
	Partitions int // number of partitions, materialized or not; one asset has a tenth of them
	Tasks      int // number of tasks of one additional closed run, the newest one
}

// Sizes of corpora.
var (
	// Small is for tests.
	Small = Size{Assets: 200, Runs: 2_000, Partitions: 20_000, Tasks: 500}
	// Large is the size for which the benchmark limits the latencies of API calls.
	Large = Size{Assets: 10_000, Runs: 1_000_000, Partitions: 10_000_000, Tasks: 100_000}
)

// Rare says how rare cancelled runs are: one run in Rare is cancelled.
const Rare = 100_000

const (
	live      = 20  // number of runs that have just ended
	days      = 300 // period over which the runs are spread, in days
	smallest  = 10  // number of tenants of a small asset
	largest   = 100 // number of tenants of the large asset
	code      = "00000000000000aa"
	namespace = "mart"
)

// Corpus describes a corpus.
type Corpus struct {
	Size
	Domain ids.Domain
	// Now is the time of the corpus's newest rows.
	Now    time.Time
	Seed   uint64
	Assets []plan.Asset
	random *rand.Rand
}

// New returns the description of a corpus. It writes nothing.
func New(d ids.Domain, size Size, seed uint64, now time.Time) *Corpus {
	c := &Corpus{Size: size, Domain: d, Now: now.UTC().Truncate(time.Second), Seed: seed}
	large := size.Partitions / 10
	small := (size.Partitions - large) / max(1, size.Assets-1)
	for i := range size.Assets {
		n, tenants := small, smallest
		if i == 0 {
			n, tenants = large, largest
		}
		a := plan.Asset{
			Key: ids.AssetKey{Namespace: namespace, Name: fmt.Sprintf("asset%05d", i)}, Code: code, Work: plan.Work{SQL: "SELECT 1"},
			Owners: []string{"data@example.com"}, Partitions: c.space(max(1, n/tenants), tenants),
		}
		for _, dep := range []int{i - 1, i / 2} {
			if key := (ids.AssetKey{Namespace: namespace, Name: fmt.Sprintf("asset%05d", dep)}); i > 1 && dep > 0 && dep < i && !slices.Contains(a.Deps, key) {
				a.Deps = append(a.Deps, key)
			}
		}
		c.Assets = append(c.Assets, a)
	}
	return c
}

// space returns the partitions of an asset: one for each tenant on each day. The last day is two days before Now.
func (c *Corpus) space(days, tenants int) *space.Space {
	last := c.Now.AddDate(0, 0, -2)
	dates := space.Days(last.AddDate(0, 0, 1-days).Format(time.DateOnly), last.Format(time.DateOnly))
	names := make([]string, tenants)
	for i := range names {
		names[i] = fmt.Sprintf("t%03d", i)
	}
	return space.New(dates.Dimensions[0], space.Dimension{Name: "tenant", Kind: space.Static, Values: names})
}

// LargeAsset returns the key of the asset with the most partitions.
func (c *Corpus) LargeAsset() ids.AssetKey { return c.Assets[0].Key }

// RunID returns the id of a closed run of one task. Run 0 is the oldest one.
func (c *Corpus) RunID(i int) string {
	first := c.Now.Add(-days * 24 * time.Hour)
	span := days*24*time.Hour - 3*time.Hour
	return ids.AtTime(first.Add(time.Duration(i) * (span / time.Duration(max(1, c.Runs)))))
}

// LargeRun returns the id of the run with many tasks.
func (c *Corpus) LargeRun() string { return ids.AtTime(c.Now.Add(-2 * time.Hour)) }

// Write writes the corpus into an empty state folder.
func (c *Corpus) Write(ctx context.Context, dir string) (err error) {
	store, err := fileblob.Open(dir, fileblob.Options{NoSync: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	c.random = rand.New(rand.NewPCG(c.Seed, 0)) //nolint:gosec // repeatable
	h := domain.Open(domain.Handle{Domain: c.Domain, Store: store, Clock: fixed{c.Now}})
	w := &writer{Corpus: c, handle: h, history: map[string][]manifest.File{}}
	if err := w.partitions(ctx); err != nil {
		return err
	}
	if err := w.runs(ctx); err != nil {
		return err
	}
	return w.publish(ctx)
}

// fixed is a clock that stands still.
type fixed struct{ at time.Time }

func (f fixed) Now() time.Time                             { return f.at }
func (f fixed) Sleep(context.Context, time.Duration) error { return nil }

var _ clock.Clock = fixed{}

// writer writes a corpus.
type writer struct {
	*Corpus
	handle  *domain.Handle
	seq     int64
	history map[string][]manifest.File
	base    state.Rows
}

// store stores a file of history.
func (w *writer) store(ctx context.Context, rows *state.Rows, run string) error {
	files, err := w.handle.Codec.Encode(rows)
	if err != nil {
		return err
	}
	for _, f := range files {
		named := f.Named(w.Domain, manifest.TierHistory, w.handle.IDs.New())
		named.Run = run
		if _, err := w.handle.Store.Create(ctx, named.Key, f.Data); err != nil {
			return fmt.Errorf("write corpus: %w", err)
		}
		w.history[f.Table] = append(w.history[f.Table], named)
	}
	return nil
}

// meta returns the columns that every row has.
func (w *writer) meta(id string) state.Meta {
	w.seq++
	return state.Meta{Tenant: w.Domain.Tenant, Workspace: w.Domain.Workspace, Version: id, Seq: w.seq}
}

// publish writes the base and the first manifest.
func (w *writer) publish(ctx context.Context) error {
	h, now := w.handle, event.At(w.Now)
	m := manifest.First(w.Domain, h.IDs.New(), "corpus")
	files, err := h.Codec.Encode(&w.base)
	if err != nil {
		return err
	}
	m.FoldSeq, m.FoldTime = w.seq, now
	m.BaseSnapshot = manifest.BaseSnapshot{
		ID: h.IDs.New(), Revision: 1, PublishedAt: now, FoldSeq: w.seq, FoldTime: now,
		EntriesFrom: ids.AtTime(w.Now), PartitionsFrom: ids.AtTime(w.Now.Add(-time.Hour)),
	}
	for _, f := range files {
		named := f.Named(w.Domain, manifest.TierBase, m.BaseSnapshot.ID)
		if _, err := h.Store.Create(ctx, named.Key, f.Data); err != nil {
			return fmt.Errorf("write corpus: %w", err)
		}
		m.BaseSnapshot.Files = append(m.BaseSnapshot.Files, named)
	}
	m.History = map[string]manifest.File{}
	for table, segments := range w.history {
		data, index, err := manifest.EncodeIndex(manifest.IndexKey(w.Domain, table, h.IDs.New()), table, segments)
		if err != nil {
			return err
		}
		if _, err := h.Store.Create(ctx, index.Key, data); err != nil {
			return fmt.Errorf("write corpus: %w", err)
		}
		m.History[table] = index
	}
	m.Watermarks.CompleteThrough, m.Watermarks.CaughtUpAt = ids.AtTime(w.Now), now
	m.PublishedAt = now
	st, err := snapshot.Load(ctx, h.Codec, h.Manifests, m)
	if err != nil {
		return err
	}
	m.RowCounts = st.Counts()
	return h.Manifests.Publish(ctx, m)
}
