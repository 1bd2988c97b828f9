package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// The task has a timeout of an hour, so its worker answers 202 at once, and the queue does not redeliver the task
// when the worker ends.
func TestLongTaskRunsAgainWhenWorkerEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*cluster)
		code string
	}{
		"asked to end": {func(c *cluster) { c.terminate("worker") }, worker.CodeInterrupted},
		"killed":       {func(c *cluster) { c.kill("worker") }, "HEARTBEAT_TIMEOUT"},
	} {
		t.Run(name, func(t *testing.T) {
			cl := startCluster(t)
			marks := t.TempDir()
			long := command("a", "echo x >> "+marks+"/a; while ! test -e "+marks+"/gate; do sleep 0.01; done; echo made > $SERVO_OUTPUT/a.txt")
			long.TimeoutSec, long.HeartbeatTimeoutSec = 3600, 2
			long.Retries = plan.Retries{MaxAttempts: 2, InitialDelayMS: 1}
			runID := cl.run(long, command("b", "true", "a"))
			awaitRun(t, cl.engine, runID, func(run *state.Run) bool { return run.TasksRunning == 1 })
			require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(marks, "a")); return err == nil }, waitLimit, 10*time.Millisecond)
			c.end(cl)
			snap := awaitRun(t, cl.engine, runID, func(run *state.Run) bool { return run.TasksRunning == 0 })
			first := snap.State.Attempts.Get(state.AttemptKey{RunID: runID, TaskKey: "raw/a", Attempt: 1})
			require.Equal(t, c.code, first.ErrorCode)
			require.True(t, first.Retryable)
			require.NoError(t, os.WriteFile(filepath.Join(marks, "gate"), nil, 0o600))
			cl.start("worker")
			cl.requireSucceeded(runID)
			requireFile(t, filepath.Join(marks, "a"), "x\nx\n")
			status, _ := cl.call(http.MethodGet, cl.url("worker")+"/readyz")
			require.Equal(t, http.StatusOK, status)
		})
	}
}

// terminate sends SIGTERM to a service, which must exit with 0.
func (c *cluster) terminate(name string) {
	c.t.Helper()
	cmd := c.running[name]
	delete(c.running, name)
	require.NoError(c.t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(c.t, cmd.Wait())
}
