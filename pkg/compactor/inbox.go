package compactor

import (
	"context"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
)

// Entry is a ledger entry that is to be folded.
type Entry struct {
	// ID is the entry's ULID.
	ID string
	// Data is what the entry holds, when whoever announces it has just written it;
	// nil: it is read from the store.
	Data []byte
	// Stored is when the store took the entry, as its announcer was answered or
	// has listed it; zero: the store is asked.
	Stored time.Time
	// Proof identifies the stored object that Data is from, where another process handed
	// it over: Data is folded only if the store says the same. The zero value is for bytes
	// that this process has appended itself.
	Proof Proof

	refused bool  // by an older build, or for now
	skipped bool  // an operator has decided so, in case that it cannot be read
	size    int64 // of what it holds, where that is known and not at hand
}

// bytes is how much the entry holds, as far as that is known.
func (e Entry) bytes() int64 { return max(e.size, int64(len(e.Data))) }

// slim is the entry without its bytes, which are read again.
func (e Entry) slim() Entry {
	e.size, e.Data, e.Proof = e.bytes(), nil, Proof{}
	return e
}

// Request asks for entries to be folded.
type Request struct {
	Entries []Entry
	// Barrier has the ledger listed before the fold, so that everything that was
	// durable when the request came is folded with it.
	Barrier bool
	// Sweep is of a sweep: afterwards the domain has the marker that it needs, and those
	// up to Through, a minute, which the sweep has found, may be deleted as far as the
	// answer says so.
	Sweep   bool
	Through event.Time
	// Settle has what is being merged finished, and published though nothing else is:
	// for a process that is about to end, whose work it would be for nothing.
	Settle bool
	// Notified says that the bucket tells of the entries: whoever has appended them may
	// have handed them to another instance.
	Notified bool
	// Lazy entries wait for company: the next urgent ones, a barrier, or LazyDelay.
	Lazy bool

	rest []Entry // that are announced, and folded by the next request
}

// Result is what a request came to.
type Result struct {
	// Revision is a revision in which the request's entries are folded.
	Revision int64 `json:"revision"`
	// Folded is how many groups were dealt with for the first time.
	Folded int `json:"folded"`
	// CaughtUpAt is when everything in the ledger was last known to be folded, in
	// RFC 3339.
	CaughtUpAt string `json:"caught_up_at"`
	// Unread are entries that are in the ledger and not folded: they, or plans that they
	// name, cannot be read, or a timer fired in them and waits for such an entry. A result
	// names at most 1,000. The compactor tries them again.
	Unread []string `json:"unread,omitempty"`
	// Attended is a minute: markers up to it may be deleted.
	Attended event.Time `json:"attended,omitzero"`
}

// LazyDelay is how long a lazy entry waits for company, at most.
const LazyDelay = 2 * time.Second

const (
	// maxBatch is the default of [Options.MaxBatch].
	maxBatch = 2000
	// maxHeld bounds what entries that wait hold, in bytes: the others' are read from the
	// store. Where folding fails for long, they are many.
	maxHeld = 64 << 20
)

// waiter is told what became of a request.
type waiter chan<- answer

type answer struct {
	result Result
	err    error
}

// batch is what is folded together.
type batch struct {
	entries []Entry
	// rest are entries that come with the next batch: they are announced, too.
	rest    []Entry
	barrier bool
	sweep   bool
	through event.Time
	settle  bool
	waiters []waiter
}

func (b batch) request() Request {
	return Request{Entries: b.entries, rest: b.rest, Barrier: b.barrier, Sweep: b.sweep, Through: b.through, Settle: b.settle}
}

// inbox gathers requests while a batch is being folded: natural batching.
type inbox struct {
	clock clock.Clock
	limit int // of the entries of one batch

	mu      sync.Mutex
	waiting batch
	held    int64 // bytes of the entries that wait
	urgent  bool
	due     time.Time // when what waits for company has waited enough
	wake    chan struct{}
}

func newInbox(c clock.Clock, limit int) *inbox {
	return &inbox{clock: c, limit: limit, wake: make(chan struct{}, 1)}
}

// put adds a request, which waits so long for company; w may be nil.
func (b *inbox) put(r Request, patience time.Duration, w waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range r.Entries {
		if b.held+int64(len(e.Data)) > maxHeld {
			e = e.slim()
		}
		b.held += int64(len(e.Data))
		b.waiting.entries = append(b.waiting.entries, e)
	}
	b.waiting.barrier = b.waiting.barrier || r.Barrier
	b.waiting.sweep, b.waiting.through = b.waiting.sweep || r.Sweep, max(b.waiting.through, r.Through)
	b.waiting.settle = b.waiting.settle || r.Settle
	if w != nil {
		b.waiting.waiters = append(b.waiting.waiters, w)
	}
	if patience == 0 {
		b.urgent = true
	} else if due := b.clock.Now().Add(patience); b.due.IsZero() || due.Before(b.due) {
		b.due = due
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take waits until there is something to fold and takes it.
func (b *inbox) take(ctx context.Context) (batch, error) {
	for {
		taken, wait, ok := b.ready()
		if ok {
			return taken, nil
		}
		if err := b.await(ctx, wait); err != nil {
			return batch{}, err
		}
	}
}

// ready takes what is to be folded now, or says how long what waits for company still
// does; zero: nothing waits.
func (b *inbox) ready() (taken batch, wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.urgent {
		if b.due.IsZero() {
			return batch{}, 0, false
		}
		if wait = b.due.Sub(b.clock.Now()); wait > 0 {
			return batch{}, wait, false
		}
	}
	taken = b.waiting
	b.waiting, b.held = batch{}, 0
	if n := b.limit; len(taken.entries) > n {
		// The rest goes with the next batch, and so do those who wait for it. What a sweep's
		// listing finds is said with this one, and what the markers come to with both.
		b.waiting = batch{
			entries: taken.entries[n:], waiters: taken.waiters, settle: taken.settle, sweep: taken.sweep, through: taken.through,
		}
		for _, e := range b.waiting.entries {
			b.held += int64(len(e.Data))
		}
		taken = batch{entries: taken.entries[:n:n], rest: b.waiting.entries, barrier: taken.barrier, sweep: taken.sweep, through: taken.through}
		return taken, 0, true
	}
	b.urgent, b.due = false, time.Time{}
	return taken, 0, true
}

// await waits for a request, or for wait to be over when it is not zero.
func (b *inbox) await(ctx context.Context, wait time.Duration) error {
	if wait == 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.wake:
			return nil
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var sleeping sync.WaitGroup
	defer sleeping.Wait()
	defer cancel()
	slept := make(chan error, 1)
	sleeping.Go(func() { slept <- b.clock.Sleep(ctx, wait) })
	select {
	case err := <-slept:
		return err
	case <-b.wake:
		return nil
	}
}
