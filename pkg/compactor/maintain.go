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
	// maintainEvery is the longest interval between maintenance rounds while there are publishes.
	maintainEvery = time.Minute
	// perAge is how many rounds run in the time that a revision needs to expire.
	perAge = 3
	// backlogEvery is the interval while a round leaves work for the next one.
	backlogEvery = time.Second
	// floorSteps limits how often the floor rises: by at least this fraction of Retention.Orphans.
	floorSteps = 10
)

// Maintain deletes revisions, pins and state files that the domain's retention does not keep, and
// moves old entries from the ledger to the archive. It does a bounded amount of work, and reports
// whether there is more.
//
// [Compactor.Run] calls it after publishes. Where nothing runs between requests, it is a request of
// its own. It may run concurrently with folding and on any number of instances. A second call on
// the same compactor returns at once while the first one runs.
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

// Shrink collects like Maintain, but keeps few revisions. A process calls it before it ends, if it
// is the only user of the domain. The caller limits its time by ctx; the next process does the
// remaining work.
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

// archiveEntries moves entries to the archive that are old enough and below the history cutoff of
// the oldest existing revision. Later revisions have no lower cutoff, and recognize entries below
// it by their names. Therefore a process that may still publish never lists or reads an archived
// entry.
func (c *Compactor) archiveEntries(ctx context.Context) (more bool, err error) {
	oldest := c.collector.Oldest()
	cutoff := min(oldest.EntriesFrom, ids.AtTime(c.Clock.Now().Add(-c.KeepLedger)))
	if !c.archiver.Due(cutoff) {
		return false, nil
	}
	if c.ArchiveSlots != nil {
		select {
		case c.ArchiveSlots <- struct{}{}:
			defer func() { <-c.ArchiveSlots }()
		default:
			return false, nil // retried after a later publish; collection must not wait for it
		}
	}
	if exists, err := c.collector.Exists(ctx, oldest); err != nil || !exists {
		return err == nil, err // if another process has deleted it, another revision is the oldest
	}
	return c.archiver.Archive(ctx, cutoff, func(ctx context.Context) (bool, error) {
		return c.collector.InForce(ctx, oldest)
	})
}

// maintain calls Maintain after publishes until ctx is done. In an idle domain it does nothing;
// remaining work waits for the next publish.
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
				c.Logger.WarnContext(ctx, "collection failed; it is retried after the next publish",
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

// orphanFloor returns the floor of a manifest: that of its parent, or a higher one when it is due.
// The floor stays at or below oldest, the least id of the unpublished files of this process, so
// that its merges can be published however long they take. Another process may have to write its
// files again.
func orphanFloor(parent, oldest string, now time.Time, age time.Duration) string {
	floor := min(ids.AtTime(event.At(now).Add(-age).Time()), oldest)
	if parent != "" && ids.Time(floor).Sub(ids.Time(parent)) < age/floorSteps {
		return parent
	}
	return floor
}
