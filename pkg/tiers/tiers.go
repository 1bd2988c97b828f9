// Package tiers stores the rows of a domain's state in tiers. This package is not a stable API.
//
// Each publish adds a delta with the rows that it changes. Rows move up through tiers, which are merged concurrently
// with folding. So the cost of a publish depends on what it changes, a reader opens a bounded number of files, and the
// number of times that a row is rewritten grows with the logarithm of the state:
//
//   - a small delta is inline in the manifest;
//   - inline deltas are merged into an L0 delta, in files;
//   - L0 deltas are merged into one L1 delta. If each of several preceding L1 deltas is no larger than all deltas after
//     these L1 deltas together, the merge includes them;
//   - a new base is written when the deltas together are larger than half of the base. It omits the rows of closed
//     runs, which move to history.
//
// [Options] decides which merges are due, and a merge decides whether a manifest can include its
// result. Both decisions are pure. [Tiers] runs merges and writes files.
package tiers

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// KeepRuns is how long runs are kept by default: a year and a month, so that a run can be compared with the run a
// year before it.
const KeepRuns = 400 * 24 * time.Hour

// MinKeepRuns is the minimum of [Options.KeepRuns]: a run key refers to its run for this long.
const MinKeepRuns = fold.RunKeyTTL

const (
	maxDeltas = 16
	maxInline = 64 << 10
	minBase   = 8 << 20
	// keepEntries is how long the live state records entries by default. Ended runs stay in the live state equally long.
	// Older entries need no rows there, because their names are below the cutoff.
	keepEntries = state.ClosedAfter
)

// Options are the limits of tiers. The zero value selects the defaults.
type Options struct {
	// MaxDeltas is the number of L0 deltas in files at which these deltas are merged into one L1 delta. 0 means 16.
	MaxDeltas int
	// MaxInline is how many bytes of rows a manifest may contain before they are written to files. 0 means 64 KiB; a
	// negative value means no bytes.
	MaxInline int64
	// MinBase is the minimum total size of the deltas, in bytes, for which a new base is written. 0 means 8 MiB.
	MinBase int64
	// MaxSegment is the maximum number of rows that are encoded at once as a history segment. 0 means
	// [snapshot.MaxSegment].
	MaxSegment int
	// KeepEntries is how long the live state records a ledger entry. 0 means 15 minutes. If listings are not complete up
	// to the entry, the live state records it for longer.
	KeepEntries time.Duration
	// KeepRuns is how long runs are kept after they were triggered. 0 means the constant [KeepRuns].
	KeepRuns time.Duration
}

func (o Options) withDefaults() Options {
	o.MaxDeltas = cmp.Or(max(o.MaxDeltas, 0), maxDeltas)
	o.MaxInline = cmp.Or(o.MaxInline, maxInline)
	o.MinBase = cmp.Or(max(o.MinBase, 0), minBase)
	o.MaxSegment = cmp.Or(max(o.MaxSegment, 0), snapshot.MaxSegment)
	o.KeepEntries = cmp.Or(max(o.KeepEntries, 0), keepEntries)
	o.KeepRuns = cmp.Or(max(o.KeepRuns, 0), KeepRuns)
	return o
}

// Config contains the domain handle and the settings of a domain's tiers.
type Config struct {
	*domain.Handle
	Options
	// OnStored is called with the time at which the store has created a file. Merges call it concurrently.
	OnStored func(time.Time)
}

// Tiers are the tiers of a domain, as the writer that publishes its manifests uses them. Only one goroutine may use
// them, but any goroutine may call [Tiers.AwaitMerges].
type Tiers struct {
	cfg      Config
	manifest *manifest.Manifest // the current manifest, or nil
	cached   rowCache           // the row cache of manifest
	merges   []*merge
	running  sync.WaitGroup
	// unmergeable means that deltas could not be merged, because one of them could not be read.
	unmergeable atomic.Bool
}

// New returns tiers without a manifest.
func New(cfg Config) *Tiers {
	cfg.Options = cfg.withDefaults()
	return &Tiers{cfg: cfg}
}

// Follow makes m the current manifest. m was loaded from the store, or is nil if nothing was published. descends
// means that m is known to descend from the previous manifest, so that results of merges may still be used.
// Otherwise, the merges may belong to another timeline and are dropped.
func (t *Tiers) Follow(m *manifest.Manifest, descends bool) {
	if !descends {
		t.merges = nil
	}
	if m != t.manifest {
		t.cached = nil // another writer may have dropped rows from the deltas
	}
	t.manifest = m
}

// Change contains the rows that a publish changes, which are stored as a delta.
type Change struct {
	Delta manifest.Delta
	// Encoding is how long it took to encode files. It is 0 if the delta is inline.
	Encoding time.Duration

	rows   *state.Rows
	cached rowCache // the row cache of the manifest that includes the delta
}

// Store stores changed rows as a delta. If there are only a few rows, it stores them inline, in the delta itself.
// Store sets Encoding even if it fails.
func (t *Tiers) Store(ctx context.Context, changed *state.Rows) (Change, error) {
	c := Change{Delta: manifest.Delta{ID: t.cfg.IDs.New()}, rows: changed}
	if int64(changed.Len())*rowBytes > t.cfg.MaxInline {
		return c, t.storeFiles(ctx, &c)
	}
	rows, size, err := t.cfg.Codec.Inline(changed)
	if err != nil {
		return c, err
	}
	inline := size
	if t.manifest != nil {
		inline += inlineBytes(t.manifest.L0)
	}
	if inline > inlineSlack*t.cfg.MaxInline {
		return c, t.storeFiles(ctx, &c)
	}
	c.Delta.Inline, c.Delta.Rows, c.Delta.Bytes = rows, int64(changed.Len()), size
	return c, nil
}

func (t *Tiers) storeFiles(ctx context.Context, c *Change) error {
	began := t.cfg.Clock.Now()
	files, err := t.cfg.Codec.Encode(c.rows)
	c.Encoding = t.cfg.Clock.Now().Sub(began)
	if err != nil {
		return err
	}
	c.Delta, err = t.cfg.store(ctx, c.Delta.ID, files, manifest.TierL0)
	return err
}

// Include adds a change, and the results of finished merges, to the successor of the current
// manifest. The caller must have set the orphan floor of the successor.
func (t *Tiers) Include(next *manifest.Manifest, c *Change) (err error) {
	c.Delta.Revision = next.Revision
	if c.Delta.Rows > 0 {
		next.L0 = append(next.L0, c.Delta)
	}
	next.L0Limits = manifest.L0Limits{MaxCount: t.cfg.MaxDeltas, MaxBytes: t.cfg.MinBase}
	for _, r := range t.merges {
		if r.ready(next) {
			r.apply(next, event.At(t.cfg.Clock.Now()))
		}
	}
	c.cached, err = t.dropOverwritten(next, c)
	next.L0Count = len(next.L0)
	return err
}

// Advance makes the manifest next the current one. This manifest must include the change c, and must have been
// published.
func (t *Tiers) Advance(next *manifest.Manifest, c *Change) { t.manifest, t.cached = next, c.cached }

// Oldest returns the least id among the given one and the ids of the merges whose results a manifest may still include.
// The files of these merges have names at or above this id, and the process may still publish them.
func (t *Tiers) Oldest(id string) string {
	for _, r := range t.merges {
		if r.pending(t.manifest) {
			id = min(id, r.id)
		}
	}
	return id
}

// Ready reports whether the next manifest would include the result of a merge.
func (t *Tiers) Ready() bool {
	return slices.ContainsFunc(t.merges, func(r *merge) bool { return r.ready(t.manifest) })
}

// StartMerges starts the merges that are due and not yet running. st is the state of the current manifest.
func (t *Tiers) StartMerges(ctx context.Context, st *state.State) {
	t.merges = slices.DeleteFunc(t.merges, func(r *merge) bool { return !r.pending(t.manifest) })
	running := make([]job, len(t.merges))
	for i, r := range t.merges {
		running[i] = r.job
	}
	for _, j := range t.cfg.due(t.manifest, running, st.Tasks.Len(), t.unmergeable.Load()) {
		t.start(ctx, j, st)
	}
}

// AwaitMerges waits until no merge is running.
func (t *Tiers) AwaitMerges() { t.running.Wait() }
