package compactor

import (
	"context"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
)

// Entry is a ledger entry to fold.
type Entry struct {
	// ID is the entry's ULID.
	ID string
	// Data is the content of the entry, if the announcer has just written the entry. If it is nil, the compactor reads
	// the entry from the store.
	Data []byte
	// Stored is when the store created the entry. The announcer of the entry learned this time from the append or from a
	// listing. If it is zero, the compactor asks the store.
	Stored time.Time
	// Proof identifies the stored object of which Data is the content, if another process has handed Data over. Data is
	// folded only if the store confirms the proof. If this process has appended the entry, Proof is zero.
	Proof Proof

	refused bool  // the entry is a dead letter: an older build refused it, or its run was unknown
	skipped bool  // an operator has decided to skip the entry if it cannot be read
	size    int64 // size of the content in bytes; set only if Data is nil; 0: unknown
}

// bytes returns the size of the content, or 0 if it is unknown.
func (e Entry) bytes() int64 { return max(e.size, int64(len(e.Data))) }

// withoutData returns the entry without its content, which the compactor then reads from the store.
func (e Entry) withoutData() Entry {
	e.size, e.Data, e.Proof = e.bytes(), nil, Proof{}
	return e
}

// Request is a request to fold entries.
type Request struct {
	Entries []Entry
	// Barrier: the ledger is listed before the fold, so that everything that was durable when the request arrived is
	// folded, too.
	Barrier bool
	// Sweep marks a request by a sweeper. When the compactor publishes for this request, it also ensures that the
	// domain has the wakeup that it needs. Through is the latest minute of the wakeups that the sweeper has found. Of
	// these, the wakeups up to [Result.ReleasedThrough] may then be deleted.
	Sweep   bool
	Through event.Time
	// Flush: running merges are awaited, and their results are published. A process requests this before it exits,
	// because unpublished merges are lost.
	Flush bool
	// Notified means that a notification of the bucket announced the entries. Their writer may have
	// handed them to another instance.
	Notified bool
	// Lazy: the entries linger until an urgent request or a barrier arrives, but no longer than MaxLinger.
	Lazy bool

	remainder []Entry // announced entries that are left for the next batch
}

// Result is the answer to a request.
type Result struct {
	// Revision is a revision that contains the entries of the request.
	Revision int64 `json:"revision"`
	// Folded is the number of groups that were folded or refused for the first time.
	Folded int `json:"folded"`
	// CaughtUpAt is a time in RFC 3339. Everything that the ledger contained at this time is folded. CaughtUpAt is the
	// latest time for which this is known.
	CaughtUpAt string `json:"caught_up_at"`
	// Unreadable are entries of the ledger that are not folded. Such an entry cannot be read, or names a plan that
	// cannot be read, or contains a TimerFired that must wait for an unreadable entry. A result names at most 1,000 of
	// these entries. The compactor retries them.
	Unreadable []string `json:"unreadable,omitempty"`
	// ReleasedThrough is the minute up to which wakeups may be deleted.
	ReleasedThrough event.Time `json:"released_through,omitzero"`
}

// MaxLinger is the maximum time for which a lazy entry lingers.
const MaxLinger = 2 * time.Second

const (
	// maxBatch is the default of [Options.MaxBatch].
	maxBatch = 2000
	// maxWaitingBytes limits the content of waiting entries in memory. Beyond this limit, content is dropped, and is
	// read from the store later. Many entries wait if folding fails for a long time.
	maxWaitingBytes = 64 << 20
)

// waiter receives the answer to a request.
type waiter chan<- answer

type answer struct {
	result Result
	err    error
}

// batch contains the requests that are folded together.
type batch struct {
	Request
	waiters []waiter
}

// inbox collects requests while a batch is being folded.
type inbox struct {
	clock clock.Clock
	limit int // maximum number of entries in a batch

	mu           sync.Mutex
	waiting      batch
	waitingBytes int64 // size of the content of the waiting entries
	urgent       bool
	due          time.Time // when the linger of the waiting entries ends; zero: no entry lingers
	wake         chan struct{}
}

func newInbox(c clock.Clock, limit int) *inbox {
	return &inbox{clock: c, limit: limit, wake: make(chan struct{}, 1)}
}

// put adds a request, which lingers for at most the given time. The waiter w, which may be nil, receives the answer.
func (b *inbox) put(r Request, linger time.Duration, w waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range r.Entries {
		if b.waitingBytes+int64(len(e.Data)) > maxWaitingBytes {
			e = e.withoutData()
		}
		b.waitingBytes += int64(len(e.Data))
		b.waiting.Entries = append(b.waiting.Entries, e)
	}
	b.waiting.Barrier = b.waiting.Barrier || r.Barrier
	b.waiting.Sweep, b.waiting.Through = b.waiting.Sweep || r.Sweep, max(b.waiting.Through, r.Through)
	b.waiting.Flush = b.waiting.Flush || r.Flush
	if w != nil {
		b.waiting.waiters = append(b.waiting.waiters, w)
	}
	if linger == 0 {
		b.urgent = true
	} else if due := b.clock.Now().Add(linger); b.due.IsZero() || due.Before(b.due) {
		b.due = due
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// entries returns the waiting entries. The caller must not change them.
func (b *inbox) entries() []Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Entries
}

// take waits for a batch and removes it from the inbox.
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

// ready removes and returns the next batch if it is urgent, or if its linger has ended. Otherwise ready returns how
// much longer the waiting entries linger, or zero if none wait.
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
	b.waiting, b.waitingBytes = batch{}, 0
	if n := b.limit; len(taken.Entries) > n {
		// The batch gets the first n entries. The other entries, all waiters and a requested flush wait for the next
		// batch. A requested barrier is in this batch only. A requested sweep is in both batches.
		b.waiting = taken
		b.waiting.Entries, b.waiting.Barrier = taken.Entries[n:], false
		for _, e := range b.waiting.Entries {
			b.waitingBytes += int64(len(e.Data))
		}
		taken.Entries, taken.remainder, taken.Flush, taken.waiters = taken.Entries[:n:n], b.waiting.Entries, false, nil
		return taken, 0, true
	}
	b.urgent, b.due = false, time.Time{}
	return taken, 0, true
}

// await waits for a request. If the parameter wait is not zero, await waits for at most that time.
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
