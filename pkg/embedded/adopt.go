package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// resume folds the entries beyond the last revision. Then it refills the queue, which is empty in a new process, and
// starts it. The queue tasks have the same names as in the last process. The queue delivers nothing before the fold, so
// every task and timer is handled with the current state.
func (s *Stack) resume(ctx, running context.Context) error {
	writable, stop := s.whileWritable(ctx)
	result, err := s.compactor.Compact(writable, compactor.Request{Barrier: true})
	if cause := context.Cause(writable); err != nil && cause != nil {
		err = cause
	}
	stop()
	if err != nil {
		return fmt.Errorf("bring the state up to date: %w", err)
	}
	snap, err := s.Await(ctx, result.Revision-1)
	if err != nil {
		return err
	}
	if snap, err = s.adopt(ctx, snap); err != nil {
		return err
	}
	s.group.Go(func() error {
		s.refill(running, snap)
		return s.queue.Run(running)
	})
	s.automator.Nudge()
	s.notifier.Nudge()
	return s.lock.publish(s.opts.Dir, s.owner())
}

// refill fills the queue with the pending work of a snapshot. It is called before the queue starts to deliver, so that
// the tasks with the greatest priority are delivered first.
func (s *Stack) refill(ctx context.Context, snap *snapshot.Snapshot) {
	err := s.dispatch.Execute(ctx, snap, control.Refill(snap.State, event.At(s.opts.Clock.Now())))
	if err != nil && ctx.Err() == nil {
		s.opts.Logger.WarnContext(ctx, "the queue lacks some tasks; they will be queued later", slog.Any("error", err))
	}
}

const (
	// maxHeartbeats is the maximum number of heartbeats in one group, because a ledger group has at most 1 MiB.
	maxHeartbeats = 100
	// adoptWithin is how long the start of the stack waits for a disk that cannot be written. Then the start fails.
	adoptWithin = 30 * time.Second
)

// whileWritable returns a context that ends, with the cause, when the folder has not been writable for adoptWithin. A
// long fold is acceptable; a long wait for a full disk is not.
func (s *Stack) whileWritable(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s.opts.Clock.Sleep(ctx, time.Second) == nil {
			if since, err := s.Failure(); err != nil && s.opts.Clock.Now().Sub(since) >= adoptWithin {
				cancel(err)
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// adopt appends a heartbeat for every attempt that was running when the last owner ended, because this process delivers
// the attempt again. While no process owned the folder, none received heartbeats, so missing heartbeats do not prove
// that an attempt failed. Without the appended heartbeats, the overdue liveness timer would fail the attempts.
func (s *Stack) adopt(ctx context.Context, snap *snapshot.Snapshot) (*snapshot.Snapshot, error) {
	var heartbeats []*event.Envelope
	now := event.At(s.opts.Clock.Now())
	for row := range snap.State.Heartbeats.All { // the table has a row for each running attempt, and for no other
		t := snap.State.Tasks.Get(row.Key())
		if t == nil || t.State != state.TaskRunning {
			continue
		}
		heartbeats = append(heartbeats, &event.Envelope{Domain: s.opts.Domain, CorrelationID: t.RunID, Actor: s.opts.Actor, Payload: &event.TaskHeartbeat{
			AttemptRef: event.AttemptRef{
				RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID, WorkerID: t.WorkerID,
			},
			HeartbeatAt: now, Progress: row.Progress, Message: "delivered again: the process that executed it has ended",
		}})
	}
	if len(heartbeats) == 0 {
		return snap, nil
	}
	ctx, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	snap, err := s.fold(ctx, heartbeats)
	if err != nil {
		_, cause := s.Failure()
		return nil, fmt.Errorf("take over running tasks: %w", errors.Join(err, cause))
	}
	return snap, nil
}
