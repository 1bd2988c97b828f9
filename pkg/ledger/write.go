package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	// maxNameAge is how old a name may be when the store answers. If the name is older, a listing may have missed the
	// entry, which is then written again under a new name.
	maxNameAge = 30 * time.Second

	// MaxBehind is how far the time in a name may be behind the store's clock when the
	// entry appears. Listings rely on it. See docs/format/ledger.md.
	MaxBehind = 60 * time.Second

	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// batch is an entry that is being written.
type batch struct {
	waiters []*waiter
	data    []byte
	events  int
	urgent  bool

	name     string // "" until minted
	key      string
	minted   time.Time
	tries    int // tries under the current name
	attempts int // tries under all names so far
}

func (b *batch) add(w *waiter) {
	b.waiters = append(b.waiters, w)
	if len(b.waiters) == 1 { // most entries have one group: its data needs no copy
		b.data = slices.Clip(w.data)
	} else {
		b.data = append(b.data, w.data...)
	}
	b.events += w.events
	b.urgent = b.urgent || w.urgent
}

func (b *batch) entry(stored blob.Object) Entry {
	return Entry{Name: b.name, Data: b.data, Object: stored, Events: b.events, Urgent: b.urgent}
}

// write stores a batch. If ctx is done or the error matches ErrUnknown, the outcome is unknown. After any other error,
// the events of the batch are never folded.
func (a *Appender) write(ctx context.Context, b *batch) (blob.Object, error) {
	for {
		if b.name == "" || a.cfg.Clock.Now().Sub(b.minted) >= maxNameAge {
			a.mintName(b)
		}
		asked := a.cfg.Clock.Now()
		stored, err := a.try(ctx, b)
		if err == nil && !stored.Updated.IsZero() {
			if wrong := a.checkStored(b, asked, stored); wrong != nil {
				return blob.Object{}, wrong
			}
		}
		switch {
		case err == nil && !a.mayBeMissed(b, stored):
			return stored, nil
		case err == nil:
			a.cfg.Logger.WarnContext(ctx, "a listing may have missed the entry; appending it again under a new name: the answer was slow, or this machine's clock is behind the store's",
				"entry", b.key, "stored_at", stored.Updated)
			b.name = ""
			continue
		case errors.Is(err, errTaken):
			b.name = ""
			if b.attempts == 1 {
				continue
			}
		case errors.Is(err, blob.ErrInvalid):
			return blob.Object{}, fmt.Errorf("append ledger entry %s: %w", b.key, err)
		}
		a.cfg.Logger.WarnContext(ctx, "ledger append has an unknown outcome, retrying", "entry", b.key, "try", b.attempts, "error", err)
		if err := a.cfg.Clock.Sleep(ctx, b.delay()); err != nil {
			return blob.Object{}, err
		}
	}
}

// mayBeMissed reports whether a listing may have missed an entry that has been stored. It observes the store's time,
// so that no later id is older than the entry, even if this machine's clock is behind.
func (a *Appender) mayBeMissed(b *batch, stored blob.Object) bool {
	a.cfg.IDs.Observe(ids.AtTime(stored.Updated))
	return a.cfg.Clock.Now().Sub(b.minted) >= maxNameAge || stored.Updated.Sub(ids.Time(b.name)) >= MaxBehind
}

// mintName replaces the name of a batch. The new name is greater than every id in the batch, because all these ids
// have been observed.
func (a *Appender) mintName(b *batch) {
	b.minted = a.cfg.Clock.Now()
	b.name = a.cfg.IDs.New()
	b.key = Key(a.cfg.Domain, b.name)
	b.tries = 0
}

// errTaken reports that another entry has the name of a batch.
var errTaken = errors.New("the name is taken")

// try writes a batch once. After an error other than errTaken and blob.ErrInvalid, the outcome is unknown.
func (a *Appender) try(ctx context.Context, b *batch) (blob.Object, error) {
	b.tries++
	b.attempts++
	stored, err := a.cfg.Store.Create(ctx, b.key, b.data)
	switch {
	case !errors.Is(err, blob.ErrExists):
		return stored, err
	case b.tries == 1:
		return blob.Object{}, fmt.Errorf("%s: %w", b.key, errTaken)
	}
	// The name exists, most likely because of an earlier try whose answer was lost.
	data, stored, err := blob.Get(ctx, a.cfg.Store, b.key, MaxEntryBytes)
	switch {
	case err != nil:
		// If the object is absent, the entry has already been folded and archived, which is unlikely. In this case, the
		// batch is tried again until its name is too old, and is then appended under a new name.
		return blob.Object{}, fmt.Errorf("read back %s: %w", b.key, err)
	case !bytes.Equal(data, b.data):
		return blob.Object{}, fmt.Errorf("%s: %w", b.key, errTaken)
	case stored.Updated.IsZero(): // mayBeMissed needs the time at which the entry appeared
		if stored, err = a.cfg.Store.Head(ctx, b.key); err != nil {
			return blob.Object{}, fmt.Errorf("read back %s: %w", b.key, err)
		}
	}
	return stored, nil
}

// delay returns how long to wait before the next try. The delay doubles with each try, and is then shortened by up to
// half. This reduction is derived from the key, so that the tries of several writers spread out and replays stay
// deterministic.
func (b *batch) delay() time.Duration {
	d := min(firstDelay<<min(b.attempts-1, 16), lastDelay)
	spread := uint64(blob.CRC32C(fmt.Appendf(nil, "%s#%d", b.key, b.attempts)))
	return d - time.Duration(spread*uint64(d/2)>>32)
}
