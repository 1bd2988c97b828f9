package compactor

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	wakeup := c.wakeups.Next(c.wakeup(), work, event.At(c.Clock.Now()), p.swept)
	awaitWakeup := c.wakeups.Create(ctx, c.wakeup(), wakeup)
	change, err := c.tiers.Store(ctx, changed)
	c.encodingTime += change.Encoding
	if err := errors.Join(err, awaitWakeup()); err != nil {
		return err
	}
	if c.manifest != nil && !manifest.NamedFrom(c.manifest.OrphanFloor, change.Delta.Files) {
		return fmt.Errorf("publish: the clock of this machine, %s, is behind the orphan floor %s of revision %d: set the clock",
			event.At(c.Clock.Now()), event.At(ids.Time(c.manifest.OrphanFloor)), c.manifest.Revision)
	}
	next := c.next(work, p, c.tiers.Oldest(change.Delta.ID))
	next.Wakeup = wakeup
	if err := c.tiers.Include(next, &change); err != nil {
		return err
	}
	if next.BaseSnapshot.ID != c.baseID() {
		work.Evict(snapshot.CutoffOf(next))
	}
	next.RowCounts = work.Counts()
	if err := c.Manifests.Publish(ctx, next); err != nil {
		return err
	}
	work.Drain()
	c.traceEnded(ctx, state.List[state.Run](changed))
	c.state, c.manifest = work, next
	c.tiers.Advance(next, &change)
	c.noteWriter(next)
	c.caughtUp = max(c.caughtUp, next.Watermarks.CaughtUpAt)
	snap := c.updateLatest()
	c.tiers.StartMerges(ctx, c.state)
	select {
	case c.published <- struct{}{}:
	default:
	}
	if c.OnPublish != nil {
		c.OnPublish(Published{Snapshot: snap, Changed: changed})
	}
	return nil
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

// storeNow returns the current time, but no later than the latest known time of the store: a fast
// clock must not raise the orphan floor above files that others write.
func (c *Compactor) storeNow() time.Time {
	now := c.Clock.Now()
	if storeTime := c.storeTime.Load(); storeTime != 0 {
		now = time.UnixMilli(min(storeTime, now.UnixMilli()))
	}
	return now
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

// next returns the successor of the current manifest. oldest is the least id of the files that this
// process has not published yet.
func (c *Compactor) next(work *state.State, p publication, oldest string) *manifest.Manifest {
	var next *manifest.Manifest
	if c.manifest == nil {
		next = manifest.First(c.Domain, c.IDs.New(), c.Writer)
	} else {
		next = c.manifest.Successor(c.Writer)
	}
	next.FoldSeq, next.FoldTime = work.FoldSeq, work.FoldTime
	next.OrphanFloor = orphanFloor(next.OrphanFloor, oldest, c.storeNow(), c.Retention.Orphans)
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
