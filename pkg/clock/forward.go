package clock

import (
	"context"
	"sync"
	"time"
)

// Tolerance is how far a machine's clock may step back, or be behind a recorded time,
// without correction. Smaller adjustments of a clock are routine.
const Tolerance = 5 * time.Minute

// Forward is a clock that follows a machine's clock, but never runs back by more than [Tolerance]. If the machine's
// clock is set back, Forward continues from the last time that it returned. It is for state that is dated only by
// this machine's clock. If that clock was ahead and is corrected, the times that were recorded in the meantime are
// still in the past for Forward, so garbage collection and timeouts continue.
type Forward struct {
	clock Clock

	mu   sync.Mutex
	lead time.Duration // how far this clock is ahead of the machine's
	last time.Time     // the latest time returned
}

// NewForward returns a Forward for a machine's clock.
func NewForward(c Clock) *Forward { return &Forward{clock: c} }

// Now implements [Clock].
func (f *Forward) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now()
}

// now implements Now; the caller holds the lock. It drops the monotonic reading: comparisons with this reading would
// not show that the clock was set back.
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

// Follow makes the clock continue from a recorded time if the clock is behind this time by more than [Tolerance]. It
// returns how far this clock is ahead of the machine's clock afterwards.
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
