package compactor

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// An entry is a gap if it, or a plan that it names, cannot be read. Other facts are folded, and complete_through
// stays below the gap, so that every listing finds the entry again. Decisions of timers wait until no gap is left,
// because a gap may contain a fact that contradicts them. A gap closes when its entry is folded, or skipped by an
// operator.

const (
	// readTries is how many reads of an entry must fail in quick succession before the entry is a gap.
	readTries = 3
	// firstReadRetry is the wait before the second attempt. The wait doubles with each attempt.
	firstReadRetry = 100 * time.Millisecond
	// firstGapRetry and lastGapRetry are the shortest and the longest wait before a gap is read
	// again.
	firstGapRetry = time.Second
	lastGapRetry  = time.Minute
	// maxUnreadable is the maximum number of unreadable entries that a [Result] names.
	maxUnreadable = 1000
	// maxReported is the maximum number of entries that are logged by name after a step.
	maxReported = 10
)

// gaps are the entries of the ledger that cannot be folded.
type gaps struct {
	// open maps each gap to the error of reading it, or to nil if the entry waits for other gaps. reported contains the
	// entries that this process has logged, so that it logs each entry only once. Only the goroutine of Run uses open
	// and reported.
	open     map[string]error
	reported map[string]bool

	// A step sends a token to the channel wake if it leaves gaps. The channel holds at most one token. unread is the
	// number of gaps.
	wake   chan struct{}
	unread atomic.Int64
}

func newGaps() *gaps {
	return &gaps{open: map[string]error{}, reported: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// names returns the open gaps in ascending order.
func (g *gaps) names() []string { return slices.Sorted(maps.Keys(g.open)) }

// below returns the id up to which everything is folded after a listing. The listing is complete up to the id through,
// and found contains the gaps that the listing has found. If a gap is at or below through, the result is an id below
// all gaps. Otherwise, the result is through.
func below(found map[string]error, through string) string {
	for entry := range found {
		if through >= entry {
			through = ids.AtTime(ids.Time(entry).Add(-time.Millisecond))
		}
	}
	return through
}

// add adds the gaps that a step has found.
func (g *gaps) add(found map[string]error) { maps.Copy(g.open, found) }

// relist replaces the open gaps with the gaps that a listing of the ledger has found. It is called after all facts that
// the listing found are published. Entries with decisions of timers are folded later, in a second round. If such an
// entry was a gap, the gap stays open: the second round may fail, and a next batch without a listing would not find the
// entry in any other way.
func (g *gaps) relist(read *reading) {
	for _, e := range read.later {
		if reason, open := g.open[e.ID]; open {
			read.gaps[e.ID] = reason
		}
	}
	g.open = read.gaps
}

// close removes the gaps that were folded, and returns the remaining gaps that were not logged yet.
func (g *gaps) close(folded func(entry string) bool) (news []string) {
	for _, entry := range g.names() {
		if folded(entry) {
			delete(g.open, entry)
		} else if g.open[entry] != nil && !g.reported[entry] {
			g.reported[entry] = true
			news = append(news, entry)
		}
	}
	return news
}

// announce passes the number of open gaps to the goroutine of retryGaps, and wakes it if there are any.
func (g *gaps) announce() {
	g.unread.Store(int64(len(g.open)))
	if len(g.open) > 0 {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// updateGaps removes the gaps that were folded, and logs new gaps. It returns the remaining gaps, at most
// maxUnreadable.
func (c *Compactor) updateGaps(ctx context.Context) []string {
	news := c.gaps.close(c.recorded)
	for _, entry := range news[:min(len(news), maxReported)] {
		c.cfg.Logger.ErrorContext(ctx, "a ledger entry, or a plan that it names, cannot be read; retrying: timers wait for the entry, everything else continues; "+
			"if the object is lost, skip the entry with `servo admin skip`",
			slog.String("domain", c.cfg.Domain.String()), slog.String("entry", entry), slog.Any("error", c.gaps.open[entry]))
	}
	if len(news) > maxReported {
		c.cfg.Logger.ErrorContext(ctx, "further ledger entries cannot be read",
			slog.String("domain", c.cfg.Domain.String()), slog.Int("entries", len(news)-maxReported))
	}
	c.gaps.announce()
	left := c.gaps.names()
	c.backlog.setGaps(left)
	return left[:min(len(left), maxUnreadable)]
}

// retryGaps requests barriers at growing intervals as long as gaps exist.
func (c *Compactor) retryGaps(ctx context.Context) {
	wait := firstGapRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.gaps.wake:
		}
		if c.gaps.unread.Load() == 0 {
			wait = firstGapRetry
			continue
		}
		if c.cfg.Clock.Sleep(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, lastGapRetry)
		if c.gaps.unread.Load() > 0 {
			c.Announce(Request{Barrier: true})
		} else {
			wait = firstGapRetry
		}
	}
}

// readAll reads and decodes entries, and the plans that they name. If an entry cannot be read after a few attempts,
// failed contains the error at the entry's index, and decoded contains no groups there. err is set only if ctx is done.
func (c *Compactor) readAll(ctx context.Context, entries []Entry) (decoded [][]fold.Group, failed []error, err error) {
	decoded, failed = make([][]fold.Group, len(entries)), make([]error, len(entries))
	archived := archive.NewReader(c.cfg.Store, c.cfg.Domain)
	pending := make([]int, len(entries))
	for i := range entries {
		pending[i] = i
	}
	wait := firstReadRetry
	for try := 1; ; try++ {
		if err := c.readOnce(ctx, entries, pending, archived, decoded, failed); err != nil {
			return nil, nil, err
		}
		pending = slices.DeleteFunc(pending, func(i int) bool {
			_, known := c.gaps.open[entries[i].ID]
			return failed[i] == nil || known || entries[i].refused || entries[i].skipped
		})
		if len(pending) == 0 || try == readTries {
			break
		}
		if err := c.cfg.Clock.Sleep(ctx, wait); err != nil {
			return nil, nil, err
		}
		wait *= 2
	}
	for i, e := range entries {
		if failed[i] == nil || !e.skipped {
			continue
		}
		if skip, err := ledger.ReadSkip(ctx, c.cfg.Store, c.cfg.Domain, e.ID); skip != nil {
			decoded[i], failed[i] = c.refuseAhead(ctx, e, []fold.Group{Skipped(*skip)})
		} else if err != nil {
			failed[i] = err
		}
	}
	return decoded, failed, nil
}

// readOnce tries once to read the pending entries.
func (c *Compactor) readOnce(ctx context.Context, entries []Entry, pending []int, archived *archive.Reader, decoded [][]fold.Group, failed []error) error {
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(readers)
	for _, i := range pending {
		g.Go(func() error {
			groups, err := c.decode(ctx, entries[i], archived)
			mu.Lock()
			defer mu.Unlock()
			decoded[i], failed[i] = groups, err
			return nil
		})
	}
	_ = g.Wait() // the functions in the group return no errors
	for _, i := range pending {
		if failed[i] == nil {
			failed[i] = FetchPlans(ctx, c.cfg.Store, c.cfg.Domain, decoded[i])
		}
		if failed[i] != nil {
			decoded[i] = nil
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("read ledger entries: %w", err)
	}
	return nil
}
