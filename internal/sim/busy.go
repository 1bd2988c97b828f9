package sim

import (
	"sync"
	"time"
)

// busy measures the time in which at least one task was executing. Times before b.from do not count. Only the first
// execution of each attempt counts: repeated executions of one attempt are no progress.
type busy struct {
	from time.Time

	mu      sync.Mutex
	seen    map[string]bool
	running int
	since   time.Time // when the first of the running executions began
	total   time.Duration
}

// begin records that an execution of an attempt begins, and returns a function that records its end.
func (b *busy) begin(attempt string, now func() time.Time) (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen[attempt] {
		return func() {}
	}
	b.seen[attempt] = true
	if b.running++; b.running == 1 {
		b.since = latest(now(), b.from)
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.running--; b.running == 0 {
			b.total += max(now().Sub(b.since), 0)
		}
	}
}

// timeUntil returns the measured time, including the executions that are running.
func (b *busy) timeUntil(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == 0 {
		return b.total
	}
	return b.total + max(now.Sub(b.since), 0)
}
