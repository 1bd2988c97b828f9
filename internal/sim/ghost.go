package sim

import (
	"context"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// maxGhosts is the maximum number of tasks about which one request appends stale events.
const maxGhosts = 12

// appendGhosts appends stale events, like a process that was frozen for a long time: reports on attempts that timed
// out or ended, and outdated requests and timers. The fold must ignore these events.
func (c *client) appendGhosts(ctx context.Context, e *clientEngine) error {
	snap, err := e.Current(ctx)
	if err != nil {
		return err
	}
	now := event.At(c.p.now())
	n := 0
	for t := range snap.State.Tasks.All {
		payloads := ghosts(e.domain, t, now)
		if len(payloads) == 0 {
			continue
		}
		if n++; n > maxGhosts {
			break
		}
		p := payloads[c.rng.IntN(len(payloads))]
		// The id of this event is greater than the ids of the task's earlier events, so that a rebuild folds this event
		// after them, too.
		if _, err := e.appender.Append(ctx, []*event.Envelope{{Domain: e.domain, CorrelationID: t.RunID, CausationID: t.Version, Payload: p}}); err != nil {
			return err
		}
	}
	if err := c.appendClosedGhosts(ctx, e, snap, now); err != nil {
		return err
	}
	for timer := range snap.State.Timers.All {
		if n++; timer.Generation == 0 || n > 2*maxGhosts {
			continue
		}
		p := &event.TimerFired{
			TimerID: timer.TimerID, Generation: timer.Generation - 1, FiredAt: now,
			Observed: event.Observed{CaughtUpAt: now, Revision: snap.Revision},
		}
		if _, err := e.appender.Append(ctx, []*event.Envelope{{Domain: e.domain, CausationID: timer.Version, Payload: p}}); err != nil {
			return err
		}
	}
	return nil
}

// appendClosedGhosts appends events of runs that are in history, including their triggers.
func (c *client) appendClosedGhosts(ctx context.Context, e *clientEngine, snap *snapshot.Snapshot, now event.Time) error {
	runs, err := snap.Runs(ctx, maxGhosts, func(r *state.Run) bool { return snap.State.Runs.Get(r.RunID) == nil })
	if err != nil {
		return err
	}
	closed := append(c.closed[e.domain], runs...)
	if c.closed[e.domain] = closed; len(closed) == 0 {
		return nil
	}
	run := closed[c.rng.IntN(len(closed))]
	payloads := []event.Payload{
		&event.RunTriggered{RunID: run.RunID, PlanID: run.PlanID, Trigger: event.Trigger{Type: "manual"}},
		&event.RunCancelRequested{RunID: run.RunID, Force: true},
	}
	s, err := snap.WithRun(ctx, run.RunID)
	if err != nil {
		return err
	}
	if s != nil {
		s.TasksOf(run.RunID, func(t *state.Task) bool {
			payloads = append(payloads, ghosts(e.domain, t, now)...)
			return len(payloads) < maxGhosts
		})
	}
	for range min(len(payloads), 1+c.rng.IntN(4)) {
		p := payloads[c.rng.IntN(len(payloads))]
		if _, err := e.appender.Append(ctx, []*event.Envelope{{Domain: e.domain, CorrelationID: run.RunID, CausationID: run.Version, Payload: p}}); err != nil {
			return err
		}
	}
	return nil
}

// ghosts returns stale reports on a task.
func ghosts(d ids.Domain, t *state.Task, now event.Time) []event.Payload {
	attempt := t.Attempt - 1
	if t.State.Terminal() {
		attempt = t.Attempt
	}
	if attempt < 1 || t.Kind == event.KindGroup {
		return nil
	}
	ref := event.AttemptRef{
		RunID: t.RunID, TaskKey: t.TaskKey, Attempt: attempt, AttemptID: ids.AttemptID(d, t.RunID, t.TaskKey, attempt), WorkerID: "ghost",
	}
	ref.GrantedAttempts = min(t.GrantedAttempts, attempt-1)
	failed := &event.Error{Code: "GHOST", Message: "a stale report", Retryable: true}
	id := ids.DispatchID(t.RunID, t.TaskKey, attempt)
	return []event.Payload{
		&event.TaskStarted{AttemptRef: ref, StartedAt: now},
		&event.TaskHeartbeat{AttemptRef: ref, HeartbeatAt: now},
		&event.TaskFinished{AttemptRef: ref, Outcome: event.Failed, Error: failed, StartedAt: now, CompletedAt: now},
		&event.DispatchRequested{
			RunID: t.RunID, TaskKey: t.TaskKey, Attempt: attempt, AttemptID: ref.AttemptID, DispatchID: id, Generation: 3, WorkerQueue: "default",
		},
	}
}
