package compactor

import (
	"context"
	"errors"
	"slices"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
)

// errNeedBarrier means that the announced entries cannot be folded alone: a timer fired, or a run
// is unknown and its trigger may be in the ledger.
var errNeedBarrier = errors.New("the ledger must be listed first")

// maxRestarts limits how often a step starts over immediately because another writer has published a newer state.
const maxRestarts = 3

// Step folds entries and publishes the result. Run calls it repeatedly; a simulation calls it
// directly.
//
// When a timer fires, the fold must know all facts that were durable at that moment. So the listing that finds these
// facts must begin after the timer fired. If only the listing found the entry of a timer, the timer may have fired
// during the listing. A listing takes several requests, and can miss facts that appear meanwhile. Therefore this entry
// is folded after a second listing.
//
// If an entry cannot be read, Step returns no error, and the result names the entry.
func (c *Compactor) Step(ctx context.Context, r Request) (Result, error) {
	if err := c.refreshFirst(ctx, r); err != nil {
		return Result{}, err
	}
	for tries := 0; ; tries++ {
		result, err := c.stepOnce(ctx, r)
		if errors.Is(err, errUnproven) {
			r.Entries = c.dropData(ctx, r.Entries, err)
			result, err = c.stepOnce(ctx, r)
		}
		result.Unreadable = c.updateGaps(ctx)
		if err == nil && r.Sweep {
			err = c.publishWakeups(ctx, r)
			result.Revision, result.ReleasedThrough = c.current().Revision, c.current().Wakeup.Through
		}
		if errors.Is(err, errStateChanged) && tries < maxRestarts {
			continue
		}
		if err == nil && r.Flush {
			err = c.flush(ctx)
			result.Revision = c.current().Revision
		}
		if err == nil {
			c.backlog.setListed(nil)
		}
		return result, err
	}
}

// stepOnce executes one round. If the listing of this round finds new timers, stepOnce executes a second round.
func (c *Compactor) stepOnce(ctx context.Context, r Request) (Result, error) {
	result, found, err := c.step(ctx, round{Request: r})
	if errors.Is(err, errNeedBarrier) {
		r.Barrier = true
		result, found, err = c.step(ctx, round{Request: r})
	}
	if err != nil || len(found.Entries) == 0 {
		return result, err
	}
	first := result.Folded
	// No third round follows: timers that only the second listing finds are folded when they are announced, or by the
	// next barrier.
	result, _, err = c.step(ctx, found)
	result.Folded += first
	return result, err
}

// round describes one round of a step: it lists the ledger if there is a barrier, and folds the entries.
type round struct {
	Request

	// second marks the second round. listedAt is when the listing of the first round began, and
	// complete is the id up to which that listing was complete.
	second   bool
	listedAt event.Time
	complete string
}

// reading classifies the entries that a round has read so far.
type reading struct {
	// known contains the entries that were announced, or recorded, before the round's listing.
	known map[string]bool
	// gaps maps each entry that cannot be folded yet to the error of reading it, or to nil if it waits for other gaps.
	gaps map[string]error
	// unread contains the dead letters that cannot be read.
	unread map[string]bool
	// decisions contains the groups in which known timers fired. They are folded after all facts.
	decisions []fold.Group
	// later contains the entries with timers that only the listing has found. The second round folds them.
	later []Entry
}

// step executes a round: it lists, reads, folds and publishes. It also returns the round that must follow. The returned
// round contains the entries whose timers only the listing has found. If it contains none, no further round is
// necessary.
func (c *Compactor) step(ctx context.Context, r round) (result Result, next round, err error) {
	entries, err := c.gather(ctx, &r)
	if err != nil {
		return Result{}, next, err
	}
	c.unannounced = c.unannounced || r.Sweep && hasUnannounced(c.cfg.Clock.Now(), entries, r.Entries, r.remainder)
	again := c.newlySupported(r.Barrier)
	entries = slices.Concat(again, entries)
	read := reading{known: r.known(again), gaps: map[string]error{}, unread: map[string]bool{}}
	proof := c.prove(ctx, entries)
	defer func() { err = errors.Join(err, proof.done()) }()
	for len(entries) > 0 {
		n := portion(entries, c.cfg.MaxBatch)
		part := entries[:n]
		entries = entries[n:]
		p := publication{barrier: r.Barrier, proven: proof.done}
		if p.groups, err = c.readPortion(ctx, r, part, &read); err != nil {
			return Result{}, next, err
		}
		if len(entries) == 0 {
			c.decide(r, &p, &read)
		}
		folded, err := c.foldAndPublish(ctx, p) // the commit point of this portion
		if err != nil {
			return Result{}, next, err
		}
		result.Folded += folded
	}
	next = c.finish(r, &read, again)
	return c.result(result.Folded), next, nil
}

// readPortion reads a portion of the round's entries and returns their groups of facts. It sets
// entries with timers aside. The last publication of this round folds those that were known before
// the listing, and the second round folds the others.
func (c *Compactor) readPortion(ctx context.Context, r round, part []Entry, read *reading) ([]fold.Group, error) {
	facts, timers, err := c.groups(ctx, part, read)
	if err != nil {
		return nil, err
	}
	if !r.Barrier && len(timers) > 0 {
		return nil, errNeedBarrier
	}
	for _, g := range timers {
		if read.known[g.Entry] {
			read.decisions = append(read.decisions, g)
		} else {
			read.later = append(read.later, Entry{ID: g.Entry})
		}
	}
	return facts, nil
}

// decide adds the decisions of timers to the round's last publication. It also adds the watermarks up to which the
// ledger is completely listed and folded. While a gap is open, timers wait, because the gap may contain a fact that
// contradicts them.
func (c *Compactor) decide(r round, p *publication, read *reading) {
	if len(read.gaps) > 0 {
		read.postpone(c.recorded)
	}
	c.gaps.add(read.gaps)
	p.groups = inOrder(slices.Concat(p.groups, read.decisions))
	p.caughtUp, p.complete = r.established(read)
}

// finish records how far a round has completely folded the ledger, and returns the round that must follow.
func (c *Compactor) finish(r round, read *reading, again []Entry) round {
	for _, e := range again {
		if !read.unread[e.ID] {
			c.tried[e.ID] = true
		}
	}
	if r.Barrier {
		c.gaps.relist(read)
	}
	// If the listing has found no new entries, the round publishes nothing. So keep complete for the next manifest.
	caughtUp, complete := r.established(read)
	c.complete = max(c.complete, complete)
	if caughtUp > c.caughtUp {
		c.caughtUp = caughtUp
		c.updateLatest()
	}
	return round{
		Request: Request{Entries: read.later, Barrier: true}, second: true, listedAt: r.listedAt, complete: r.complete,
	}
}

// known returns the entries that were known before the listing of a barrier.
func (r round) known(again []Entry) map[string]bool {
	known := map[string]bool{}
	if r.Barrier {
		for _, e := range slices.Concat(again, r.Entries) {
			known[e.ID] = true
		}
	}
	return known
}

// established returns how far the ledger is folded at the end of a round with a barrier. caughtUp is a time: everything
// that the ledger contained at this time is folded. It is 0 if there are gaps. The result complete is the id up to
// which everything is folded. Both are empty if timers are left for a second round. The second round returns the
// results of the first listing, which do not cover later entries. So timers that only the second listing finds need no
// third round: their names are above the id up to which the first listing is complete.
func (r round) established(read *reading) (caughtUp event.Time, complete string) {
	switch {
	case !r.Barrier || len(read.later) > 0 && !r.second:
		return 0, ""
	case len(read.gaps) > 0:
		return 0, below(read.gaps, r.complete)
	}
	return r.listedAt, r.complete
}

// postpone marks each entry that contains TimerFired as a gap. An entry that is recorded as a dead letter is not a gap:
// postpone adds it to read.unread, so that a later barrier reads it again.
func (read *reading) postpone(recorded func(entry string) bool) {
	for _, g := range read.decisions {
		if recorded(g.Entry) {
			read.unread[g.Entry] = true
		} else {
			read.gaps[g.Entry] = nil
		}
	}
	for _, e := range read.later {
		read.gaps[e.ID] = nil
	}
	read.decisions, read.later = nil, nil
}
