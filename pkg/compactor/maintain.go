package compactor

import (
	"context"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

const (
	// maintainEvery is the longest interval between maintenance rounds while there are publishes.
	maintainEvery = time.Minute
	// perAge is the least number of maintenance rounds during the retention time of a revision.
	perAge = 3
	// backlogEvery is the interval between maintenance rounds while each round leaves work for the next one.
	backlogEvery = time.Second
	// floorSteps limits how often the orphan floor rises: each time by at least Retention.Orphans divided by floorSteps.
	floorSteps = 10
)

// maintenance deletes what the retention of a domain does not keep, and archives old entries.
type maintenance struct {
	cfg       Config
	published chan struct{} // each publish puts a token into this channel, which holds at most one
	turn      chan struct{} // holds a token while a goroutine runs maintenance; that goroutine owns the other fields
	collector *manifest.Collector
	archiver  *archive.Archiver
}

func newMaintenance(cfg Config) *maintenance {
	return &maintenance{
		cfg: cfg, published: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		collector: manifest.NewCollector(cfg.Manifests, cfg.Retention),
		archiver: archive.New(archive.Config{
			Domain: cfg.Domain, Store: cfg.Store, Clock: cfg.Clock, Logger: cfg.Logger, Span: cfg.ArchiveSpan,
		}),
	}
}

// Maintain deletes revisions, pins and state files that the domain's retention does not keep, and
// moves old entries from the ledger to the archive. It does a bounded amount of work, and reports
// whether there is more.
//
// [Compactor.Run] calls it after publishes. On serverless platforms, where no code runs between requests, a separate
// request calls it. It may run concurrently with folding and on any number of instances. A second call on the same
// compactor returns immediately while the first one runs.
func (c *Compactor) Maintain(ctx context.Context) (more bool, err error) {
	return c.maintenance.once(ctx)
}

// once implements [Compactor.Maintain]. It does nothing while another goroutine runs maintenance.
func (m *maintenance) once(ctx context.Context) (more bool, err error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	default:
		return false, nil
	}
	more, err = collect(ctx, m.collector)
	if err != nil {
		return false, err
	}
	entries, err := m.archiveEntries(ctx)
	return more || entries, err
}

// collect deletes some revisions and files that retention does not keep.
func collect(ctx context.Context, c *manifest.Collector) (more bool, err error) {
	revisions, err := c.Retain(ctx)
	if err != nil {
		return false, err
	}
	files, err := c.Collect(ctx)
	return revisions || files, err
}

// pinned returns the revisions that people have pinned at the time now, and whether this process knows the newest
// revision. If it does not, a newer revision may contain more pins.
func (c *Compactor) pinned(ctx context.Context, now event.Time) (revisions map[int64]bool, current bool, err error) {
	snap, _ := c.Latest().Get()
	newest, err := c.cfg.Manifests.Load(ctx)
	if err != nil || snap == nil || snap.Revision < newest.Revision {
		return nil, false, err
	}
	revisions = map[int64]bool{}
	for revision := range snap.State.PinnedAt(now) {
		revisions[revision] = true
	}
	return revisions, true, nil
}

// Shrink collects like Maintain, but keeps fewer revisions. A process that is the only user of the domain calls
// Shrink before it exits, and limits the time by ctx. The next process collects the rest.
func (c *Compactor) Shrink(ctx context.Context) error {
	select {
	case c.maintenance.turn <- struct{}{}:
		defer func() { <-c.maintenance.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	collector := manifest.NewCollector(c.cfg.Manifests, c.cfg.Retention.Closing())
	collector.Ask(c.pinned)
	for more := true; more; {
		var err error
		if more, err = collect(ctx, collector); err != nil {
			return err
		}
	}
	return nil
}

// archiveEntries moves entries to the archive if they are old enough, and below the history cutoff of the oldest
// existing revision. Later revisions have the same cutoff or a higher one. A process recognizes entries below its
// cutoff by their names, and so never needs to list or read them. Therefore an archived entry is neither listed nor
// read by any process that may still publish.
func (m *maintenance) archiveEntries(ctx context.Context) (more bool, err error) {
	oldest := m.collector.Oldest()
	cutoff := min(oldest.EntriesFrom, ids.AtTime(m.cfg.Clock.Now().Add(-m.cfg.KeepLedger)))
	if !m.archiver.Due(cutoff) {
		return false, nil
	}
	if m.cfg.ArchiveSlots != nil {
		select {
		case m.cfg.ArchiveSlots <- struct{}{}:
			defer func() { <-m.cfg.ArchiveSlots }()
		default:
			return false, nil // all slots are taken: try again after a later publish
		}
	}
	if exists, err := m.collector.Exists(ctx, oldest); err != nil || !exists {
		return err == nil, err // another process has deleted the revision: a later one is the oldest now
	}
	return m.archiver.Archive(ctx, cutoff, func(ctx context.Context) (bool, error) {
		return m.collector.InForce(ctx, oldest)
	})
}

// run runs maintenance after publishes until ctx is done. In an idle domain, run does nothing, so work that is left
// waits for the next publish.
func (m *maintenance) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.published:
		}
		for more := true; more; {
			var err error
			if more, err = m.once(ctx); err != nil && ctx.Err() == nil {
				m.cfg.Logger.WarnContext(ctx, "collection failed; it is retried after the next publish",
					slog.String("domain", m.cfg.Domain.String()), slog.Any("error", err))
			}
			wait := min(maintainEvery, m.cfg.Retention.All/perAge)
			if more {
				wait = backlogEvery
			}
			if err := m.cfg.Clock.Sleep(ctx, wait); err != nil {
				return
			}
		}
	}
}

// orphanFloor returns the floor of a manifest: the floor of its parent, or a higher one if the floor is due to rise.
// The floor stays at or below oldest, the least id of the unpublished files of this process, so that its merges can
// be published however long they take. If another process has unpublished files below the floor, it must write them
// again.
func orphanFloor(parent, oldest string, now time.Time, age time.Duration) string {
	floor := min(ids.AtTime(event.At(now).Add(-age).Time()), oldest)
	if parent != "" && ids.Time(floor).Sub(ids.Time(parent)) < age/floorSteps {
		return parent
	}
	return floor
}
