package ledger

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// A buffer that exceeds these bounds becomes an entry of its own.
const (
	maxBufferedBytes  = 256 << 10
	maxBufferedEvents = 500
)

// AppendBuffered buffers facts that may be lost, because their sender reports them again: that a task has started, or is
// alive. They precede the events of the next entry that contains facts. If no entry follows within [Config.Linger], they
// become an entry of their own. They are not durable when AppendBuffered returns.
//
// If Linger is zero, AppendBuffered is Append.
func (a *Appender) AppendBuffered(ctx context.Context, group []*event.Envelope) error {
	return a.appendLater(ctx, group, 0)
}

// AppendDroppable is [Appender.AppendBuffered] for one fact that [Appender.Drop] may remove before it is written. So that
// this is likely, the fact joins no entry before half of [Config.Linger] has passed. It waits for at most one and a half
// times Linger.
func (a *Appender) AppendDroppable(ctx context.Context, fact *event.Envelope) error {
	return a.appendLater(ctx, []*event.Envelope{fact}, a.cfg.Linger/2)
}

// appendLater buffers facts that join no entry before a time has passed.
func (a *Appender) appendLater(ctx context.Context, group []*event.Envelope, after time.Duration) error {
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
	if after > 0 {
		w.key, w.joins = group[0].Payload.Key(), a.cfg.Clock.Now().Add(after)
	}
	if full := a.buffer(w); full != nil {
		return a.appendBuffered(ctx, full)
	}
	return nil
}

// Drop removes a fact from the buffer, if the buffer still contains it. A caller drops a fact before it appends another
// fact that says more: the end of an attempt also says that its task was queued. key is the key of the fact's only event.
func (a *Appender) Drop(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(a.buffered, func(w *waiter) bool { return w.key == key }); i >= 0 {
		a.buffered = slices.Delete(a.buffered, i, i+1)
	}
}

// appendBuffered appends facts that were buffered. If ctx ends before they are in a batch,
// they are buffered again.
func (a *Appender) appendBuffered(ctx context.Context, buffered *waiter) error {
	buffered.buffered = true // if all callers of its batch leave, handOver buffers it again
	_, err := a.append(ctx, buffered)
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrUnknown) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.rebuffer(buffered)
	}
	return err
}

// buffer adds a group to the buffered facts. If the buffer is full, buffer empties it and returns the facts.
func (a *Appender) buffer(w *waiter) (full *waiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.buffered = append(a.buffered, w); len(a.buffered) == 1 {
		a.signalBuffered()
	}
	size, events := 0, 0
	for _, w := range a.buffered {
		size += len(w.data)
		events += w.events
	}
	if size < maxBufferedBytes && events < maxBufferedEvents {
		return nil
	}
	return a.takeBuffered(always)
}

// rebuffer returns facts that were taken to the front of the buffer. The caller holds the lock.
func (a *Appender) rebuffer(taken *waiter) {
	again := newWaiter() // taken may be finished
	again.add(taken)
	a.buffered = slices.Insert(a.buffered, 0, again)
	a.signalBuffered()
}

// signalBuffered makes Run flush the buffer after the linger. The caller holds the lock.
func (a *Appender) signalBuffered() {
	select {
	case a.bufferedFacts <- struct{}{}:
	default:
	}
}

// takeBuffered removes from the buffer the facts that may join an entry, and returns them as one waiter; nil if there
// are none. The caller holds the lock.
func (a *Appender) takeBuffered(joins func(*waiter) bool) *waiter {
	size := 0
	for _, w := range a.buffered {
		if joins(w) {
			size += len(w.data)
		}
	}
	if size == 0 {
		return nil
	}
	taken := newWaiter()
	taken.data = make([]byte, 0, size)
	a.buffered = slices.DeleteFunc(a.buffered, func(w *waiter) bool {
		if joins(w) {
			taken.add(w)
			return true
		}
		return false
	})
	return taken
}

// always accepts every fact.
func always(*waiter) bool { return true }

// due returns a function that accepts the facts that may join an entry now.
func (a *Appender) due() func(*waiter) bool {
	now := a.cfg.Clock.Now()
	return func(w *waiter) bool { return !w.joins.After(now) }
}

// add appends another group to this one.
func (w *waiter) add(more *waiter) {
	w.data = append(w.data, more.data...)
	w.events += more.events
	w.urgent = w.urgent || more.urgent
}

// Linger returns how long buffered facts wait at most while Run runs.
func (a *Appender) Linger() time.Duration { return a.cfg.Linger }

// Run appends buffered facts after [Config.Linger] until ctx is done. Facts that are still
// buffered then are lost, unless the caller calls Flush.
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
		if err := a.flush(ctx, a.due()); err != nil && ctx.Err() == nil {
			a.cfg.Logger.ErrorContext(ctx, "cannot append buffered facts; their senders will report them again", slog.Any("error", err))
		}
	}
}

// Flush appends all buffered facts.
func (a *Appender) Flush(ctx context.Context) error { return a.flush(ctx, always) }

func (a *Appender) flush(ctx context.Context, joins func(*waiter) bool) error {
	a.mu.Lock()
	taken := a.takeBuffered(joins)
	if len(a.buffered) > 0 {
		a.signalBuffered()
	}
	a.mu.Unlock()
	if taken == nil {
		return nil
	}
	return a.appendBuffered(ctx, taken)
}
