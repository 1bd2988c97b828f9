package compactor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ListMargin is how much older than a listing the name of an entry may be that appears after it.
// Appenders ensure that a name is at most 60 s behind the store's clock.
const ListMargin = 90 * time.Second

// publish stores the rows that changed in work and creates the next manifest. If it returns nil,
// work is the state of the domain. If another writer was faster, it returns [manifest.ErrConflict]
// or [manifest.ErrNotCommitted], and nothing is published.
func (c *Compactor) publish(ctx context.Context, work *state.State, p publication) error {
	changed := work.Changed()
	wakeup := c.nextWakeup(work, p)
	awaitWakeup := c.createWakeup(ctx, wakeup)
	delta, err := c.delta(ctx, changed)
	if err := errors.Join(err, awaitWakeup()); err != nil {
		return err
	}
	if c.manifest != nil && !manifest.NamedFrom(c.manifest.OrphanFloor, delta.Files) {
		return fmt.Errorf("publish: the clock of this machine, %s, is behind the orphan floor %s of revision %d: set the clock",
			event.At(c.Clock.Now()), event.At(ids.Time(c.manifest.OrphanFloor)), c.manifest.Revision)
	}
	next := c.next(work, p, delta)
	next.Wakeup = wakeup
	for _, r := range c.merges {
		if r.ready(next) {
			r.apply(next, event.At(c.Clock.Now()))
		}
	}
	cached, err := c.dropOverwritten(next, delta, changed)
	if err != nil {
		return err
	}
	next.L0Count = len(next.L0)
	if next.BaseSnapshot.ID != c.baseID() {
		work.Evict(snapshot.CutoffOf(next))
	}
	next.RowCounts = work.Counts()
	if err := c.Manifests.Publish(ctx, next); err != nil {
		return err
	}
	work.Drain()
	c.traceEnded(ctx, state.List[state.Run](changed))
	c.state, c.manifest, c.cached = work, next, cached
	c.noteWriter(next)
	c.caughtUp = max(c.caughtUp, next.Watermarks.CaughtUpAt)
	snap := c.updateLatest()
	c.startMerges(ctx)
	select {
	case c.published <- struct{}{}:
	default:
	}
	if c.OnPublish != nil {
		c.OnPublish(Published{Snapshot: snap, Changed: changed})
	}
	return nil
}

// write encodes rows and stores them in files.
func (c *Compactor) write(ctx context.Context, id string, rows *state.Rows, tier string) (manifest.Delta, error) {
	files, err := c.Codec.Encode(rows)
	if err != nil {
		return manifest.Delta{}, err
	}
	return c.store(ctx, id, files, tier)
}

// store stores one file for each table, in parallel. The id must be new: a write whose answer was
// lost is repeated under another id, and nothing refers to the files of the first one.
func (c *Compactor) store(ctx context.Context, id string, files []snapshot.File, tier string) (manifest.Delta, error) {
	d := manifest.Delta{ID: id, Files: make([]manifest.File, len(files))}
	g, gctx := errgroup.WithContext(ctx)
	for i, f := range files {
		key := manifest.StateKey(c.Domain, f.Table, tier, id)
		d.Files[i] = fileOf(f, key)
		d.Rows += f.Rows
		d.Bytes += int64(len(f.Data))
		g.Go(func() error {
			return c.create(gctx, key, f.Data)
		})
	}
	return d, g.Wait()
}

// observeStoreTime records a time of the store's clock. Several goroutines may call it at once.
func (c *Compactor) observeStoreTime(t time.Time) {
	ms := t.UnixMilli()
	for {
		old := c.storeTime.Load()
		if ms <= old || c.storeTime.CompareAndSwap(old, ms) {
			return
		}
	}
}

// completeAt returns the id up to which a listing is complete, given a time that the store's clock
// had reached before the listing began. Writers keep the names of entries close to the store's
// clock, so no other clock may raise the result; this machine's clock can only lower it. It returns
// "" if no time of the store is known yet.
func (c *Compactor) completeAt(storeTime int64) string {
	if storeTime == 0 {
		return ""
	}
	storeTime = min(storeTime, c.Clock.Now().UnixMilli())
	return ids.AtTime(time.UnixMilli(storeTime).Add(-ListMargin))
}

func fileOf(f snapshot.File, key string) manifest.File {
	return manifest.File{
		Table: f.Table, Key: key, Size: int64(len(f.Data)), Rows: f.Rows, CRC32C: blob.CRC32C(f.Data),
		MinRun: f.MinRun, MaxRun: f.MaxRun,
	}
}

// next returns the successor of the current manifest, with one more delta.
func (c *Compactor) next(work *state.State, p publication, delta manifest.Delta) *manifest.Manifest {
	var next *manifest.Manifest
	if c.manifest == nil {
		next = manifest.First(c.Domain, c.IDs.New(), c.Writer)
	} else {
		next = c.manifest.Successor(c.Writer)
	}
	delta.Revision = next.Revision
	next.FoldSeq, next.FoldTime = work.FoldSeq, work.FoldTime
	if delta.Rows > 0 {
		next.L0 = append(next.L0, delta)
	}
	next.L0Limits = manifest.L0Limits{MaxCount: c.MaxDeltas, MaxBytes: c.MinBase}
	next.OrphanFloor = c.orphanFloor(next, delta)
	w := &next.Watermarks
	for _, g := range p.groups {
		if g.Reason != event.ReasonClockAhead && g.Entry > w.EventsProcessedThrough {
			w.EventsProcessedThrough, w.LastProcessedFile = g.Entry, ledger.Key(c.Domain, g.Entry)
		}
	}
	w.LastProcessedAt = event.At(c.Clock.Now())
	w.CaughtUpAt = max(w.CaughtUpAt, c.caughtUp, p.caughtUp)
	w.CompleteThrough = max(w.CompleteThrough, c.complete, p.complete)
	return next
}
