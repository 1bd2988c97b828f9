// Package compactor is the sole writer of a domain's projections. It takes
// ledger entries, folds them, writes what changed as L0 files, and publishes a
// manifest that names them: the one moment at which anything becomes true.
//
// # Safety
//
// Any number of compactors may run on a domain: a manifest revision is created
// by exactly one of them, and who loses drops its work, loads the winner's state
// and folds again. A process may die at any line:
//
//   - before the files: nothing has happened; the entries are folded when they
//     are announced again, or listed by a barrier.
//   - between files and manifest: files that nothing refers to.
//   - after the manifest: the entries are recorded in ledger_entries, and folding
//     them again does nothing.
//
// # Lanes
//
// Entries that something waits for are folded at once, with whatever else is
// there by then. Acknowledgements and signs of life are lazy: they wait for
// company, two seconds at most. A barrier lists the ledger first, so that what a
// timer decides is decided on everything that was durable before.
package compactor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Config is what a compactor works with.
type Config struct {
	Domain    ids.Domain
	Store     blob.Store
	Manifests *manifest.Store
	Codec     *snapshot.Codec
	IDs       *ids.Source
	Clock     clock.Clock
	// Writer names this instance in the manifests that it publishes.
	Writer string
	Options
	// Archiving holds one for each compactor that archives at the moment: a process gives
	// all that it runs the same, with room for as many as it has memory for, since days
	// end for all of them at once. Nil: this one asks nobody.
	Archiving chan struct{}

	Logger *slog.Logger
	// Traces make spans of publishes and of the runs that they end; nil: there are none.
	Traces *trace.Tracer
	// OnPublish is called after each publish, in order, before requests are
	// answered. It must not block.
	OnPublish func(Published)
	// OnTrouble is called when folding fails, and is tried again: with the error,
	// and since when it has been failing. It may be nil.
	OnTrouble func(err error, since time.Time)
	// OnTroubleOver is called when what had been failing is folded. It may be nil.
	OnTroubleOver func()
}

// Options are what a compactor does in its own way; the zero value will do.
type Options struct {
	// MaxDeltas is how many L0 deltas in files a manifest has before they are merged
	// into one of L1; 0: 16.
	MaxDeltas int
	// MaxInline is how many bytes of rows a manifest holds before they are written to
	// files; 0: 64 KiB, less than 0: none.
	MaxInline int64
	// MinBase is how many bytes of deltas make a new base at least; 0: 8 MiB.
	MinBase int64
	// MaxSegment is the number of rows of a table that are encoded at once as a segment of
	// history; 0: [snapshot.MaxSegment].
	MaxSegment int
	// MaxBatch is the largest number of entries of one batch, and of one publish; 0: 2,000.
	MaxBatch int
	// KeepEntries is how long the live state has entries of the ledger, and longer as far
	// as listings are not complete; 0: 15 minutes.
	KeepEntries time.Duration
	// KeepLedger is how long they stay in the ledger at least; then they leave it for the
	// archive; 0: 8 days.
	KeepLedger time.Duration
	// KeepRuns is how long runs are kept after they were triggered, if they have ended; 0:
	// [KeepRuns].
	KeepRuns time.Duration
	// ArchiveSpan is what leaves the ledger for the archive together, once all of it is
	// old enough: a day at a time; 0: 24 hours.
	ArchiveSpan time.Duration
	// Markers has the domain marked as due before it is published in a state in which
	// something can get stuck, for sweepers that go by markers.
	Markers bool
	// Shared says that there may be more instances, which fold the same domain: this one
	// gives way to them where that costs less than to lose races.
	Shared bool
	// Retention says which revisions are kept; the zero value is the default.
	Retention manifest.Policy
	// Decode reads an entry; nil: as [Decode] does. A simulation has builds that do
	// not know all that others write.
	Decode func(entry string, data []byte) []fold.Group
}

// Published is what a publish made true.
type Published struct {
	Snapshot *snapshot.Snapshot
	// Changed are the rows that it changed, tombstones included.
	Changed *state.Rows
}

// Compactor folds one domain. Make it with [Open].
type Compactor struct {
	Config
	inbox  *inbox
	latest *snapshot.Latest
	ended  chan struct{} // closed when Run has returned

	published   chan struct{} // holds one if there was a publish since it was last asked
	maintaining chan struct{} // holds one while Maintain runs, which has the collector
	collector   *manifest.Collector
	archiver    *archive.Archiver

	// What follows belongs to the goroutine of Run.
	state    *state.State // as of manifest
	manifest *manifest.Manifest
	atHand   atHand     // of manifest
	caughtUp event.Time // never falls in a lineage; the manifest's may be older
	complete string     // likewise: every entry that is named below it is folded
	created  event.Time // of the marker that was created last, if it is not known to be gone
	// overlooked: a sweep has found what nobody was told of, and no revision says so yet.
	overlooked bool
	merges     []*merge
	encoding   time.Duration // spent on encoding files since it last rested
	// unmergeable: deltas could not be merged, for one could not be read.
	unmergeable atomic.Bool
	// tried are the entries that an older build did not know and this process has
	// folded: what they hold it knows, or does not know either.
	tried map[string]bool
	gaps  gaps

	// gapped holds one if a step has left gaps since it was last asked, and unread is how many.
	gapped chan struct{}
	unread atomic.Int64

	// otherAt is when the newest revision was published that is known to be another
	// writer's, in Unix milliseconds; 0: there is none.
	otherAt atomic.Int64

	// storeTime is the latest time that the store is known to have had, in Unix
	// milliseconds.
	storeTime atomic.Int64

	wg sync.WaitGroup
}

// Open loads a domain's state, or begins a new one.
func Open(ctx context.Context, cfg Config) (*Compactor, error) {
	cfg.Options = cfg.withDefaults()
	c := &Compactor{
		Config: cfg, inbox: newInbox(cfg.Clock, cfg.MaxBatch), latest: &snapshot.Latest{}, ended: make(chan struct{}),
		published: make(chan struct{}, 1), maintaining: make(chan struct{}, 1),
		collector: manifest.NewCollector(cfg.Manifests, cfg.Retention), tried: map[string]bool{},
		gaps: newGaps(), gapped: make(chan struct{}, 1),
		archiver: archive.New(archive.Config{
			Domain: cfg.Domain, Store: cfg.Store, Clock: cfg.Clock, Logger: cfg.Logger, Span: cfg.ArchiveSpan,
		}),
	}
	if _, err := c.reload(ctx); err != nil {
		return nil, err
	}
	c.share()
	return c, nil
}

func (o Options) withDefaults() Options {
	o.MaxDeltas = cmp.Or(max(o.MaxDeltas, 0), maxDeltas)
	o.MaxInline = cmp.Or(o.MaxInline, maxInline)
	o.MinBase = cmp.Or(max(o.MinBase, 0), minBase)
	o.MaxSegment = cmp.Or(max(o.MaxSegment, 0), snapshot.MaxSegment)
	o.KeepEntries = cmp.Or(max(o.KeepEntries, 0), keepEntries)
	o.KeepLedger = cmp.Or(max(o.KeepLedger, 0), keepLedger)
	o.KeepRuns = cmp.Or(max(o.KeepRuns, 0), KeepRuns)
	o.Retention = o.Retention.WithDefaults()
	o.MaxBatch = cmp.Or(max(o.MaxBatch, 0), maxBatch)
	if o.Decode == nil {
		o.Decode = Decode
	}
	return o
}

// Latest is the newest published state.
func (c *Compactor) Latest() *snapshot.Latest { return c.latest }

// Announce asks for entries to be folded, without waiting.
func (c *Compactor) Announce(r Request) { c.inbox.put(r, c.patience(r), nil) }

// Compact asks for entries to be folded and waits until they are, in a revision
// that is published.
func (c *Compactor) Compact(ctx context.Context, r Request) (Result, error) {
	done := make(chan answer, 1)
	c.inbox.put(r, c.patience(r), done)
	select {
	case <-ctx.Done():
		return Result{}, fmt.Errorf("wait for compaction of %s: %w", c.Domain, ctx.Err())
	case a := <-done:
		return a.result, a.err
	case <-c.ended:
	}
	select {
	case a := <-done: // its batch was the last one
		return a.result, a.err
	default:
		return Result{}, fmt.Errorf("wait for compaction of %s: %w", c.Domain, ErrEnded)
	}
}

// ErrEnded says that the compactor folds no more. What was announced is in the
// ledger, and is folded by whoever comes next.
var ErrEnded = errors.New("the compactor has ended")

// Back-off while folding fails.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// maxRest bounds how long entries gather though there is time to fold them.
const maxRest = 50 * time.Millisecond

// Run folds until ctx is done, and collects beside it what is not kept; a
// compactor runs once. What was announced and not folded by then is in the ledger,
// where the next start's barrier finds it.
func (c *Compactor) Run(ctx context.Context) error {
	defer c.wg.Wait()
	defer close(c.ended)
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside.Go(func() { c.maintain(ctx) })
	beside.Go(func() { c.retryGaps(ctx) })
	for {
		b, err := c.inbox.take(ctx)
		if err != nil {
			return ignoreDone(ctx, err)
		}
		result, err := c.persist(ctx, b)
		for _, w := range b.waiters {
			w <- answer{result, err}
		}
		if err == nil {
			err = c.rest(ctx)
		}
		if err != nil {
			return ignoreDone(ctx, err)
		}
	}
}

// rest lets entries gather for as long as it took to encode what was published, when
// that was much. A file costs half a millisecond whatever is in it, so that the larger
// half as many batches cost half as much; and what changes twice in one is written once.
func (c *Compactor) rest(ctx context.Context) error {
	wait := min(c.encoding, maxRest)
	c.encoding = 0
	if wait == 0 {
		return ctx.Err()
	}
	return c.Clock.Sleep(ctx, wait)
}

func ignoreDone(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// persist folds a batch, and again, with back-off, until it is folded or ctx is
// done: entries are never dropped, and a store that is full or away today may
// not be so in a minute.
func (c *Compactor) persist(ctx context.Context, b batch) (Result, error) {
	var since time.Time
	for wait := firstRetry; ; wait = min(wait*2, lastRetry) {
		result, err := c.Step(ctx, b.request())
		switch {
		case err == nil && !since.IsZero() && c.OnTroubleOver != nil:
			c.OnTroubleOver()
			return result, nil
		case err == nil:
			return result, nil
		case ctx.Err() != nil:
			return Result{}, fmt.Errorf("fold: %w: %w", ctx.Err(), err) // why it failed hardly matters any more
		}
		if since.IsZero() {
			since = c.Clock.Now()
		}
		c.Logger.WarnContext(ctx, "compaction failed; it is tried again",
			slog.String("domain", c.Domain.String()), slog.Duration("wait", wait), slog.Any("error", err))
		if c.OnTrouble != nil {
			c.OnTrouble(err, since)
		}
		if err := c.Clock.Sleep(ctx, wait); err != nil {
			return Result{}, err
		}
		if _, err := c.reload(ctx); err != nil && ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if c.manifest != nil { // what cannot be published may be too much, until it is merged
			c.startMerges(ctx)
		}
	}
}

// reload takes up the newest published state, and reports whether that is known to
// go on from the one before. What is being merged, or is merged, may still do for it
// then; else it is of another history, and so is what was listed.
func (c *Compactor) reload(ctx context.Context) (follows bool, err error) {
	m, st, follows, err := snapshot.Refresh(ctx, c.Codec, c.Manifests, c.manifest, c.state, 0)
	if errors.Is(err, manifest.ErrNone) {
		m, st = nil, state.New(c.Domain)
		err = c.begins(ctx)
	}
	if err != nil {
		return false, err
	}
	if !follows {
		c.caughtUp, c.complete, c.created, c.merges = 0, "", 0, nil
		clear(c.tried)
	}
	if m != c.manifest {
		c.atHand = nil // another writer may have left rows out of the deltas that it has
	}
	c.state, c.manifest = st, m
	if m == nil {
		return false, nil
	}
	// A clock that was set back must not make ids that listings would pass over.
	c.IDs.Raise(m.OrphanFloor)
	c.IDs.Observe(m.Watermarks.EventsProcessedThrough)
	c.IDs.Observe(m.Watermarks.CompleteThrough)
	c.caughtUp = max(c.caughtUp, m.Watermarks.CaughtUpAt)
	c.seen(m)
	return follows, nil
}

// errNoManifest says that all manifests are gone. The ledger alone would make another
// state: it begins in the middle.
var errNoManifest = errors.New("the domain has an archive and no manifest: its state is lost; `servo admin rebuild --bare` rebuilds it from ledger/, archive/ and plans/")

// begins makes sure that a domain without a manifest is a new one.
func (c *Compactor) begins(ctx context.Context) error {
	archived, err := archive.Any(ctx, c.Store, c.Domain)
	if err == nil && archived {
		err = fmt.Errorf("begin %s: %w", c.Domain, errNoManifest)
	}
	return err
}

// baseID is that of the state's base, "" if there is none yet.
func (c *Compactor) baseID() string {
	if c.manifest == nil {
		return ""
	}
	return c.manifest.BaseSnapshot.ID
}

// revision is that of the state, 0 if there is none yet.
func (c *Compactor) revision() int64 {
	if c.manifest == nil {
		return 0
	}
	return c.manifest.Revision
}

// share hands out the current state as the newest snapshot.
func (c *Compactor) share() *snapshot.Snapshot {
	snap := &snapshot.Snapshot{
		State: c.state.Copy(), Revision: c.revision(), CaughtUpAt: c.caughtUp, History: snapshot.HistoryOf(c.Codec, c.Manifests, c.manifest),
	}
	c.latest.Set(snap)
	return snap
}

func (c *Compactor) result(n int) Result {
	return Result{Revision: c.revision(), Folded: n, CaughtUpAt: c.caughtUp.String(), Attended: c.attended()}
}
