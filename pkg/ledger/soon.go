package ledger

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Bounds of what rides: beyond them it is an entry of its own.
const (
	maxRidingBytes  = 256 << 10
	maxRidingEvents = 500
)

// AppendSoon appends facts whose loss costs no more than that they are told
// again: that a task was queued, has started, is alive. They ride with the next
// entry that holds facts, ahead of them, and become an entry of their own after
// [Config.Company] if none comes. They are not durable when AppendSoon returns.
//
// Where Company is zero it is Append.
func (a *Appender) AppendSoon(ctx context.Context, group []*event.Envelope) error {
	if a.cfg.Company <= 0 || event.Decides(group) {
		_, err := a.Append(ctx, group)
		return err
	}
	if err := a.checkClock(ctx); err != nil {
		return err
	}
	w, err := a.prepare(group)
	if err != nil {
		return err
	}
	if full := a.ride(w); full != nil {
		return a.bear(ctx, full)
	}
	return nil
}

// bear appends what rode. If its bearer gives it up, it rides with another.
func (a *Appender) bear(ctx context.Context, riding *waiter) error {
	riding.riding = true // and so it rides again if it was given up while it was being written
	_, err := a.append(ctx, riding)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrUnknown) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.board(riding, a.riding)
	}
	return err
}

// ride adds a group to those that ride, and gives them all, to be written, when
// they are many.
func (a *Appender) ride(w *waiter) (full *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.riding == nil {
		a.board(w)
	} else {
		a.riding.add(w)
	}
	if len(a.riding.data) < maxRidingBytes && a.riding.events < maxRidingEvents {
		return nil
	}
	return a.alight()
}

// add makes another group part of this one's entry.
func (w *waiter) add(more *waiter) {
	w.data = append(w.data, more.data...)
	w.events += more.events
	w.urgent = w.urgent || more.urgent
}

// board has groups ride, in this order, as one. The caller holds the lock.
func (a *Appender) board(groups ...*waiter) {
	riding := newWaiter()
	for _, w := range groups {
		if w != nil {
			riding.add(w)
		}
	}
	a.riding = riding
	select {
	case a.boarded <- struct{}{}:
	default:
	}
}

// alight takes what rides, for its bearer to append. The caller holds the lock.
func (a *Appender) alight() *waiter {
	riding := a.riding
	a.riding = nil
	return riding
}

// Company is how long what AppendSoon takes waits at most, while Run runs.
func (a *Appender) Company() time.Duration { return a.cfg.Company }

// Run sees to it that what AppendSoon took waits no longer than it may, until ctx
// is done. What rides then is lost, unless Flush is called.
func (a *Appender) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.boarded:
		}
		if err := a.cfg.Clock.Sleep(ctx, a.cfg.Company); err != nil {
			return nil //nolint:nilerr // ctx is done
		}
		if err := a.Flush(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Logger.ErrorContext(ctx, "facts were not appended; they are told again", slog.Any("error", err))
		}
	}
}

// Flush appends what AppendSoon took and has not been written.
func (a *Appender) Flush(ctx context.Context) error {
	a.mu.Lock()
	riding := a.alight()
	a.mu.Unlock()
	if riding == nil {
		return nil
	}
	return a.bear(ctx, riding)
}
