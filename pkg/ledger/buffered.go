package ledger

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// A buffer that reaches one of these bounds is appended immediately.
const (
	maxBufferedBytes  = 256 << 10
	maxBufferedEvents = 500
)

// AppendBuffered buffers facts that may be lost: that a task was queued, has started, or is alive. The sender of a lost
// fact reports it again. The buffered facts precede the events of the next entry that contains facts. If no such entry
// follows within [Config.Linger], they become an entry of their own. They are not durable when AppendBuffered returns.
//
// If Linger is zero, AppendBuffered works like Append.
func (a *Appender) AppendBuffered(ctx context.Context, group []*event.Envelope) error {
	if a.cfg.Linger <= 0 || event.HasFiredTimer(group) {
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
	if full := a.buffer(w); full != nil {
		return a.appendBuffered(ctx, full)
	}
	return nil
}

// appendBuffered appends facts that were buffered. If ctx ends before they are in a batch,
// they are buffered again.
func (a *Appender) appendBuffered(ctx context.Context, buffered *waiter) error {
	buffered.buffered = true // if all callers of its batch leave, handOver buffers it again
	_, err := a.append(ctx, buffered)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrUnknown) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.rebuffer(buffered, a.buffered)
	}
	return err
}

// buffer adds a group to the buffered facts. If the buffer is then full, buffer returns all buffered facts and leaves
// the buffer empty.
func (a *Appender) buffer(w *waiter) (full *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.buffered == nil {
		a.rebuffer(w)
	} else {
		a.buffered.add(w)
	}
	if len(a.buffered.data) < maxBufferedBytes && a.buffered.events < maxBufferedEvents {
		return nil
	}
	return a.takeBuffered()
}

// add appends another group to this one.
func (w *waiter) add(more *waiter) {
	w.data = append(w.data, more.data...)
	w.events += more.events
	w.urgent = w.urgent || more.urgent
}

// rebuffer replaces the buffer with these groups, in this order. The caller holds the lock.
func (a *Appender) rebuffer(groups ...*waiter) {
	buffered := newWaiter()
	for _, w := range groups {
		if w != nil {
			buffered.add(w)
		}
	}
	a.buffered = buffered
	select {
	case a.bufferedFacts <- struct{}{}:
	default:
	}
}

// takeBuffered empties the buffer and returns its facts. The caller holds the lock.
func (a *Appender) takeBuffered() *waiter {
	buffered := a.buffered
	a.buffered = nil
	return buffered
}

// Linger returns the maximum time that buffered facts wait while Run runs.
func (a *Appender) Linger() time.Duration { return a.cfg.Linger }

// Run appends buffered facts when they have waited for [Config.Linger]. It returns when ctx is done. Facts that are
// still buffered at that time are lost, unless the caller calls Flush.
func (a *Appender) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.bufferedFacts:
		}
		if err := a.cfg.Clock.Sleep(ctx, a.cfg.Linger); err != nil {
			return nil //nolint:nilerr // ctx is done
		}
		if err := a.Flush(ctx); err != nil && ctx.Err() == nil {
			a.cfg.Logger.ErrorContext(ctx, "cannot append buffered facts; their senders will report them again", slog.Any("error", err))
		}
	}
}

// Flush appends the facts that AppendBuffered has buffered.
func (a *Appender) Flush(ctx context.Context) error {
	a.mu.Lock()
	buffered := a.takeBuffered()
	a.mu.Unlock()
	if buffered == nil {
		return nil
	}
	return a.appendBuffered(ctx, buffered)
}
