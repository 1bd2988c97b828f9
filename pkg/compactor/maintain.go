package compactor

import (
	"context"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

const (
	// maintainEvery is how often revisions and files are collected, at least, while there are
	// publishes.
	maintainEvery = time.Minute
	// perAge is how often they are collected while a revision grows old enough.
	perAge = 3
	// backlogEvery is how often, while there is more to collect than one go does.
	backlogEvery = time.Second
	// floorSteps is in how many steps the floor rises by as much as it lags.
	floorSteps = 10
)

// Maintain deletes revisions, pins and state files that the domain's retention
// does not keep, and moves entries of the ledger that nothing announces any more to
// the archive: a bounded number, and it reports whether there is more to do.
// [Compactor.Run] calls it after publishes; where nothing runs between requests,
// it is a request of its own. It does not touch what folding uses, and may run
// beside it and on any number of instances. While it runs, a second call on this
// one does nothing.
func (c *Compactor) Maintain(ctx context.Context) (more bool, err error) {
	select {
	case c.maintaining <- struct{}{}:
		defer func() { <-c.maintaining }()
	default:
		return false, nil
	}
	revisions, err := c.collector.Retain(ctx)
	if err != nil {
		return false, err
	}
	files, err := c.collector.Collect(ctx)
	if err != nil {
		return false, err
	}
	entries, err := c.archiveEntries(ctx)
	return revisions || files || entries, err
}

// Shrink collects as Maintain does, and keeps few revisions. It is for a process that owns the domain alone and ends.
// The caller bounds it by ctx; what is left then waits for the next process.
func (c *Compactor) Shrink(ctx context.Context) error {
	select {
	case c.maintaining <- struct{}{}:
		defer func() { <-c.maintaining }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	collector := manifest.NewCollector(c.Manifests, c.Retention.Closing())
	for more := true; more; {
		revisions, err := collector.Retain(ctx)
		if err != nil {
			return err
		}
		files, err := collector.Collect(ctx)
		if err != nil {
			return err
		}
		more = revisions || files
	}
	return nil
}

// archiveEntries moves entries to the archive that have been in the ledger for long and
// that no revision looks for: those below the cut of the oldest one that exists. A later one has no lower cut, and knows what
// is below it by name; so whoever may still publish neither lists nor reads them.
func (c *Compactor) archiveEntries(ctx context.Context) (more bool, err error) {
	oldest := c.collector.Oldest()
	cut := min(oldest.EntriesFrom, ids.AtTime(c.Clock.Now().Add(-c.KeepLedger)))
	if !c.archiver.Due(cut) {
		return false, nil
	}
	if c.Archiving != nil {
		select {
		case c.Archiving <- struct{}{}:
			defer func() { <-c.Archiving }()
		default:
			return false, nil // after the next publish, perhaps: nothing waits for it, and collection must not
		}
	}
	if exists, err := c.collector.Exists(ctx, oldest); err != nil || !exists {
		return err == nil, err // another collector, or a rebuild, was faster: there is another oldest one
	}
	return c.archiver.Archive(ctx, cut, func(ctx context.Context) (bool, error) {
		return c.collector.InForce(ctx, oldest)
	})
}

// maintain runs Maintain after publishes until ctx is done. In a domain where
// nothing happens it does nothing; what is left then waits for the next publish.
func (c *Compactor) maintain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.published:
		}
		for more := true; more; {
			var err error
			if more, err = c.Maintain(ctx); err != nil && ctx.Err() == nil {
				c.Logger.WarnContext(ctx, "collection failed; it is tried again after the next publish",
					slog.String("domain", c.Domain.String()), slog.Any("error", err))
			}
			wait := min(maintainEvery, c.Retention.All/perAge)
			if more {
				wait = backlogEvery
			}
			if err := c.Clock.Sleep(ctx, wait); err != nil {
				return
			}
		}
	}
}

// orphanFloor is the floor that a manifest with a new delta carries: that of its
// parent, or a higher one when it is time. It stays at or below what this process
// has written and not published yet, so that its own merges, however long they
// take, can still be published; what another process is writing may have to be
// written again.
func (c *Compactor) orphanFloor(next *manifest.Manifest, delta manifest.Delta) string {
	now := c.Clock.Now()
	if told := c.storeTime.Load(); told != 0 { // a clock that is ahead must not raise it over what others write
		now = time.UnixMilli(min(told, now.UnixMilli()))
	}
	floor := min(ids.AtTime(event.At(now).Add(-c.Retention.Orphans).Time()), delta.ID)
	for _, r := range c.merges {
		if r.pending(c.manifest) {
			floor = min(floor, r.id)
		}
	}
	if next.OrphanFloor != "" && ids.Time(floor).Sub(ids.Time(next.OrphanFloor)) < c.Retention.Orphans/floorSteps {
		return next.OrphanFloor
	}
	return floor
}
