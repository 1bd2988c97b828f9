package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
)

const (
	// maxAnswer is how old a name may be when the store answers: what takes longer
	// may have been passed by a listing, and is written anew.
	maxAnswer = 30 * time.Second

	// MaxBehind is how far the time in a name may be behind the store's clock when
	// the entry appears: listings rely on it. See docs/format/ledger.md.
	MaxBehind = 60 * time.Second

	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// batch is an entry on its way.
type batch struct {
	waiters []*waiter
	data    []byte
	events  int
	urgent  bool

	name   string // "" until it is minted
	key    string
	minted time.Time
	tries  int // under this name
	asked  int // under any name
}

func (b *batch) add(w *waiter) {
	b.waiters = append(b.waiters, w)
	b.data = append(b.data, w.data...)
	b.events += w.events
	b.urgent = b.urgent || w.urgent
}

func (b *batch) entry(stored blob.Object) Entry {
	return Entry{Name: b.name, Data: b.data, Object: stored, Events: b.events, Urgent: b.urgent}
}

// write stores a batch. Its error is definite, unless ctx is done or it matches ErrUnknown.
func (a *Appender) write(ctx context.Context, b *batch) (blob.Object, error) {
	for {
		if b.name == "" || a.cfg.Clock.Now().Sub(b.minted) >= maxAnswer {
			a.rename(b)
		}
		asked := a.cfg.Clock.Now()
		stored, err := a.try(ctx, b)
		if err == nil && !stored.Updated.IsZero() {
			if wrong := a.judge(b, asked, stored); wrong != nil {
				return blob.Object{}, wrong
			}
		}
		switch {
		case err == nil && !a.passed(b, stored):
			return stored, nil
		case err == nil:
			a.cfg.Logger.WarnContext(ctx, "a listing may have passed the entry, appending anew: the answer was slow, or this clock is behind the store's",
				"entry", b.key, "stored_at", stored.Updated)
			b.name = ""
			continue
		case errors.Is(err, errTaken):
			b.name = ""
			if b.asked == 1 {
				continue
			}
		case errors.Is(err, blob.ErrInvalid):
			return blob.Object{}, fmt.Errorf("append ledger entry %s: %w", b.key, err)
		}
		a.cfg.Logger.WarnContext(ctx, "ledger append has an unknown outcome, repeating it", "entry", b.key, "try", b.asked, "error", err)
		if err := a.cfg.Clock.Sleep(ctx, b.delay()); err != nil {
			return blob.Object{}, err
		}
	}
}

// passed reports whether a listing may have passed an entry by that has been
// stored. The ids that are minted from now on are those of the store's time, if
// this machine's clock is behind it.
func (a *Appender) passed(b *batch, stored blob.Object) bool {
	a.cfg.IDs.Observe(ids.AtTime(stored.Updated))
	return a.cfg.Clock.Now().Sub(b.minted) >= maxAnswer || stored.Updated.Sub(ids.Time(b.name)) >= MaxBehind
}

// rename gives a batch a new name, greater than every id in it: those have all
// been observed.
func (a *Appender) rename(b *batch) {
	b.minted = a.cfg.Clock.Now()
	b.name = a.cfg.IDs.New()
	b.key = Key(a.cfg.Domain, b.name)
	b.tries = 0
}

// errTaken says that a batch's name is that of another entry.
var errTaken = errors.New("the name is taken")

// try writes a batch once. Its error is errTaken, blob.ErrInvalid, or of an
// unknown outcome.
func (a *Appender) try(ctx context.Context, b *batch) (blob.Object, error) {
	b.tries++
	b.asked++
	stored, err := a.cfg.Store.Create(ctx, b.key, b.data)
	switch {
	case !errors.Is(err, blob.ErrExists):
		return stored, err
	case b.tries == 1:
		return blob.Object{}, fmt.Errorf("%s: %w", b.key, errTaken)
	}
	// It exists, most likely by an earlier try whose answer was lost.
	data, stored, err := blob.Get(ctx, a.cfg.Store, b.key, MaxEntryBytes)
	switch {
	case err != nil:
		// Absent would mean that it was folded and archived already: an odd time to
		// be told, and to be appended anew once the name is too old.
		return blob.Object{}, fmt.Errorf("read back %s: %w", b.key, err)
	case !bytes.Equal(data, b.data):
		return blob.Object{}, fmt.Errorf("%s: %w", b.key, errTaken)
	case stored.Updated.IsZero(): // when it appeared decides whether listings have passed it by
		if stored, err = a.cfg.Store.Head(ctx, b.key); err != nil {
			return blob.Object{}, fmt.Errorf("read back %s: %w", b.key, err)
		}
	}
	return stored, nil
}

// delay is how long to wait before the next try: doubling, less up to a half
// that depends on what is written, so that writers part, and replays do not.
func (b *batch) delay() time.Duration {
	d := min(firstDelay<<min(b.asked-1, 16), lastDelay)
	spread := uint64(blob.CRC32C(fmt.Appendf(nil, "%s#%d", b.key, b.asked)))
	return d - time.Duration(spread*uint64(d/2)>>32)
}
