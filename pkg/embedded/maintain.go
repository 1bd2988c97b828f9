package embedded

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

const (
	// reconcileEvery is the time between two reconciliations while runs are live.
	reconcileEvery = 5 * time.Second
	// sweepEvery is the number of reconciliations per sweep.
	sweepEvery = 12
)

// maintain reconciles and sweeps at intervals while any run is live, in case a publish or delivery
// was lost. It sleeps while no run is live.
func (s *Stack) maintain(ctx context.Context) error {
	latest := s.compactor.Latest()
	for round := 1; ; round++ {
		if _, err := latest.Await(ctx, func(snap *snapshot.Snapshot) bool { return snap.State.LiveRuns() > 0 }); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		if err := s.opts.Clock.Sleep(ctx, reconcileEvery); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		err := s.dispatch.Reconcile(ctx)
		if err == nil && round%sweepEvery == 0 {
			err = s.Sweep(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.opts.Logger.WarnContext(ctx, "reconciliation incomplete; it will be repeated", slog.Any("error", err))
		}
	}
}

// freeMemory returns memory to the operating system whenever no run has been live for a while.
func (s *Stack) freeMemory(ctx context.Context) error {
	latest := s.compactor.Latest()
	live := func(snap *snapshot.Snapshot) bool { return snap.State.LiveRuns() > 0 }
	for {
		if _, err := latest.Await(ctx, func(snap *snapshot.Snapshot) bool { return !live(snap) }); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		if err := s.opts.Clock.Sleep(ctx, reconcileEvery); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		if snap, _ := latest.Get(); live(snap) {
			continue
		}
		debug.FreeOSMemory()
		if _, err := latest.Await(ctx, live); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
	}
}

// Sweep runs one sweep now.
func (s *Stack) Sweep(ctx context.Context) error {
	result, err := s.compactor.Compact(ctx, compactor.Request{Barrier: true})
	if err != nil {
		return err
	}
	return s.dispatch.Sweep(ctx, result.Revision)
}
