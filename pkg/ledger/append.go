package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// defaultMaxWaitingBytes bounds the bytes of the groups that wait in an [Appender]: the size of eight full entries.
const defaultMaxWaitingBytes = 8 * MaxEntryBytes

// Config configures an [Appender].
type Config struct {
	Domain ids.Domain
	Store  blob.Store
	IDs    *ids.Source
	Clock  clock.Clock
	// OnStored is called with every entry after it is stored, and before the waiting calls of
	// Append return. It may be nil. It must not append to the same Appender.
	OnStored func(Entry)
	// Logger receives a warning for every append that is retried. It may be nil.
	Logger *slog.Logger
	// Linger is how long buffered facts (see AppendBuffered) wait for an entry that they can join. 0 appends them
	// immediately. If Linger is not 0, the owner of the Appender must call Run.
	Linger time.Duration
	// MaxWaitingBytes is how many bytes may wait before Append blocks; 0 means 32 MiB.
	MaxWaitingBytes int
}

// Entry is a durable entry.
type Entry struct {
	Name string // the ULID of the entry
	Data []byte // read-only
	// Object is the store's answer. Its Version and CRC32C prove that Data is stored.
	Object blob.Object
	Events int
	// Urgent is true if a user or a process waits for the effect of one of the entry's events.
	Urgent bool
}

// Appended locates a group in the ledger.
type Appended struct {
	Entry string // the ULID of the entry
	Key   string // the object key of the entry
}

// Appender appends to the ledger of one domain. It is safe for concurrent use.
type Appender struct {
	cfg Config
	// clockChecked is true while the store's clock is known to agree with this machine's.
	clockChecked atomic.Bool

	mu        sync.Mutex
	queue     []*waiter     // not in a batch yet, in order of arrival
	current   *batch        // being written, or left for the next leader to write
	hasLeader bool          // a caller is writing batches
	waiting   int           // bytes of the groups in queue and in current
	room      chan struct{} // closed and replaced when the number waiting decreases

	buffered      *waiter       // facts of AppendBuffered, merged into one waiter without a caller
	bufferedFacts chan struct{} // holds a token if facts were buffered since Run last checked
}

// waiter is a group whose caller waits until the group is durable.
type waiter struct {
	data   []byte
	events int
	urgent bool
	// decides is true for a group of decisions. An entry contains either decisions or facts, so that decisions can be
	// folded after every durable fact.
	decides bool

	lead chan struct{} // receives a value once, when the caller becomes the leader
	done chan struct{} // closed when appended and err are set

	appended Appended
	err      error
	left     bool // the caller has returned
	buffered bool // the group consists of facts that AppendBuffered has buffered
	finished bool
}

// NewAppender returns the appender of a domain. A process has one per domain.
func NewAppender(cfg Config) *Appender {
	if cfg.MaxWaitingBytes <= 0 {
		cfg.MaxWaitingBytes = defaultMaxWaitingBytes
	}
	if cfg.OnStored == nil {
		cfg.OnStored = func(Entry) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Appender{cfg: cfg, room: make(chan struct{}), bufferedFacts: make(chan struct{}, 1)}
}

func newWaiter() *waiter { return &waiter{lead: make(chan struct{}, 1), done: make(chan struct{})} }

// Append makes a group of events durable: all of them in one entry, or none.
//
// Append completes the events in place: it sets Source, Domain, ID and Time if they are unset. If there are several
// events, it also sets Group and GroupSize if they are unset. It rejects an event that fails [event.Validate] with a
// *event.DecodeError before anything is written.
//
// Before the first append, the Appender compares this machine's clock with the store's. If they differ by more than 5
// minutes, nothing is written and the error matches [ErrClock].
//
// If ctx ends while the group is being written, the error wraps [ErrUnknown]. Any other
// error means that the group was not written. To retry an append whose outcome is unknown,
// pass the same events again.
func (a *Appender) Append(ctx context.Context, group []*event.Envelope) (Appended, error) {
	if err := ctx.Err(); err != nil {
		return Appended{}, a.notWritten(err)
	}
	if err := a.checkClock(ctx); err != nil {
		return Appended{}, err
	}
	w, err := a.prepare(group)
	if err != nil {
		return Appended{}, err
	}
	return a.append(ctx, w)
}

// append waits until this caller or another has written w.
func (a *Appender) append(ctx context.Context, w *waiter) (Appended, error) {
	leads, err := a.enqueue(ctx, w)
	if err != nil {
		return Appended{}, a.notWritten(err)
	}
	if !leads {
		select {
		case <-w.done:
			return w.appended, w.err
		case <-w.lead:
		case <-ctx.Done():
			return a.leave(w, ctx.Err())
		}
	}
	return a.leadUntil(ctx, w)
}

func (a *Appender) notWritten(err error) error {
	return fmt.Errorf("append to ledger of %s: nothing was written: %w", a.cfg.Domain, err)
}

func (a *Appender) unknown(err error) error {
	return fmt.Errorf("append to ledger of %s: %w: %w", a.cfg.Domain, ErrUnknown, err)
}

// prepare completes, validates and encodes a group.
func (a *Appender) prepare(group []*event.Envelope) (*waiter, error) {
	if len(group) == 0 {
		return nil, errors.New("append to ledger: the group has no events")
	}
	a.complete(group)
	w := newWaiter()
	w.events, w.decides = len(group), event.HasFiredTimer(group)
	for _, e := range group {
		if e.Domain != a.cfg.Domain {
			return nil, fmt.Errorf("append to ledger of %s: event %s belongs to domain %s", a.cfg.Domain, e.ID, e.Domain)
		}
		if err := event.Validate(e); err != nil {
			return nil, fmt.Errorf("append to ledger of %s: %w", a.cfg.Domain, err)
		}
		var err error
		if w.data, err = event.Encode(w.data, e); err != nil {
			return nil, fmt.Errorf("append to ledger of %s: %w", a.cfg.Domain, err)
		}
		w.urgent = w.urgent || event.Urgent(e.Payload)
	}
	if err := event.ValidateGroup(group, len(w.data)); err != nil {
		return nil, fmt.Errorf("append to ledger of %s: %w", a.cfg.Domain, err)
	}
	return w, nil
}

// complete fills in the fields that a caller may leave empty. It first observes every id
// that the events name, so that the ids that it mints are greater.
func (a *Appender) complete(group []*event.Envelope) {
	for _, e := range group {
		for _, id := range event.ULIDs(e) {
			a.cfg.IDs.Observe(id)
		}
	}
	for _, e := range group {
		if e.ID == "" {
			e.ID = a.cfg.IDs.New()
		}
		if e.Time == 0 {
			e.Time = event.At(a.cfg.Clock.Now())
		}
		if e.Domain == (ids.Domain{}) {
			e.Domain = a.cfg.Domain
		}
		if e.Source == "" {
			e.Source = a.cfg.Domain.Source()
		}
	}
	if len(group) == 1 {
		return
	}
	for _, e := range group {
		if e.Group == "" {
			e.Group = group[0].ID
		}
		if e.GroupSize == 0 {
			e.GroupSize = len(group)
		}
	}
}
