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

// defaultMaxWaitingBytes bounds what waits in an [Appender]: eight full entries.
const defaultMaxWaitingBytes = 8 * MaxEntryBytes

// Config is what an [Appender] needs.
type Config struct {
	Domain ids.Domain
	Store  blob.Store
	IDs    *ids.Source
	Clock  clock.Clock
	// OnDurable is told of every entry once it is stored, before the callers that
	// waited for it return. It may be nil. It must not append to the same Appender.
	OnDurable func(Entry)
	// Logger is told of appends that are repeated. It may be nil.
	Logger *slog.Logger
	// Company is how long what AppendSoon takes waits for an entry to ride with; 0: it
	// is appended at once. Who sets it calls Run.
	Company time.Duration
	// MaxWaitingBytes is how much may wait before Append blocks; 0: 32 MiB.
	MaxWaitingBytes int
}

// Entry is an entry that is durable.
type Entry struct {
	Name string // its ULID
	Data []byte // not to be changed
	// Object is what the store answered: its Generation and CRC32C are proof that
	// Data is what is stored.
	Object blob.Object
	Events int
	// Urgent says that somebody waits for what an event in it leads to.
	Urgent bool
}

// Appended is where a group went.
type Appended struct {
	Entry string // the ULID of the entry
	Key   string // the object key of the entry
}

// Appender appends to the ledger of one domain. It is safe for concurrent use.
type Appender struct {
	cfg Config
	// agrees: the store's time was compared with this machine's, and nothing has spoken
	// against it since.
	agrees atomic.Bool

	mu      sync.Mutex
	queue   []*waiter     // not in an entry yet, in order of arrival
	current *batch        // being written, or to be carried on by the next leader
	led     bool          // somebody leads
	waiting int           // bytes in the queue and in the current batch
	room    chan struct{} // closed and replaced when waiting falls

	riding  *waiter       // what AppendSoon took, as one: nobody waits for it
	boarded chan struct{} // holds one if something rides since Run last looked
}

// waiter is a group whose caller waits for it to be durable.
type waiter struct {
	data   []byte
	events int
	urgent bool
	// decides: an entry holds decisions or facts, not both, so that decisions can
	// wait for facts.
	decides bool

	lead chan struct{} // is sent to, once, when its caller is to lead
	done chan struct{} // is closed when appended and err are set

	appended Appended
	err      error
	left     bool // its caller is gone
	riding   bool // it has no caller: it is what AppendSoon took
	finished bool
}

// NewAppender makes the appender of a domain. A process has one a domain.
func NewAppender(cfg Config) *Appender {
	if cfg.MaxWaitingBytes <= 0 {
		cfg.MaxWaitingBytes = defaultMaxWaitingBytes
	}
	if cfg.OnDurable == nil {
		cfg.OnDurable = func(Entry) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Appender{cfg: cfg, room: make(chan struct{}), boarded: make(chan struct{}, 1)}
}

func newWaiter() *waiter { return &waiter{lead: make(chan struct{}, 1), done: make(chan struct{})} }

// Append makes a group of events durable: all of them in one entry, or none.
//
// It completes the events in place: ID and Time where they are not set, Source
// and Domain, and Group and GroupSize when there are several. An event that
// [event.Validate] refuses is refused, as a *event.DecodeError, before anything
// is written.
//
// Before the first append it compares this machine's clock with the store's. If they
// differ by more than 5 minutes, nothing is written and the error matches [ErrClock].
//
// When ctx ends while the group is being written the error wraps [ErrUnknown];
// any other error says that it was not written. To repeat an append that may
// have happened, pass the same events again.
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

// append has w written, by this caller or another.
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
	w.events, w.decides = len(group), event.Decides(group)
	for _, e := range group {
		if e.Domain != a.cfg.Domain {
			return nil, fmt.Errorf("append to ledger of %s: event %s is of %s", a.cfg.Domain, e.ID, e.Domain)
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

// complete fills in what the caller need not. Ids are minted after all that the
// events name have been observed, and so are greater.
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
