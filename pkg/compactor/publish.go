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

// ListMargin is how much older than a listing the name of an entry may be that
// becomes visible after it. Who appends sees to it that a name is at most 60 s
// behind the store's clock.
const ListMargin = 90 * time.Second

// publish writes what changed in work and creates the next manifest. When it
// returns nil the new state is the domain's; the error of a lost race is
// [manifest.ErrConflict] or [manifest.ErrNotCommitted], and nothing has happened.
func (c *Compactor) publish(ctx context.Context, work *state.State, p publication) error {
	changed := work.Changed()
	due := c.marked(work, p)
	marked := c.mark(ctx, due)
	delta, err := c.delta(ctx, changed)
	if err := errors.Join(err, marked()); err != nil {
		return err
	}
	if c.manifest != nil && !manifest.NamedFrom(c.manifest.OrphanFloor, delta.Files) {
		return fmt.Errorf("publish: the clock of this machine, %s, is behind the orphan floor %s of revision %d: set the clock",
			event.At(c.Clock.Now()), event.At(ids.Time(c.manifest.OrphanFloor)), c.manifest.Revision)
	}
	next := c.next(work, p, delta)
	next.Due = due
	for _, r := range c.merges {
		if r.ready(next) {
			r.apply(next, event.At(c.Clock.Now()))
		}
	}
	atHand, err := c.supersede(next, delta, changed)
	if err != nil {
		return err
	}
	next.L0Count = len(next.L0)
	if next.BaseSnapshot.ID != c.baseID() {
		work.Evict(snapshot.CutOf(next))
	}
	next.RowCounts = work.Counts()
	if err := c.Manifests.Publish(ctx, next); err != nil {
		return err
	}
	work.Drain()
	c.traceEnded(ctx, state.List[state.Run](changed))
	c.state, c.manifest, c.atHand = work, next, atHand
	c.seen(next)
	c.caughtUp = max(c.caughtUp, next.Watermarks.CaughtUpAt)
	snap := c.share()
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

// write encodes rows and stores their files.
func (c *Compactor) write(ctx context.Context, id string, rows *state.Rows, tier string) (manifest.Delta, error) {
	files, err := c.Codec.Encode(rows)
	if err != nil {
		return manifest.Delta{}, err
	}
	return c.store(ctx, id, files, tier)
}

// store stores a file for each table, in parallel, named by an id that is new, so that
// a write whose answer was lost may be repeated: what it left behind under the old name
// is referred to by nothing.
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

// told notes what time it is for the store. It is called by several goroutines
// at once.
func (c *Compactor) told(t time.Time) {
	ms := t.UnixMilli()
	for {
		old := c.storeTime.Load()
		if ms <= old || c.storeTime.CompareAndSwap(old, ms) {
			return
		}
	}
}

// completeAt is the id up to which a listing is complete that began when the store
// was known to have had a time. Writers keep the names of entries up with the
// store's clock, so no other has a say in it: this machine's can only make it less.
// It is "" when the store had not told the time yet.
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

// next is the manifest after the current one, with a delta more.
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
