package clock

import (
	"context"
	"sync"
	"time"
)

// Tolerance is how far a machine's clock may step back, or be behind what is recorded,
// without further ado: clocks are adjusted by less all the time.
const Tolerance = 5 * time.Minute

// Forward is a machine's clock that never runs back by more than [Tolerance]: when the
// machine's clock is set back, Forward continues from the time that it has shown. It
// is for state whose only clock is the machine's. Times that were recorded while the
// machine's clock was ahead then stay in the past, and everything that goes by
// them, such as collection and timeouts, continues.
type Forward struct {
	clock Clock

	mu   sync.Mutex
	lead time.Duration // of this clock over the machine's
	last time.Time     // the latest time that it has shown
}

// NewForward makes a Forward of a machine's clock.
func NewForward(c Clock) *Forward { return &Forward{clock: c} }

// Now implements [Clock].
func (f *Forward) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now()
}

// now is Now under the lock. It drops the monotonic reading, which does not tell that
// the clock was set back.
func (f *Forward) now() time.Time {
	now := f.clock.Now().Round(0).Add(f.lead)
	if behind := f.last.Sub(now); behind > Tolerance {
		f.lead += behind
		now = f.last
	}
	if now.After(f.last) {
		f.last = now
	}
	return now
}

// Follow makes the clock continue from a recorded time if it is behind that by more
// than [Tolerance], and returns by how much it leads the machine's clock then.
func (f *Forward) Follow(recorded time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if recorded.After(f.last) {
		f.last = recorded.Round(0)
	}
	f.now()
	return f.lead
}

// Sleep implements [Clock].
func (f *Forward) Sleep(ctx context.Context, d time.Duration) error { return f.clock.Sleep(ctx, d) }
