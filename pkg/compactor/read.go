package compactor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

const (
	// readers is how many objects are read in parallel.
	readers = 16
	// chunkBytes limits the entries that one publish records, as [Options.MaxBatch] limits their
	// number. Their content is in memory, and twice as much when decoded.
	chunkBytes = 32 << 20
)

// gather returns the entries that a round folds: those of its request, and with a barrier those
// that a listing of the ledger finds. It sets what the listing establishes.
func (c *Compactor) gather(ctx context.Context, r *round) ([]Entry, error) {
	if !r.Barrier {
		return c.unrecorded(r.Entries), nil
	}
	began, storeTime := event.At(c.Clock.Now()), c.storeTime.Load()
	listed, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	if !r.second {
		r.listedAt, r.complete = began, c.completeAt(max(storeTime, c.recordedAt(listed)))
		c.IDs.Observe(r.complete)
	}
	entries, skipped := slices.Clone(r.Entries), map[string]bool{}
	for _, name := range listed {
		c.observeStoreTime(name.Object.Updated)
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

// list returns what a listing finds above the id up to which the ledger is known to be folded.
func (c *Compactor) list(ctx context.Context) ([]ledger.Name, error) {
	after := ""
	if c.manifest != nil {
		after = c.manifest.Watermarks.CompleteThrough
	}
	var names []ledger.Name
	for name, err := range ledger.ListAll(ctx, c.Store, c.Domain, after) {
		if err != nil {
			return nil, fmt.Errorf("list the ledger of %s: %w", c.Domain, err)
		}
		names = append(names, name)
	}
	return names, nil
}

// recordedAt returns a time that the store had before names were listed: that of the last entry
// which the state, which was read earlier, has recorded. So a process that has just started knows a
// time. Entries that are named far ahead are ignored: they stay at the end of every listing.
func (c *Compactor) recordedAt(names []ledger.Name) int64 {
	for _, name := range slices.Backward(names) {
		if ids.Time(name.Entry).Sub(name.Object.Updated) <= ids.MaxAhead && c.recorded(name.Entry) {
			return name.Object.Updated.UnixMilli()
		}
	}
	return 0
}

// unrecorded returns the entries that are not recorded yet, each once, oldest first. If an
// entry occurs twice, it keeps the one with content, which need not be read.
func (c *Compactor) unrecorded(entries []Entry) []Entry {
	entries = slices.Clone(entries) // they belong to the request, which may be tried again
	slices.SortStableFunc(entries, func(a, b Entry) int {
		if order := strings.Compare(a.ID, b.ID); order != 0 {
			return order
		}
		return cmp.Or(len(b.Data)-len(a.Data), cmp.Compare(b.size, a.size))
	})
	for i := range entries[min(1, len(entries)):] { // the first duplicate is kept, with Stored of the others
		if a, b := &entries[i], &entries[i+1]; a.ID == b.ID && b.Stored.IsZero() {
			b.Stored = a.Stored
		} else if a.ID == b.ID && a.Stored.IsZero() {
			a.Stored = b.Stored
		}
	}
	entries = slices.CompactFunc(entries, func(a, b Entry) bool { return a.ID == b.ID })
	return slices.DeleteFunc(entries, func(e Entry) bool { return c.recorded(e.ID) })
}

// newlySupported returns the dead letters that may be folded now: events that an older build did
// not know, and those whose run exists, since they may have been unreadable when it appeared. Each
// is tried once per process, with a barrier; if it still cannot be folded, it stays a dead letter.
// One that cannot be read is tried again with the next barrier.
func (c *Compactor) newlySupported(barrier bool) []Entry {
	if !barrier {
		return nil
	}
	var entries []Entry
	for _, key := range c.state.Redrivable() {
		if n := len(entries); n > 0 && entries[n-1].ID == key.A || c.tried[key.A] {
			continue
		}
		entries = append(entries, Entry{ID: key.A, refused: true})
	}
	return entries
}

// recorded reports whether an entry was folded or refused. Entries in history are recognized by
// their names: an unknown entry that is named below them appeared when no listing could find it
// any more, and its writer has abandoned it.
func (c *Compactor) recorded(entry string) bool {
	return c.state.HasEntry(entry) || c.manifest != nil && entry < c.manifest.BaseSnapshot.EntriesFrom
}

// portion returns how many entries the next publish records: at least one.
func (c *Compactor) portion(entries []Entry) int {
	bytes := int64(0)
	for i, e := range entries {
		if bytes += e.bytes(); i > 0 && (i == c.MaxBatch || bytes > chunkBytes) {
			return i
		}
	}
	return len(entries)
}

// groups reads and decodes entries, and separates those in which a timer fired. Decisions of timers
// are folded after every fact of the round, and an entry must be recorded as a whole, since later
// listings skip it. So these entries, which are few and small, wait for the last portion.
//
// Entries that cannot be read are gaps. Dead letters are already recorded, so they are no gaps.
func (c *Compactor) groups(ctx context.Context, entries []Entry, read *reading) (facts, timers []fold.Group, err error) {
	decoded, failed, err := c.readAll(ctx, entries)
	if err != nil {
		return nil, nil, err
	}
	for i, groups := range decoded {
		switch {
		case failed[i] != nil && entries[i].refused:
			c.Logger.WarnContext(ctx, "a dead letter that may be folded now cannot be read; it is tried again",
				slog.String("domain", c.Domain.String()), slog.String("entry", entries[i].ID), slog.Any("error", failed[i]))
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

// decides reports whether a timer fired in a group.
func decides(g fold.Group) bool { return event.HasFiredTimer(g.Events) }

// inOrder sorts groups into the order of the fold: by entry, and within an entry by line, but
// decisions of timers after all facts.
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
