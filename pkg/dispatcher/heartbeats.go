package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// heartbeats limits how often heartbeats are appended: it remembers when the last heartbeat of each attempt was
// appended. A worker can then ask often whether to stop, without filling the ledger.
type heartbeats struct {
	mu   sync.Mutex
	last map[string]time.Time
	// flush is when a caller will flush the lingering heartbeats.
	flush time.Time
}

func newHeartbeats() *heartbeats { return &heartbeats{last: map[string]time.Time{}} }

const (
	// After a heartbeat of an attempt is recorded, the next one is recorded only after an interval: the heartbeat
	// timeout divided by recordShare, but at least minInterval and at most maxInterval.
	recordShare = 6
	minInterval = time.Second
	maxInterval = 30 * time.Second
	// maxRemembered is the maximum number of remembered attempts. Forgetting an attempt costs one more ledger event.
	maxRemembered = 100_000
	// Heartbeats of tasks with a timeout below shortTimeout cannot linger as long as the heartbeats of other tasks:
	// another process may handle the firing of the timeout's timer, and would not see lingering heartbeats in time. Such
	// heartbeats wait for the timeout divided by flushShare, but at most maxFlushWait.
	shortTimeout = 15 * time.Second
	flushShare   = 12
	maxFlushWait = time.Second
)

// appendHeartbeat appends a heartbeat. Heartbeats with short timeouts that arrive within a moment become one entry:
// the first one waits for the others and flushes them all. The flush does not depend on the request of the first
// heartbeat, whose worker may disconnect when its task ends.
func (d *Dispatcher) appendHeartbeat(ctx context.Context, run string, p *event.TaskHeartbeat, timeout time.Duration) error {
	if err := d.appendSoon(ctx, run, p); err != nil || timeout >= shortTimeout {
		return err
	}
	wait := min(timeout/flushShare, maxFlushWait)
	if d.cfg.Appender.Linger() <= wait || !d.heartbeats.scheduleFlush(d.cfg.Clock.Now(), wait) {
		return nil // another flush writes this heartbeat in time
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait+shortTimeout)
	defer cancel()
	err := d.cfg.Clock.Sleep(ctx, wait)
	if err == nil {
		err = d.cfg.Appender.Flush(ctx)
	}
	if err != nil {
		d.heartbeats.cancelFlush()
	}
	return err
}

// due reports whether an attempt's heartbeat must be recorded now.
func (h *heartbeats) due(attemptID string, timeout time.Duration, now time.Time) bool {
	now = now.Round(0) // wall time: the monotonic clock stops while a machine sleeps
	every := min(max(timeout/recordShare, minInterval), maxInterval)
	h.mu.Lock()
	defer h.mu.Unlock()
	// If the last heartbeat is later than now, the clock was set back. Waiting for it to catch up could take longer than
	// the heartbeat timeout.
	if last, ok := h.last[attemptID]; ok && !last.After(now) && now.Sub(last) < every {
		return false
	}
	if len(h.last) >= maxRemembered {
		clear(h.last)
	}
	h.last[attemptID] = now
	return true
}

// scheduleFlush reports whether the caller must flush after the given wait, because no other caller will flush before
// that.
func (h *heartbeats) scheduleFlush(now time.Time, wait time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flush.After(now) && !h.flush.After(now.Add(wait)) {
		return false
	}
	h.flush = now.Add(wait)
	return true
}

// cancelFlush is called after a failed flush: the next caller must flush.
func (h *heartbeats) cancelFlush() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flush = time.Time{}
}

func (h *heartbeats) forget(attemptID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.last, attemptID)
}
