package ledger

import (
	"context"
	"slices"
)

// enqueue adds w to the queue and reports whether its caller becomes the leader. It blocks while the waiting groups
// have more than [Config.MaxWaitingBytes] bytes.
func (a *Appender) enqueue(ctx context.Context, w *waiter) (leads bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.waiting > 0 && a.waiting+len(w.data) > a.cfg.MaxWaitingBytes {
		room := a.room
		a.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			err = ctx.Err()
		}
		a.mu.Lock()
		if err != nil {
			return false, err
		}
	}
	a.waiting += len(w.data)
	a.queue = append(a.queue, w)
	if a.hasLeader {
		return false, nil
	}
	a.hasLeader = true
	return true, nil
}

// release subtracts size from the waiting bytes and wakes blocked callers. The caller holds
// the lock.
func (a *Appender) release(size int) {
	a.waiting -= size
	close(a.room)
	a.room = make(chan struct{})
}

// leave returns the result for a caller whose context ended while the caller waited.
func (a *Appender) leave(w *waiter, cause error) (Appended, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.finished {
		return w.appended, w.err // the group was finished in the meantime
	}
	w.left = true
	err := a.outcome(w, cause)
	select {
	case <-w.lead: // this caller was made the leader at the same moment
		a.handOver()
	default:
	}
	return Appended{}, err
}

// outcome returns the error for a caller whose context ended. If the caller's group is still queued, it was not
// written and is removed. If the group is in a batch, the outcome is unknown. The caller holds the lock.
func (a *Appender) outcome(w *waiter, cause error) error {
	if i := slices.Index(a.queue, w); i >= 0 {
		a.queue = slices.Delete(a.queue, i, i+1)
		a.release(len(w.data))
		return a.notWritten(cause)
	}
	return a.unknown(cause)
}

// leadUntil writes batches until the group of w is finished, then hands over to the next
// leader.
func (a *Appender) leadUntil(ctx context.Context, w *waiter) (Appended, error) {
	for {
		b := a.take()
		stored, err := a.write(ctx, b)
		if err != nil && ctx.Err() != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			w.left = true
			failure := a.outcome(w, ctx.Err())
			a.handOver()
			return Appended{}, failure
		}
		if err == nil {
			a.cfg.OnStored(b.entry(stored))
		}
		a.mu.Lock()
		a.finish(b, err)
		if w.finished {
			a.handOver()
			a.mu.Unlock()
			return w.appended, w.err
		}
		a.mu.Unlock()
	}
}

// take returns the batch to write: the one that the previous leader left, or a new one. A new batch contains the
// first group of the queue, and the following groups of the same kind (facts or decisions) that fit into the same
// entry. A batch of facts begins with the buffered facts.
func (a *Appender) take() *batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil {
		return a.current
	}
	b := &batch{}
	decides := len(a.queue) > 0 && a.queue[0].decides
	full := false
	if a.buffered != nil && !decides {
		buffered := a.takeBuffered()
		buffered.left, buffered.buffered = true, true
		a.waiting += len(buffered.data)
		b.add(buffered)
	}
	a.queue = slices.DeleteFunc(a.queue, func(w *waiter) bool {
		if full || w.decides != decides {
			return false
		}
		full = len(b.waiters) > 0 && (len(b.data)+len(w.data) > MaxEntryBytes || b.events+w.events > MaxEntryEvents)
		if full {
			return false
		}
		b.add(w)
		return true
	})
	a.current = b
	return b
}

// finish wakes every caller that waits for a batch. The caller holds the lock.
func (a *Appender) finish(b *batch, err error) {
	for _, w := range b.waiters {
		w.finished, w.err = true, err
		if err == nil {
			w.appended = Appended{Entry: b.name, Key: b.key}
		}
		close(w.done)
	}
	a.current = nil
	a.release(len(b.data))
}

// handOver makes another caller the leader: one that waits for the current batch, or else
// the first in the queue. The caller holds the lock.
func (a *Appender) handOver() {
	if a.current != nil {
		for _, w := range a.current.waiters {
			if !w.left {
				w.lead <- struct{}{}
				return
			}
		}
		// No caller waits for the current batch any more. If the batch was stored, a listing finds its entry. If not,
		// its buffered facts must not be lost: they are buffered again.
		for _, w := range a.current.waiters {
			if w.buffered {
				a.rebuffer(w, a.buffered) // harmless if the batch was stored: a repeated fact changes nothing
			}
		}
		a.finish(a.current, ErrUnknown)
	}
	if len(a.queue) > 0 {
		a.queue[0].lead <- struct{}{}
		return
	}
	a.hasLeader = false
}
