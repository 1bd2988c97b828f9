package ledger

import (
	"context"
	"slices"
)

// enqueue lets w wait, and reports whether its caller leads. It blocks while too
// much waits already.
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
	if a.led {
		return false, nil
	}
	a.led = true
	return true, nil
}

// release makes room for those that wait to enter. The caller holds the lock.
func (a *Appender) release(size int) {
	a.waiting -= size
	close(a.room)
	a.room = make(chan struct{})
}

// leave is what a caller does whose context ended while it waited.
func (a *Appender) leave(w *waiter, cause error) (Appended, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.finished {
		return w.appended, w.err // it was done after all
	}
	w.left = true
	err := a.outcome(w, cause)
	select {
	case <-w.lead: // it was told to lead in the same moment
		a.handOver()
	default:
	}
	return Appended{}, err
}

// outcome is the error of a caller that leaves: whether its group is in a batch
// decides what is known. The caller holds the lock.
func (a *Appender) outcome(w *waiter, cause error) error {
	if i := slices.Index(a.queue, w); i >= 0 {
		a.queue = slices.Delete(a.queue, i, i+1)
		a.release(len(w.data))
		return a.notWritten(cause)
	}
	return a.unknown(cause)
}

// leadUntil writes batches until the group of w is dealt with, and hands over.
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
			a.cfg.OnDurable(b.entry(stored))
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

// take is the batch to write: the one that a former leader left behind, or the
// head of the queue and those behind it that may be in one entry with it.
func (a *Appender) take() *batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current != nil {
		return a.current
	}
	b := &batch{}
	decides := len(a.queue) > 0 && a.queue[0].decides
	full := false
	if a.riding != nil && !decides {
		riding := a.alight()
		riding.left, riding.riding = true, true
		a.waiting += len(riding.data)
		b.add(riding)
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

// finish tells everybody who waits for a batch. The caller holds the lock.
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

// handOver makes another caller the leader: one that waits for the batch under
// way, or else the first of the queue. The caller holds the lock.
func (a *Appender) handOver() {
	if a.current != nil {
		for _, w := range a.current.waiters {
			if !w.left {
				w.lead <- struct{}{}
				return
			}
		}
		// Nobody waits for it any more. It may be stored, and then a listing finds it.
		// What rode in it rides with another.
		for _, w := range a.current.waiters {
			if w.riding {
				a.board(w, a.riding) // told twice it changes nothing
			}
		}
		a.finish(a.current, ErrUnknown)
	}
	if len(a.queue) > 0 {
		a.queue[0].lead <- struct{}{}
		return
	}
	a.led = false
}
