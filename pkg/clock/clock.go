// Package clock is the only way to the time of day. Everything that asks what
// time it is, or waits, is handed a Clock, so that a test or a simulation can
// hand it a virtual one.
package clock

import (
	"context"
	"time"
)

// Clock tells and waits for time.
type Clock interface {
	// Now is the current wall-clock time.
	Now() time.Time
	// Sleep waits for d, or until ctx is done, and then returns ctx.Err().
	Sleep(ctx context.Context, d time.Duration) error
}

// System is the clock of the machine.
type System struct{}

// Now implements [Clock].
func (System) Now() time.Time { return time.Now() } //nolint:forbidigo // the one place that reads the clock

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
