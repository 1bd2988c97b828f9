package compactor

import (
	"context"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// publish stores the changed rows of the new state, which is the parameter work, and creates the next manifest. If
// publish returns nil, work is the published state of the domain. If another writer was faster, publish returns
// [manifest.ErrConflict] or [manifest.ErrNotCommitted], and nothing is published.
func (c *Compactor) publish(ctx context.Context, work *state.State, p publication) error {
	changed := work.Changed()
	wakeup := c.wakeups.Next(c.current().Wakeup, work, event.At(c.cfg.Clock.Now()), p.swept)
	awaitWakeup := c.wakeups.Create(ctx, c.current().Wakeup, wakeup)
	change, err := c.tiers.Store(ctx, changed)
	c.encodingTime += change.Encoding
	if err := errors.Join(err, awaitWakeup()); err != nil {
		return err
	}
	if !manifest.NamedFrom(c.current().OrphanFloor, change.Delta.Files) {
		return fmt.Errorf("publish: the clock of this machine, %s, is behind the orphan floor %s of revision %d: set the clock",
			event.At(c.cfg.Clock.Now()), event.At(ids.Time(c.manifest.OrphanFloor)), c.manifest.Revision)
	}
	next := c.next(work, p, c.tiers.Oldest(change.Delta.ID))
	next.Wakeup = wakeup
	if err := c.tiers.Include(next, &change); err != nil {
		return err
	}
	if next.BaseSnapshot.ID != c.current().BaseSnapshot.ID {
		work.Evict(snapshot.CutoffOf(next))
	}
	next.RowCounts = work.Counts()
	if err := c.cfg.Manifests.Publish(ctx, next); err != nil {
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
	case c.maintenance.published <- struct{}{}:
	default:
	}
	if c.cfg.OnPublish != nil {
		c.cfg.OnPublish(Published{Snapshot: snap, Changed: changed})
	}
	return nil
}

// next returns the successor of the current manifest. The parameter oldest is the least id of the files that this
// process has not published yet.
func (c *Compactor) next(work *state.State, p publication, oldest string) *manifest.Manifest {
	var next *manifest.Manifest
	if c.manifest == nil {
		next = manifest.First(c.cfg.Domain, c.cfg.IDs.New(), c.cfg.Writer)
	} else {
		next = c.manifest.Successor(c.cfg.Writer)
	}
	next.FoldSeq, next.FoldTime = work.FoldSeq, work.FoldTime
	next.OrphanFloor = orphanFloor(next.OrphanFloor, oldest, c.storeTime.limit(c.cfg.Clock.Now()), c.cfg.Retention.Orphans)
	w := &next.Watermarks
	for _, g := range p.groups {
		if g.Reason != event.ReasonClockAhead && g.Entry > w.EventsProcessedThrough {
			w.EventsProcessedThrough, w.LastProcessedFile = g.Entry, ledger.Key(c.cfg.Domain, g.Entry)
		}
	}
	w.LastProcessedAt = event.At(c.cfg.Clock.Now())
	w.CaughtUpAt = max(w.CaughtUpAt, c.caughtUp, p.caughtUp)
	w.CompleteThrough = max(w.CompleteThrough, c.complete, p.complete)
	return next
}
