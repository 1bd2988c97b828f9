package compactor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

const (
	// readers is how many objects are read in parallel.
	readers = 16
	// chunkBytes limits the total size of the entries that one publish records; [Options.MaxBatch] limits their number.
	// The content of these entries is in memory, and its decoded form takes twice as much.
	chunkBytes = 32 << 20
	// A listed entry counts as unannounced if nobody has announced it within unannouncedAge. The announcement of a
	// younger entry may be on its way.
	unannouncedAge = 15 * time.Second
)

// gather returns the entries that a round folds: the entries of its request and, with a barrier,
// the entries that a listing of the ledger finds. With a barrier, it also records the id up to which the listing is
// complete.
func (c *Compactor) gather(ctx context.Context, r *round) ([]Entry, error) {
	if !r.Barrier {
		return c.unrecorded(r.Entries), nil
	}
	began, storeTime := event.At(c.cfg.Clock.Now()), c.storeTime.Load()
	listed, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	if !r.second {
		r.listedAt, r.complete = began, completeAt(max(storeTime, c.recordedAt(listed)), c.cfg.Clock.Now())
		c.cfg.IDs.Observe(r.complete)
	}
	entries, skipped := slices.Clone(r.Entries), map[string]bool{}
	for _, name := range listed {
		c.storeTime.observe(name.Object.Updated)
		if name.Skip {
			skipped[name.Entry] = true
			continue
		}
		entries = append(entries, Entry{ID: name.Entry, Stored: name.Object.Updated, size: name.Object.Size})
	}
	entries = c.unrecorded(entries)
	c.backlog.setListed(entries)
	for i := range entries {
		entries[i].skipped = skipped[entries[i].ID]
	}
	return entries, nil
}

// list returns the objects of the ledger above the id up to which all entries are known to be
// folded.
func (c *Compactor) list(ctx context.Context) ([]ledger.Name, error) {
	var names []ledger.Name
	for name, err := range ledger.ListAll(ctx, c.cfg.Store, c.cfg.Domain, c.current().Watermarks.CompleteThrough) {
		if err != nil {
			return nil, fmt.Errorf("list the ledger of %s: %w", c.cfg.Domain, err)
		}
		names = append(names, name)
	}
	return names, nil
}

// recordedAt returns the time at which the store created the last listed entry that the state has recorded. The state
// was read before the listing, so the store's clock had reached this time before the listing. Therefore a process
// that has just started need not ask the store for its time. recordedAt ignores entries whose names are far ahead:
// they are last in every listing, however old they are.
func (l *loaded) recordedAt(names []ledger.Name) int64 {
	for _, name := range slices.Backward(names) {
		if ids.Time(name.Entry).Sub(name.Object.Updated) <= ids.MaxAhead && l.recorded(name.Entry) {
			return name.Object.Updated.UnixMilli()
		}
	}
	return 0
}

// portion returns how many of a round's remaining entries the next publish records: at least one.
func portion(entries []Entry, limit int) int {
	bytes := int64(0)
	for i, e := range entries {
		if bytes += e.bytes(); i > 0 && (i == limit || bytes > chunkBytes) {
			return i
		}
	}
	return len(entries)
}

// groups reads and decodes entries, and separates the entries in which a timer fired. Decisions of timers are folded
// after every fact of the round. If an entry contains such a decision, all its groups wait: an entry must be recorded
// as a whole, because later listings skip recorded entries. So the entries with timers, which are few and small, are
// folded in the round's last publication.
//
// Entries that cannot be read are gaps. Dead letters that cannot be read are not gaps, because they are already
// recorded.
func (c *Compactor) groups(ctx context.Context, entries []Entry, read *reading) (facts, timers []fold.Group, err error) {
	decoded, failed, err := c.readAll(ctx, entries)
	if err != nil {
		return nil, nil, err
	}
	for i, groups := range decoded {
		switch {
		case failed[i] != nil && entries[i].refused:
			c.cfg.Logger.WarnContext(ctx, "the entry of a dead letter that may be folded now cannot be read; will retry",
				slog.String("domain", c.cfg.Domain.String()), slog.String("entry", entries[i].ID), slog.Any("error", failed[i]))
			read.unread[entries[i].ID] = true
		case failed[i] != nil:
			read.gaps[entries[i].ID] = failed[i]
		case slices.ContainsFunc(groups, decides):
			timers = append(timers, groups...)
		default:
			facts = append(facts, groups...)
		}
	}
	return facts, timers, nil
}

// decides reports whether a group contains the event that a timer has fired.
func decides(g fold.Group) bool { return event.HasFiredTimer(g.Events) }

// inOrder sorts groups into the order of the fold: by entry, and within an entry by line. Decisions of timers come
// after all facts.
func inOrder(groups []fold.Group) []fold.Group {
	rank := func(g fold.Group) int {
		if decides(g) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(groups, func(a, b fold.Group) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a.Entry, b.Entry))
	})
	return groups
}

// hasUnannounced reports whether a listing has found old entries that were not announced.
func hasUnannounced(now time.Time, found []Entry, announced ...[]Entry) bool {
	known := map[string]bool{}
	for _, e := range slices.Concat(announced...) {
		known[e.ID] = true
	}
	return slices.ContainsFunc(found, func(e Entry) bool { return !known[e.ID] && now.Sub(ids.Time(e.ID)) >= unannouncedAge })
}
