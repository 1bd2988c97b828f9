package compactor

import (
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/wakeup"
)

// Backlog describes what a domain has not folded yet, as far as its compactor knows. The compactor learns of an
// unannounced entry only when a barrier lists the ledger. ListingLag says how long such entries may have waited for
// that listing.
type Backlog struct {
	// Oldest is the time in the name of the oldest known entry that no revision contains yet. It is zero if there is no
	// such entry.
	Oldest time.Time
	// Unreadable is the number of entries that cannot be folded because the entry, or a plan that it names, cannot be
	// read.
	Unreadable int
	// ListingLag is how long the domain has waited for a complete listing of its ledger. It is 0 while the domain has no
	// wakeup, because a domain without a wakeup needs no listing. It is also 0 if this process has neither read nor
	// published the state for [listingSeen], because other instances may have listed the ledger meanwhile.
	ListingLag time.Duration
}

// listingSeen is how old a process's information about a domain's listings may be. A process with older information
// reports no lag. Wakeups are ten minutes apart, so as long as sweeps work, the reported lag stays below 20 minutes.
const listingSeen = 5 * time.Minute

// Backlog returns what the domain has not folded yet. It may be called from any goroutine.
func (c *Compactor) Backlog() Backlog {
	now := event.At(c.cfg.Clock.Now())
	snap, _ := c.latest.Get()
	oldest := ""
	note := func(entry string) {
		if (oldest == "" || entry < oldest) && !snap.Recorded(entry) {
			oldest = entry
		}
	}
	for _, e := range c.inbox.entries() {
		note(e.ID)
	}
	c.backlog.mu.Lock()
	defer c.backlog.mu.Unlock()
	for _, e := range c.backlog.taken {
		note(e.ID)
	}
	for _, entry := range c.backlog.listed {
		note(entry)
	}
	for _, entry := range c.backlog.gaps {
		note(entry)
	}
	b := Backlog{Unreadable: len(c.backlog.gaps), ListingLag: c.backlog.listings.lag(now)}
	if oldest != "" {
		b.Oldest = ids.Time(oldest)
	}
	return b
}

// backlog contains the entries that the goroutine of Run folds. Other goroutines may read it.
type backlog struct {
	mu sync.Mutex
	// taken contains the entries of the batch that is being folded. listed contains further entries that a listing has
	// found. gaps contains the entries that cannot be folded. A newer revision may already record some of these entries.
	taken        []Entry
	listed, gaps []string
	listings     listings
}

func (b *backlog) setTaken(entries []Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = entries
}

func (b *backlog) setListed(entries []Entry) {
	var listed []string
	for _, e := range entries {
		listed = append(listed, e.ID)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.listed = listed
}

func (b *backlog) setGaps(gaps []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gaps = gaps
}

// noteListings records when the last complete listing of the ledger began, and the minute of the wakeup in the
// current manifest.
func (c *Compactor) noteListings() {
	c.backlog.mu.Lock()
	defer c.backlog.mu.Unlock()
	c.backlog.listings.note(c.caughtUp, c.current().Wakeup.At, event.At(c.cfg.Clock.Now()))
}

// listings computes how late the listing of a ledger is.
type listings struct {
	caughtUp event.Time // when the last complete listing began
	// neededSince is the earliest time from which the domain may have needed a listing: one [wakeup.Slot] before the
	// earliest wakeup that it has had since caughtUp. See [listings.note]. neededSince is 0 if the domain has no
	// wakeup, and so needs no listing.
	neededSince event.Time
	seen        event.Time // when the other fields were last known to be current
}

// note records when the last complete listing began, and the minute of the domain's next wakeup, at which a sweep lists
// the ledger. The minute is 0 if the domain needs no wakeup. A wakeup is at most one [wakeup.Slot] later than the time
// at which the work began to need it, unless the work waits for a timer.
func (l *listings) note(caughtUp, next, now event.Time) {
	since := next.Add(-wakeup.Slot)
	switch {
	case next == 0:
		l.neededSince = 0
	case l.neededSince == 0 || caughtUp != l.caughtUp:
		l.neededSince = since
	default: // the wakeup was moved, but nothing was listed
		l.neededSince = min(l.neededSince, since)
	}
	l.caughtUp, l.seen = caughtUp, now
}

// lag returns how long a complete listing has been overdue.
func (l *listings) lag(now event.Time) time.Duration {
	if l.neededSince == 0 || now.Sub(l.seen) > listingSeen {
		return 0
	}
	return max(0, now.Sub(max(l.caughtUp, l.neededSince)))
}
