// Package compactor is the only writer of a domain's projections. It reads ledger entries, folds
// them, and publishes a manifest with the changed rows, which are inline or in files. The publish
// is the commit point. This package is not a stable API.
//
// # Safety
//
// Any number of compactors may run on a domain. For each revision, exactly one compactor creates the manifest. The
// others drop their work, load the winner's state and fold again. A process may die at any point:
//
//   - before the files are written: nothing has happened. The entries are folded when they are
//     announced again, or when a barrier lists them.
//   - between files and manifest: nothing refers to the files.
//   - after the manifest: the entries are recorded in ledger_entries, and folding them again
//     changes nothing.
//
// # Lanes
//
// Urgent entries are folded immediately, together with everything else that is waiting. Reports that a task was queued,
// has started, or is alive are lazy: they linger for at most two seconds. A barrier lists the ledger before the fold,
// so that the decisions of timers consider every fact that was durable before the barrier.
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
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// Config holds the ports and settings of a compactor.
type Config struct {
	*domain.Handle
	// Writer names this instance in the manifests that it publishes.
	Writer string
	Options
	// ArchiveSlots is a channel whose capacity limits how many compactors archive at the same time. All compactors of a
	// process share the channel. When a day ends, the entries of all domains are archived at about the same time, and
	// each archiving takes memory. Nil: no limit.
	ArchiveSlots chan struct{}

	// Traces creates a span for each publish, and for each run that the publish ends. Nil: no spans.
	Traces *trace.Tracer
	// OnPublish is called after each publish, in order, before requests are answered. It must not
	// block.
	OnPublish func(Published)
	// OnFailure is called when folding fails and will be retried. It receives the error, and the time of the first
	// failure since folding last succeeded. OnFailure may be nil.
	OnFailure func(err error, since time.Time)
	// OnRecovery is called when folding succeeds again. It may be nil.
	OnRecovery func()
	// OnPhase is called with the duration and the error of each fold and each publish. If another
	// writer published first, the error is [manifest.ErrConflict] or [manifest.ErrNotCommitted].
	// OnPhase may be nil.
	OnPhase func(phase Phase, took time.Duration, err error)
}

// Phase is a part of a step. OnPhase receives the duration of each phase.
type Phase string

// The phases of a step.
const (
	PhaseFold    Phase = "fold"    // applying groups to the state
	PhasePublish Phase = "publish" // writing the changed rows and creating the manifest
)

// Options are settings of a compactor. The zero value selects the defaults.
type Options struct {
	// Tiers limits the sizes of the files of the state.
	Tiers tiers.Options
	// MaxBatch is the maximum number of entries in a batch, and in a publish; 0: 2,000.
	MaxBatch int
	// KeepLedger is the minimum time that entries stay in the ledger before they move to the archive; 0: 8 days.
	KeepLedger time.Duration
	// ArchiveSpan is the period whose entries are archived together when all of them are old
	// enough; 0: 24 hours.
	ArchiveSpan time.Duration
	// Wakeups enables wakeups: before the compactor publishes a state that may need a sweep, it creates a wakeup for the
	// sweepers.
	Wakeups bool
	// Shared means that other instances may fold the same domain. This instance then avoids races to publish: entries
	// from notifications linger, and the newest state is loaded before a fold.
	Shared bool
	// Retention selects the revisions that are kept. The zero value is the default policy.
	Retention manifest.Policy
	// Decode decodes an entry; nil: the function [Decode]. Simulations replace it to act like older builds, which do not
	// know all event types.
	Decode func(entry string, data []byte) []fold.Group
}

// Published describes a publish.
type Published struct {
	Snapshot *snapshot.Snapshot
	// Changed are the rows that the publish changed, including tombstones.
	Changed *state.Rows
}

// Compactor folds one domain. Use [Open] to create one.
type Compactor struct {
	cfg   Config
	inbox *inbox
	ended chan struct{} // closed when Run has returned
	shared
	maintenance *maintenance

	// The following fields belong to the goroutine of Run.
	loaded
	gaps         *gaps
	tiers        *tiers.Tiers
	wakeups      wakeup.Schedule
	encodingTime time.Duration // time spent on encoding files since the last pause
}

// shared contains the data of the goroutine of Run that other goroutines may read.
type shared struct {
	latest    *snapshot.Latest
	backlog   backlog
	storeTime storeTime
	// otherWriterAt is when the newest known revision of another writer was published, in Unix
	// milliseconds; 0: none is known.
	otherWriterAt atomic.Int64
}

// Open loads the state of a domain, or begins a new domain.
func Open(ctx context.Context, cfg Config) (*Compactor, error) {
	cfg.Options = cfg.withDefaults()
	c := &Compactor{
		cfg: cfg, inbox: newInbox(cfg.Clock, cfg.MaxBatch), ended: make(chan struct{}),
		shared: shared{latest: &snapshot.Latest{}}, maintenance: newMaintenance(cfg),
		loaded: loaded{tried: map[string]bool{}}, gaps: newGaps(),
		wakeups: wakeup.Schedule{Domain: cfg.Domain, Store: cfg.Store, Off: !cfg.Wakeups},
	}
	c.maintenance.collector.Ask(c.pinned)
	c.tiers = tiers.New(tiers.Config{Handle: cfg.Handle, Options: cfg.Tiers, OnStored: c.storeTime.observe})
	if _, err := c.reload(ctx); err != nil {
		return nil, err
	}
	c.updateLatest()
	return c, nil
}

func (o Options) withDefaults() Options {
	o.KeepLedger = cmp.Or(max(o.KeepLedger, 0), keepLedger)
	o.Retention = o.Retention.WithDefaults()
	o.MaxBatch = cmp.Or(max(o.MaxBatch, 0), maxBatch)
	if o.Decode == nil {
		o.Decode = Decode
	}
	return o
}

// Latest returns the newest published state.
func (c *Compactor) Latest() *snapshot.Latest { return c.latest }

// Announce requests that entries be folded, and does not wait.
func (c *Compactor) Announce(r Request) { c.inbox.put(r, c.linger(r), nil) }

// Compact requests that entries be folded, and waits until a revision with them is published.
func (c *Compactor) Compact(ctx context.Context, r Request) (Result, error) {
	done := make(chan answer, 1)
	c.inbox.put(r, c.linger(r), done)
	select {
	case <-ctx.Done():
		return Result{}, fmt.Errorf("wait for compaction of %s: %w", c.cfg.Domain, ctx.Err())
	case a := <-done:
		return a.result, a.err
	case <-c.ended:
	}
	select {
	case a := <-done: // the batch of the request was the last one before Run ended
		return a.result, a.err
	default:
		return Result{}, fmt.Errorf("wait for compaction of %s: %w", c.cfg.Domain, ErrEnded)
	}
}

// ErrEnded means that the compactor no longer folds. Announced entries are in the ledger, and the next compactor
// folds them.
var ErrEnded = errors.New("the compactor has ended")

// The waits between retries while folding fails.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// keepLedger is how long entries stay in the ledger by default. Reading an entry from the ledger costs less than
// reading it from the archive.
const keepLedger = 8 * 24 * time.Hour

// maxPause limits how long the compactor pauses between batches.
const maxPause = 50 * time.Millisecond

// Run folds until ctx is done, and runs maintenance concurrently. It may be called once. Entries that were announced
// but not folded are in the ledger, where the next barrier finds them.
func (c *Compactor) Run(ctx context.Context) error {
	defer c.tiers.AwaitMerges()
	defer close(c.ended)
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beside.Go(func() { c.maintenance.run(ctx) })
	beside.Go(func() { c.retryGaps(ctx) })
	for {
		b, err := c.inbox.take(ctx)
		if err != nil {
			return ignoreDone(ctx, err)
		}
		c.backlog.setTaken(b.Entries)
		result, err := c.stepWithRetries(ctx, b.Request)
		c.backlog.setTaken(nil)
		for _, w := range b.waiters {
			w <- answer{result, err}
		}
		if err == nil {
			err = c.pause(ctx)
		}
		if err != nil {
			return ignoreDone(ctx, err)
		}
	}
}

// pause waits for as long as the encoding of files has taken since the last pause, so that entries accumulate
// meanwhile. Writing a file takes half a millisecond, whatever its size, so fewer and larger batches take less time in
// total. A row that changes twice in a batch is written once.
func (c *Compactor) pause(ctx context.Context) error {
	wait := min(c.encodingTime, maxPause)
	c.encodingTime = 0
	if wait == 0 {
		return ctx.Err()
	}
	return c.cfg.Clock.Sleep(ctx, wait)
}

func ignoreDone(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// stepWithRetries takes a step, and retries with backoff until it succeeds or ctx is done. Entries are never dropped,
// because a store that is full or unreachable may recover.
func (c *Compactor) stepWithRetries(ctx context.Context, r Request) (Result, error) {
	var since time.Time
	for wait := firstRetry; ; wait = min(wait*2, lastRetry) {
		result, err := c.Step(ctx, r)
		switch {
		case err == nil && !since.IsZero() && c.cfg.OnRecovery != nil:
			c.cfg.OnRecovery()
			return result, nil
		case err == nil:
			return result, nil
		case ctx.Err() != nil:
			return Result{}, fmt.Errorf("fold: %w: %w", ctx.Err(), err)
		}
		if since.IsZero() {
			since = c.cfg.Clock.Now()
		}
		c.cfg.Logger.WarnContext(ctx, "compaction failed; retrying",
			slog.String("domain", c.cfg.Domain.String()), slog.Duration("wait", wait), slog.Any("error", err))
		if c.cfg.OnFailure != nil {
			c.cfg.OnFailure(err, since)
		}
		if err := c.cfg.Clock.Sleep(ctx, wait); err != nil {
			return Result{}, err
		}
		if _, err := c.reload(ctx); err != nil && ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if c.manifest != nil { // the manifest may be too large to publish until deltas are merged
			c.tiers.StartMerges(ctx, c.state)
		}
	}
}

// reload loads the newest published state, and reports whether this state is known to descend from the state that was
// loaded before. If so, the results of running and finished merges can still be used. Otherwise, the merges and the
// results of listings may belong to another timeline, and are dropped.
func (c *Compactor) reload(ctx context.Context) (follows bool, err error) {
	m, st, follows, err := snapshot.Refresh(ctx, c.cfg.Codec, c.cfg.Manifests, c.manifest, c.state, 0)
	if errors.Is(err, manifest.ErrNone) {
		m, st = nil, state.New(c.cfg.Domain)
		err = c.requireNoArchive(ctx)
	}
	if err != nil {
		return false, err
	}
	if !follows {
		c.caughtUp, c.complete = 0, ""
		c.wakeups.Forget()
		clear(c.tried)
	}
	c.state, c.manifest = st, m
	c.tiers.Follow(m, follows)
	if m == nil {
		return false, nil
	}
	// Even if the clock was set back, new ids must not be below the orphan floor or the watermarks. Collection deletes
	// files with such ids, and listings skip entries with such ids.
	c.cfg.IDs.Raise(m.OrphanFloor)
	c.cfg.IDs.Observe(m.Watermarks.EventsProcessedThrough)
	c.cfg.IDs.Observe(m.Watermarks.CompleteThrough)
	c.caughtUp = max(c.caughtUp, m.Watermarks.CaughtUpAt)
	c.noteWriter(m)
	c.noteListings()
	return follows, nil
}

// errNoManifest means that all manifests of a domain are gone. The state cannot be computed from
// the ledger alone, which lacks the archived entries.
var errNoManifest = errors.New("the domain has an archive and no manifest: its state is lost; `servo admin rebuild --bare` rebuilds it from ledger/, archive/ and plans/")

// requireNoArchive returns an error if a domain without a manifest has an archive, and so is not
// new.
func (c *Compactor) requireNoArchive(ctx context.Context) error {
	archived, err := archive.Any(ctx, c.cfg.Store, c.cfg.Domain)
	if err == nil && archived {
		err = fmt.Errorf("begin %s: %w", c.cfg.Domain, errNoManifest)
	}
	return err
}

// updateLatest makes the current state the newest snapshot, and returns it.
func (c *Compactor) updateLatest() *snapshot.Snapshot {
	snap := &snapshot.Snapshot{
		State: c.state.Copy(), Revision: c.current().Revision, Nonce: c.current().Nonce, Timeline: c.current().Timeline, CaughtUpAt: c.caughtUp, CompleteThrough: c.current().Watermarks.CompleteThrough, History: snapshot.HistoryOf(c.cfg.Codec, c.cfg.Manifests, c.manifest),
	}
	c.latest.Set(snap)
	c.noteListings()
	return snap
}

// timed calls the function do and reports its duration.
func (c *Compactor) timed(phase Phase, do func() error) error {
	if c.cfg.OnPhase == nil {
		return do()
	}
	began := c.cfg.Clock.Now()
	err := do()
	c.cfg.OnPhase(phase, c.cfg.Clock.Now().Sub(began), err)
	return err
}

func (c *Compactor) result(n int) Result {
	return Result{Revision: c.current().Revision, Folded: n, CaughtUpAt: c.caughtUp.String(), ReleasedThrough: c.current().Wakeup.Through}
}
