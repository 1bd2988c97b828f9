// Package clock is the only access to the time of day. Code that reads the time or waits receives a
// Clock, so that tests and simulations can pass a virtual clock. This package is not a stable API.
package clock

import (
	"context"
	"time"
)

// Clock returns the time and waits.
type Clock interface {
	// Now returns the current wall-clock time.
	Now() time.Time
	// Sleep waits until d has passed or ctx is done, then returns ctx.Err().
	Sleep(ctx context.Context, d time.Duration) error
}

// System is the machine's clock.
type System struct{}

// Now implements [Clock].
func (System) Now() time.Time { return time.Now() } //nolint:forbidigo // the only place that reads the clock

// Sleep implements [Clock].
func (System) Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
