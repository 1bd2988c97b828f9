package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
)

// maxSkew is how far a writer's clock may differ from the store's.
const maxSkew = 5 * time.Minute

// ErrClock says that this machine's clock differs too much from the store's.
var ErrClock = errors.New("this machine's clock is wrong")

// clockError describes by how much a clock is off.
func clockError(off time.Duration, store time.Time) error {
	direction := "ahead of"
	if off < 0 {
		direction = "behind"
	}
	return fmt.Errorf("%w: it is %s %s the store's, which shows %s: set the clock (at most %s may differ), then try again",
		ErrClock, off.Abs().Round(time.Second), direction, event.At(store), maxSkew)
}

// skew is how far a clock is ahead of the store's at least (less than 0: behind), which
// told its time between two readings of this clock.
func skew(before, store, after time.Time) time.Duration {
	switch {
	case store.Before(before) && before.Before(after), store.Before(after) && !before.Before(after):
		return min(before.Sub(store), after.Sub(store))
	case store.After(before) && store.After(after):
		return max(before.Sub(store), after.Sub(store))
	}
	return 0
}

// checkClock makes sure, before the first append and after each answer that speaks
// against it, that this machine's clock agrees with the store's. Otherwise the error is
// an [ErrClock]. An entry that is written under a wrong clock is refused by the
// compactor, or misleads whoever goes by its times.
func (a *Appender) checkClock(ctx context.Context) error {
	for try := 1; !a.agrees.Load(); try++ {
		before := a.cfg.Clock.Now()
		now, ok, err := blob.TimeOf(ctx, a.cfg.Store)
		if err == nil {
			if ok {
				if off := skew(before, now, a.cfg.Clock.Now()); off.Abs() > maxSkew {
					return a.notWritten(clockError(off, now))
				}
			}
			a.agrees.Store(true)
			return nil
		}
		a.cfg.Logger.WarnContext(ctx, "the store does not tell its time, asking again", "try", try, "error", err)
		if slept := a.cfg.Clock.Sleep(ctx, min(firstDelay<<min(try-1, 16), lastDelay)); slept != nil {
			return a.notWritten(fmt.Errorf("ask the store for its time: %w: %w", slept, err))
		}
	}
	return nil
}

// judge compares an entry, which this machine asked to be stored at a time, with the
// answer. The error is an [ErrClock] if the compactor will refuse the entry, or if the
// store's time is so far ahead that a listing may have passed the entry by.
func (a *Appender) judge(b *batch, before time.Time, stored blob.Object) error {
	off := skew(before, stored.Updated, a.cfg.Clock.Now())
	if off.Abs() > maxSkew {
		a.agrees.Store(false) // the next append asks first
	}
	switch {
	case ids.Time(b.name).Sub(stored.Updated) > ids.MaxAhead:
		return a.notWritten(fmt.Errorf("entry %s is refused: %w", b.name, clockError(ids.Time(b.name).Sub(stored.Updated), stored.Updated)))
	case off < -maxSkew && stored.Updated.Sub(ids.Time(b.name)) >= MaxBehind:
		return a.unknown(clockError(off, stored.Updated))
	}
	return nil
}
