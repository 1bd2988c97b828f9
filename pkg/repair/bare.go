package repair

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
)

// bareFold folds the ledger entry by entry, in the order of the entries' ids. It ignores the order in which
// compactors have folded the events.
type bareFold struct {
	cfg Config
	// complete is the id up to which the first listing was complete: it found every entry below this id.
	complete string
	state    *state.State
	evictor  *evictor
	deferred *deferred
	reader   *reader
	// waiting is the reader for entries of dead letters that wait for a run. It is a separate reader, so that f.reader
	// keeps its cached entry.
	waiting *reader
	groups  int
	// versions are the versions of partitions that this fold has created.
	versions versions
	// last is the greatest id of a folded entry. Entries whose groups were all refused because of their writer's clock
	// do not count.
	last string
	// lost describes damaged archive files, and missing and damaged plans that groups name, one line each.
	lost []string
}

// bare builds a valid state from the ledger alone.
func (cfg Config) bare(ctx context.Context) (*built, error) {
	complete, err := cfg.completeBelow(ctx)
	if err != nil {
		return nil, err
	}
	cut := state.Cutoff{Seq: math.MaxInt64, Time: math.MaxInt64, Entries: complete}
	b := &built{cfg: cfg, state: state.New(cfg.Domain), closed: cfg.newSegments("")}
	b.evictor = newEvictor(cut, b.closed.add)
	f := &bareFold{cfg: cfg, complete: complete, state: b.state, evictor: b.evictor, reader: cfg.reader(), waiting: cfg.reader()}
	b.bare = f
	if err = f.ledger(ctx, ""); err != nil {
		return nil, err
	}
	if f.groups == 0 {
		found, err := cfg.remains(ctx)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, errNothing
		}
		f.lost = append(f.lost, fmt.Sprintf("ledger: it has no entries, although objects exist under %s", strings.Join(found, " and ")))
	}
	b.result.Groups, b.last = f.groups, f.last
	if err := b.rejectLoss(f.lost); err != nil {
		return nil, err
	}
	return b, b.writeBase(ctx, cut)
}

// completeBelow returns an id below which a listing that starts now finds every entry. It derives the id from the
// time of the newest stored object: the store's clock has reached at least this time, and the time in the name of an
// entry is close to the time of its upload.
func (cfg Config) completeBelow(ctx context.Context) (string, error) {
	var stored time.Time
	for _, prefix := range []string{ledger.Prefix(cfg.Domain), archive.Prefix(cfg.Domain)} {
		for object, err := range cfg.Store.List(ctx, blob.ListOptions{Prefix: prefix}) {
			if err != nil {
				return "", fmt.Errorf("list %s: %w", prefix, err)
			}
			if object.Updated.After(stored) {
				stored = object.Updated
			}
		}
	}
	if stored.IsZero() {
		return "", nil
	}
	if now := cfg.Clock.Now(); stored.After(now) { // if this machine's clock is behind the store's, use this machine's time
		stored = now
	}
	return ids.AtTime(stored.Add(-compactor.ListMargin)), nil
}

// follow folds the entries that appeared since the last listing. If a revision was read before this call, they
// include every entry that the revision has folded.
func (f *bareFold) follow(ctx context.Context) error { return f.ledger(ctx, f.complete) }

// ledger folds the entries of the ledger and the archive that are above an id and that the state has not recorded.
func (f *bareFold) ledger(ctx context.Context, after string) error {
	f.deferred = newDeferred()
	var ahead []archive.Entry
	damaged := func(err error) { f.lost = append(f.lost, "ledger: "+err.Error()) }
	for e, err := range f.reader.entries.List(ctx, archive.Range{After: after, OnDamaged: damaged}) {
		if err != nil {
			return err
		}
		if f.state.HasEntry(e.ID) {
			continue
		}
		if e.Data != nil {
			e.Stored = ids.Time(e.ID).Add(ledger.MaxBehind) // an upper bound of the time at which the entry was stored
		}
		if ahead = append(ahead, e); len(ahead) < window {
			continue
		}
		if err := f.entries(ctx, ahead); err != nil {
			return err
		}
		ahead = ahead[:0]
	}
	if err := f.entries(ctx, ahead); err != nil {
		return err
	}
	if err := f.all(ctx, f.deferred.rest()); err != nil {
		return err
	}
	for _, key := range f.deferred.timers {
		g, err := f.reader.group(ctx, key.A, key.B)
		if err == nil {
			err = f.foldGroup(ctx, g)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entries folds consecutive entries.
func (f *bareFold) entries(ctx context.Context, entries []archive.Entry) error {
	var stored []string
	for _, e := range entries {
		if e.Data == nil {
			stored = append(stored, e.ID)
		}
	}
	if err := f.reader.fetch(ctx, stored); err != nil {
		return err
	}
	for _, e := range entries {
		var err error
		if e.Data != nil {
			err = f.reader.take(ctx, e.ID, e.Data)
		} else {
			err = f.reader.load(ctx, e.ID)
		}
		if err != nil {
			return err
		}
		compactor.RefuseAhead(f.reader.groups, e.Stored)
		for _, g := range slices.Clone(f.reader.groups) {
			f.groups++
			lost, err := f.reader.lostPlans(ctx, g)
			if err != nil {
				return err
			}
			f.lost = append(f.lost, lost...)
			if g.Reason != event.ReasonClockAhead {
				f.last = max(f.last, e.ID)
			}
			if err := f.all(ctx, f.deferred.next(f.state, g)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *bareFold) all(ctx context.Context, groups []fold.Group) error {
	for _, g := range groups {
		if err := f.foldGroup(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// foldGroup folds a group, and then the dead letters that have waited for the runs that the group creates.
func (f *bareFold) foldGroup(ctx context.Context, g fold.Group) error {
	queue := []fold.Group{g}
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		next.Closed = f.evictor.evicted(fold.Names(next))
		next.Inputs, next.Bare = f.versions.observedSeqs(next), true
		result := fold.Apply(f.state, next)
		f.versions.note(next, result)
		for _, run := range result.Appeared {
			for _, key := range f.state.Waiting(run) {
				redriven, err := f.waiting.group(ctx, key.A, key.B)
				if err != nil {
					return err
				}
				queue = append(queue, redriven)
			}
		}
	}
	return f.evictor.afterGroup(ctx, f.state)
}
