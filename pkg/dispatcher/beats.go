package dispatcher

import (
	"sync"
	"time"
)

// beats remembers when an attempt's last sign of life went to the ledger, so
// that a worker may ask often whether it is to stop without each question being
// kept for ever.
type beats struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func newBeats() *beats { return &beats{last: map[string]time.Time{}} }

const (
	// beatShare is which part of its time-out a recorded heartbeat is good for.
	beatShare = 6
	minBeat   = time.Second
	maxBeat   = 30 * time.Second
	// maxBeats bounds what is remembered. Forgetting costs a ledger event, no more.
	maxBeats = 100_000
)

// due reports whether an attempt's heartbeat is to be recorded now.
func (b *beats) due(attemptID string, timeout time.Duration, now time.Time) bool {
	now = now.Round(0) // by the wall: the other clock stands still while a machine sleeps
	every := min(max(timeout/beatShare, minBeat), maxBeat)
	b.mu.Lock()
	defer b.mu.Unlock()
	if last, ok := b.last[attemptID]; ok && now.Sub(last) < every {
		return false
	}
	if len(b.last) >= maxBeats {
		clear(b.last)
	}
	b.last[attemptID] = now
	return true
}

func (b *beats) forget(attemptID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.last, attemptID)
}
