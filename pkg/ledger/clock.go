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

// ErrClock reports that this machine's clock differs too much from the store's.
var ErrClock = errors.New("this machine's clock is wrong")

// clockError returns an ErrClock that says how far the clock is off.
func clockError(off time.Duration, store time.Time) error {
	direction := "ahead of"
	if off < 0 {
		direction = "behind"
	}
	return fmt.Errorf("%w: it is %s %s the store's clock (%s): set the clock to within %s of it, then try again",
		ErrClock, off.Abs().Round(time.Second), direction, event.At(store), maxSkew)
}

// skew returns a lower bound of the amount by which this machine's clock is ahead of the store's clock (negative:
// behind). The parameter store is the time that the store reported. The parameters before and after are the times on
// this machine's clock before the request to the store and after its response.
func skew(before, store, after time.Time) time.Duration {
	switch {
	case store.Before(before) && before.Before(after), store.Before(after) && !before.Before(after):
		return min(before.Sub(store), after.Sub(store))
	case store.After(before) && store.After(after):
		return max(before.Sub(store), after.Sub(store))
	}
	return 0
}

// checkClock verifies that this machine's clock agrees with the store's. It asks the store for its time before the
// first append, and again after the store's answer to a write has contradicted the clock. If the clocks differ, the
// error is an [ErrClock]: the compactor would reject an entry that was written under a wrong clock, or the times in
// the entry would be misleading.
func (a *Appender) checkClock(ctx context.Context) error {
	for try := 1; !a.clockChecked.Load(); try++ {
		before := a.cfg.Clock.Now()
		now, ok, err := blob.TimeOf(ctx, a.cfg.Store)
		if err == nil {
			if ok {
				if off := skew(before, now, a.cfg.Clock.Now()); off.Abs() > maxSkew {
					return a.notWritten(clockError(off, now))
				}
			}
			a.clockChecked.Store(true)
			return nil
		}
		a.cfg.Logger.WarnContext(ctx, "cannot read the store's time, retrying", "try", try, "error", err)
		if slept := a.cfg.Clock.Sleep(ctx, min(firstDelay<<min(try-1, 16), lastDelay)); slept != nil {
			return a.notWritten(fmt.Errorf("ask the store for its time: %w: %w", slept, err))
		}
	}
	return nil
}

// checkStored compares this machine's clock with the time at which the store created an entry. The parameter "before"
// is the time on this machine's clock before the request. The error is an [ErrClock] if the compactor would reject
// the entry, or if the store's time is so far ahead that a listing may have missed the entry.
func (a *Appender) checkStored(b *batch, before time.Time, stored blob.Object) error {
	off := skew(before, stored.Updated, a.cfg.Clock.Now())
	if off.Abs() > maxSkew {
		a.clockChecked.Store(false) // the next append checks the clock first
	}
	switch {
	case ids.Time(b.name).Sub(stored.Updated) > ids.MaxAhead:
		return a.notWritten(fmt.Errorf("the compactor would reject entry %s: %w", b.name, clockError(ids.Time(b.name).Sub(stored.Updated), stored.Updated)))
	case off < -maxSkew && stored.Updated.Sub(ids.Time(b.name)) >= MaxBehind:
		return a.unknown(clockError(off, stored.Updated))
	}
	return nil
}
