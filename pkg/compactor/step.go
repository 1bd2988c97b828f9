package compactor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

const (
	// readers is how many objects are read at once.
	readers = 16
	// chunkBytes bounds the entries that one publish records, as [Options.MaxBatch] bounds
	// their number: their content is in memory at once, and twice as much decoded.
	chunkBytes = 32 << 20
)

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

// errNeedBarrier says that a group cannot be folded on what was announced alone:
// a timer fired, or a run is not known and what made it may be in the ledger.
var errNeedBarrier = errors.New("the ledger has to be listed first")

// errAnew says that the state that a step was on is not known to be an ancestor of
// the one that is published: the step has to begin anew with that.
var errAnew = errors.New("another state was published meanwhile")

// maxAnew bounds how often a step begins anew at once.
const maxAnew = 3

// Step folds entries and publishes the result. It is what Run does again and
// again, one step at a time; a simulation calls it directly.
//
// What a timer decides is decided on all that was durable when it fired, and so
// on a listing that began after that. Of a timer that the listing itself finds
// nobody knows: a listing takes several requests, and facts that appeared between
// them it may have missed. Such timers wait for a second listing.
//
// An entry that cannot be read is no error: the result names it.
func (c *Compactor) Step(ctx context.Context, r Request) (Result, error) {
	if err := c.lookFirst(ctx, r); err != nil {
		return Result{}, err
	}
	for tries := 0; ; tries++ {
		result, err := c.stepOnce(ctx, r)
		if errors.Is(err, errUnproven) {
			r.Entries = c.unhand(ctx, r.Entries, err)
			result, err = c.stepOnce(ctx, r)
		}
		result.Unread = c.settleGaps(ctx)
		if err == nil && r.Sweep {
			err = c.attend(ctx, r)
			result.Revision, result.Attended = c.revision(), c.attended()
		}
		if errors.Is(err, errAnew) && tries < maxAnew {
			continue
		}
		if err == nil && r.Settle {
			err = c.settle(ctx)
			result.Revision = c.revision()
		}
		return result, err
	}
}

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
	// What the second listing finds beyond that is left to those who announce it, and
	// to the next barrier.
	result, _, err = c.step(ctx, found)
	result.Folded += first
	return result, err
}

// round is one listing and what is folded with it.
type round struct {
	Request

	// Of the second: when the first listing began, and up to which id it was complete.
	second   bool
	listedAt event.Time
	complete string
}

// step makes a round. It gives the one that has to follow, if it has entries.
func (c *Compactor) step(ctx context.Context, r round) (result Result, next round, err error) {
	entries, skips := r.Entries, map[string]bool{}
	if r.Barrier {
		began, storeTime := event.At(c.Clock.Now()), c.storeTime.Load()
		listed, err := c.list(ctx)
		if err != nil {
			return Result{}, next, err
		}
		if !r.second {
			r.listedAt, r.complete = began, c.completeAt(max(storeTime, c.recordedAt(listed)))
			c.IDs.Observe(r.complete)
		}
		for _, name := range listed {
			c.told(name.Object.Updated)
			if name.Skip {
				skips[name.Entry] = true
				continue
			}
			entries = append(entries, Entry{ID: name.Entry, Stored: name.Object.Updated, size: name.Object.Size})
		}
	}
	entries = c.unknown(entries)
	for i := range entries {
		entries[i].skipped = skips[entries[i].ID]
	}
	c.overlooked = c.overlooked || r.Sweep && c.overlook(entries, r.Entries, r.rest)
	again := c.newlySupported(r.Barrier)
	entries = slices.Concat(again, entries)
	known := r.known(again)
	proof := c.prove(ctx, entries)
	defer func() { err = errors.Join(err, proof.done()) }()
	total := 0
	found, unread := map[string]error{}, map[string]bool{} // gaps; dead letters that cannot be read
	var decisions []fold.Group
	for len(entries) > 0 {
		n := c.portion(entries)
		part := entries[:n]
		entries = entries[n:]
		groups, decisive, err := c.groups(ctx, part, found, unread)
		if err != nil {
			return Result{}, next, err
		}
		if !r.Barrier && len(decisive) > 0 {
			return Result{}, next, errNeedBarrier
		}
		for _, g := range decisive {
			if known[g.Entry] {
				decisions = append(decisions, g)
			} else {
				next.Entries = append(next.Entries, Entry{ID: g.Entry})
			}
		}
		p := publication{groups: groups, barrier: r.Barrier, proven: proof.done}
		if len(entries) == 0 {
			if len(found) > 0 { // what timers decide waits until all facts can be read
				c.hold(found, unread, decisions, next.Entries)
				decisions, next.Entries = nil, nil
			}
			c.listedGaps(r, found)
			p.groups = inOrder(slices.Concat(groups, decisions))
			p.caughtUp, p.complete = c.established(r, next)
		}
		folded, err := c.foldAndPublish(ctx, p)
		if err != nil {
			return Result{}, next, err
		}
		total += folded
	}
	for _, e := range again {
		if !unread[e.ID] {
			c.tried[e.ID] = true
		}
	}
	c.listedGaps(r, found)
	// With nothing new in the ledger the listing itself is the news. It is not
	// worth a manifest: the next one will carry it.
	caughtUp, complete := c.established(r, next)
	c.complete = max(c.complete, complete)
	if caughtUp > c.caughtUp {
		c.caughtUp = caughtUp
		c.share()
	}
	next.Barrier, next.second, next.listedAt, next.complete = true, true, r.listedAt, r.complete
	return c.result(total), next, nil
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

// ends reports whether all that was there when the listing began is dealt with. A
// timer that only the second listing finds appeared after the first one, and so
// has a name beyond what that is complete up to.
func (r round) ends(next round) bool { return r.second || len(next.Entries) == 0 }

// established returns what a barrier knows when it ends: at what time everything in
// the ledger was folded, which gaps rule out, and up to which id all of it is.
func (c *Compactor) established(r, next round) (caughtUp event.Time, complete string) {
	switch {
	case !r.Barrier || !r.ends(next):
		return 0, ""
	case len(c.gaps.open) > 0:
		return 0, c.gaps.below(r.complete)
	}
	return r.listedAt, r.complete
}

// listedGaps notes the gaps that a round has found. A listing finds all that there are.
func (c *Compactor) listedGaps(r round, found map[string]error) {
	if r.Barrier {
		c.gaps.relist(found)
		return
	}
	maps.Copy(c.gaps.open, found)
}

// hold makes gaps of the entries in which timers fired: what timers decide waits until
// every fact can be read. Dead letters among them are tried again.
func (c *Compactor) hold(found map[string]error, unread map[string]bool, decisions []fold.Group, listed []Entry) {
	for _, g := range decisions {
		if c.recorded(g.Entry) {
			unread[g.Entry] = true
		} else {
			found[g.Entry] = nil
		}
	}
	for _, e := range listed {
		found[e.ID] = nil
	}
}

// list is what a listing finds beyond what is known to be complete.
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

// recordedAt is a time that the store had before names were listed: the latest of
// an entry that the state, which was read before, has recorded. A process that has
// just started thus knows a time, too. Entries that are named far ahead are skipped:
// they stay at the end of every listing, however old they are.
func (c *Compactor) recordedAt(names []ledger.Name) int64 {
	for _, name := range slices.Backward(names) {
		if ids.Time(name.Entry).Sub(name.Object.Updated) <= ids.MaxAhead && c.recorded(name.Entry) {
			return name.Object.Updated.UnixMilli()
		}
	}
	return 0
}

// unknown are the entries that are not recorded yet, once each, oldest first.
// What was handed over with its bytes need not be read.
func (c *Compactor) unknown(entries []Entry) []Entry {
	entries = slices.Clone(entries) // they are the request's, which may be tried again
	slices.SortStableFunc(entries, func(a, b Entry) int {
		if order := strings.Compare(a.ID, b.ID); order != 0 {
			return order
		}
		return cmp.Or(len(b.Data)-len(a.Data), cmp.Compare(b.size, a.size))
	})
	for i := range entries[min(1, len(entries)):] { // the first of several is kept, with what the others know
		if a, b := &entries[i], &entries[i+1]; a.ID == b.ID && b.Stored.IsZero() {
			b.Stored = a.Stored
		} else if a.ID == b.ID && a.Stored.IsZero() {
			a.Stored = b.Stored
		}
	}
	entries = slices.CompactFunc(entries, func(a, b Entry) bool { return a.ID == b.ID })
	return slices.DeleteFunc(entries, func(e Entry) bool { return c.recorded(e.ID) })
}

// newlySupported returns the dead letters that may be folded now: events that an older
// build did not know, and those whose run exists, since they may have been unreadable
// when it appeared. Each is tried once a process, with a barrier; what still cannot be
// folded stays the dead letter that it is. One that cannot be read holds up nothing, and
// is tried again with the next barrier.
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

// recorded reports whether an entry was dealt with. Those that history has are
// known by their names: what is named below it and is not known appeared when no
// listing could find it any more, and its writer has given it up.
func (c *Compactor) recorded(entry string) bool {
	return c.state.Recorded(entry) || c.manifest != nil && entry < c.manifest.BaseSnapshot.EntriesFrom
}

// groups reads and decodes entries. Those in which a timer fired come apart: what
// timers decide is folded after every fact that came with it, in whatever part,
// and an entry is recorded as a whole, since a listing passes over it from then
// on. So these entries wait, decoded, for the last part. They are small and few.
//
// Entries that cannot be read are left out, and noted in found with the reason. Dead
// letters are recorded already, and so no gaps: they are noted in unread.
func (c *Compactor) groups(ctx context.Context, entries []Entry, found map[string]error, unread map[string]bool) (groups, decisive []fold.Group, err error) {
	decoded, failed, err := c.readAll(ctx, entries)
	if err != nil {
		return nil, nil, err
	}
	for i, entry := range decoded {
		switch {
		case failed[i] != nil && entries[i].refused:
			c.Logger.WarnContext(ctx, "a dead letter that may be folded now cannot be read; it is tried again",
				slog.String("domain", c.Domain.String()), slog.String("entry", entries[i].ID), slog.Any("error", failed[i]))
			unread[entries[i].ID] = true
		case failed[i] != nil:
			found[entries[i].ID] = failed[i]
		case slices.ContainsFunc(entry, func(g fold.Group) bool { return decides(g) > 0 }):
			decisive = append(decisive, entry...)
		default:
			groups = append(groups, entry...)
		}
	}
	return groups, decisive, nil
}

// inOrder puts groups in the order in which they are folded: by entry, and within
// an entry by line; but what timers decide comes after every fact.
func inOrder(groups []fold.Group) []fold.Group {
	slices.SortStableFunc(groups, func(a, b fold.Group) int {
		return cmp.Or(decides(a)-decides(b), strings.Compare(a.Entry, b.Entry))
	})
	return groups
}

func decides(g fold.Group) int {
	if event.Decides(g.Events) {
		return 1
	}
	return 0
}

// publication is what one manifest is to record.
type publication struct {
	groups  []fold.Group
	barrier bool
	// proven waits until the store has confirmed what other processes handed over; nil:
	// nothing was.
	proven func() error
	// caughtUp is when the ledger was listed, if this completes that listing.
	caughtUp event.Time
	// complete is the id up to which that listing is complete, or "".
	complete string
	// through is the minute up to which markers may be deleted from here on, and soon
	// has the next one not wait for its slot.
	through event.Time
	soon    bool
}

// foldAndPublish folds groups and publishes, anew on the winner's state whenever
// another writer was faster. It gives the number of groups dealt with.
func (c *Compactor) foldAndPublish(ctx context.Context, p publication) (n int, err error) {
	ctx, traced := c.traceFold(ctx, p.groups)
	defer func() { traced.end(ctx, c.revision(), n, err) }()
	for {
		work := c.state.Copy()
		n, err = c.fold(ctx, work, p)
		if err != nil || n == 0 {
			return n, err
		}
		if p.proven != nil {
			if err := p.proven(); err != nil {
				return 0, err
			}
		}
		err = c.publish(ctx, work, p)
		switch {
		case err == nil:
			return n, nil
		case errors.Is(err, manifest.ErrConflict), errors.Is(err, manifest.ErrNotCommitted):
			first := c.manifest == nil
			follows, err := c.reload(ctx)
			if err != nil {
				return 0, err
			}
			if !follows && !first { // what was listed is not all that this state lacks
				return 0, fmt.Errorf("fold %s: %w", c.Domain, errAnew)
			}
		default:
			return 0, err
		}
	}
}

// fold folds groups into work, and then the dead letters that waited for runs
// that they brought.
func (c *Compactor) fold(ctx context.Context, work *state.State, p publication) (int, error) {
	n := 0
	revision := int64(1)
	if c.manifest != nil {
		revision = c.manifest.Revision + 1
	}
	queue := slices.Clone(p.groups)
	for len(queue) > 0 {
		g := queue[0]
		queue = queue[1:]
		g.Revision = revision
		if c.buried(work, g) {
			continue
		}
		var err error
		if g.Closed, err = c.closed(ctx, work, g); err != nil {
			return 0, err
		}
		r := fold.Apply(work, g)
		if r.Known {
			continue
		}
		n++
		if r.Row.Outcome == state.DeadLetter && r.Row.RunID != "" && !p.barrier {
			return 0, errNeedBarrier
		}
		for _, run := range r.Appeared {
			redriven, err := c.waiting(ctx, work, run)
			if err != nil {
				return 0, err
			}
			queue = append(redriven, queue...)
		}
	}
	return n, nil
}

// buried reports whether history has a group. It comes here when another group
// of its entry waited, and is tried again.
func (c *Compactor) buried(work *state.State, g fold.Group) bool {
	return c.manifest != nil && g.Entry < c.manifest.BaseSnapshot.EntriesFrom &&
		work.Entries.Get(state.Key2{A: g.Entry, B: g.ID}) == nil
}

// closed are the runs that a group names which only history has.
//
// Where history is damaged folding goes on: what would begin a run that may be
// there does not, and what else names one waits as for a run that is not known.
func (c *Compactor) closed(ctx context.Context, work *state.State, g fold.Group) ([]string, error) {
	var closed []string
	for _, run := range fold.Names(g) {
		if work.Runs.Get(run) != nil {
			continue
		}
		has, err := snapshot.HistoryOf(c.Codec, c.Manifests, c.manifest).Has(ctx, run)
		if manifest.Damaged(err) {
			if live, liveErr := c.Manifests.Live(ctx, c.manifest); liveErr == nil && live {
				c.Logger.ErrorContext(ctx, "history is damaged; `servo admin rebuild` makes the state anew",
					slog.String("domain", c.Domain.String()), slog.Any("error", err))
				has, err = fold.Begins(g, run), nil
			}
		}
		if err != nil {
			return nil, err
		}
		if has {
			closed = append(closed, run)
		}
	}
	return closed, nil
}

// waiting are the groups of dead letters that wait for a run.
func (c *Compactor) waiting(ctx context.Context, work *state.State, run string) ([]fold.Group, error) {
	var groups []fold.Group
	archived := archive.NewReader(c.Store, c.Domain)
	for _, key := range work.Waiting(run) {
		all, err := c.decode(ctx, Entry{ID: key.A, refused: true}, archived)
		if err == nil {
			all = slices.DeleteFunc(all, func(g fold.Group) bool { return g.ID != key.B })
			err = FetchPlans(ctx, c.Store, c.Domain, all)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // it stays a dead letter, which the next barrier tries again
			c.Logger.WarnContext(ctx, "a dead letter whose run has appeared cannot be read; it is tried again",
				slog.String("domain", c.Domain.String()), slog.String("entry", key.A), slog.Any("error", err))
			delete(c.tried, key.A)
			continue
		}
		groups = append(groups, all...)
	}
	return groups, nil
}
