package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// A worker starts a task and never reports again. Only the domain's liveness timer can detect this,
// because no other task reports anything meanwhile.
func TestLivenessTimerLosesSilentAttempts(t *testing.T) {
	s := start(t, t.TempDir())
	require.NoError(t, s.SetLimit(t.Context(), "one", 1))
	holder, silent := command("raw/holder", "sleep 600"), command("raw/silent", "true")
	holder.Pool, holder.Priority, silent.Pool = "one", 1, "one"
	silent.HeartbeatTimeoutSec = 1
	handle := run(t, s.Engine, "", holder, silent, command("raw/after", "true", "raw/silent"))
	await(t, s.Engine, handle.RunID, func(_ *snapshot.Snapshot, r *state.Run) bool { return r.TasksRunning == 1 })

	// Task raw/silent waits for a slot of its pool, which raw/holder occupies. The test nevertheless reports that
	// raw/silent has started. A worker sends such a report if a rebuild has lost the task's dispatch.
	_, err := s.Appender().Append(t.Context(), []*event.Envelope{{Payload: &event.TaskStarted{
		AttemptRef: event.AttemptRef{
			RunID: handle.RunID, TaskKey: "raw/silent", Attempt: 1, WorkerID: "gone",
			AttemptID: ids.AttemptID(s.Workspace().Domain, handle.RunID, "raw/silent", 1),
		},
		StartedAt: event.At(s.Workspace().Clock.Now()),
	}}})
	require.NoError(t, err)
	// A lost attempt does not count against the task's retries: another attempt is granted.
	snap := await(t, s.Engine, handle.RunID, func(snap *snapshot.Snapshot, _ *state.Run) bool {
		return snap.State.Tasks.Get(state.Key2{A: handle.RunID, B: "raw/silent"}).GrantedAttempts == 1
	})
	lost := snap.State.Attempts.Get(state.AttemptKey{RunID: handle.RunID, TaskKey: "raw/silent", Attempt: 1})
	require.Equal(t, "HEARTBEAT_TIMEOUT", lost.ErrorCode)
}

func TestTaskTimeoutKillsExecution(t *testing.T) {
	s := start(t, t.TempDir())
	slow := command("raw/slow", "sleep 600")
	slow.TimeoutSec = 1
	handle := run(t, s.Engine, "", slow)
	snap := await(t, s.Engine, handle.RunID, ended)
	task := snap.State.Tasks.Get(state.Key2{A: handle.RunID, B: "raw/slow"})
	require.Equal(t, state.TaskFailed, task.State)
	require.Equal(t, "timed_out", task.Outcome)
	require.Equal(t, "TASK_TIMEOUT", task.ErrorCode)
}
