package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A worker that starts a task and is never heard of again is found out by the
// domain's liveness timer alone: the only other task is asleep.
func TestAWorkerThatFallsSilentIsGivenUp(t *testing.T) {
	s := start(t, t.TempDir())
	require.NoError(t, s.SetLimit(t.Context(), "one", 1))
	holder, silent := command("raw/holder", "sleep 600"), command("raw/silent", "true")
	holder.Pool, holder.Priority, silent.Pool = "one", 1, "one"
	silent.HeartbeatTimeoutSec = 1
	ticket := run(t, s.Engine, "", holder, silent, command("raw/after", "true", "raw/silent"))
	await(t, s.Engine, ticket.RunID, func(_ *snapshot.Snapshot, r *state.Run) bool { return r.TasksRunning == 1 })

	// The task waits for its pool; a worker that this stack does not know takes it
	// all the same, as one would whose dispatch a rebuild has forgotten.
	_, err := s.Appender.Append(t.Context(), []*event.Envelope{{Payload: &event.TaskStarted{
		AttemptRef: event.AttemptRef{
			RunID: ticket.RunID, TaskKey: "raw/silent", Attempt: 1, WorkerID: "gone",
			AttemptID: ids.AttemptID(s.Domain, ticket.RunID, "raw/silent", 1),
		},
		StartedAt: event.At(s.Clock.Now()),
	}}})
	require.NoError(t, err)
	// The loss does not spend an attempt of the task: another one is granted.
	snap := await(t, s.Engine, ticket.RunID, func(snap *snapshot.Snapshot, _ *state.Run) bool {
		return snap.State.Tasks.Get(state.Key2{A: ticket.RunID, B: "raw/silent"}).GrantedAttempts == 1
	})
	lost := snap.State.Attempts.Get(state.AttemptKey{RunID: ticket.RunID, TaskKey: "raw/silent", Attempt: 1})
	require.Equal(t, "HEARTBEAT_TIMEOUT", lost.ErrorCode)
}

func TestATaskThatTakesTooLongIsKilled(t *testing.T) {
	s := start(t, t.TempDir())
	slow := command("raw/slow", "sleep 600")
	slow.TimeoutSec = 1
	ticket := run(t, s.Engine, "", slow)
	snap := await(t, s.Engine, ticket.RunID, ended)
	task := snap.State.Tasks.Get(state.Key2{A: ticket.RunID, B: "raw/slow"})
	require.Equal(t, state.TaskFailed, task.State)
	require.Equal(t, "timed_out", task.Outcome)
	require.Equal(t, "TASK_TIMEOUT", task.ErrorCode)
}
