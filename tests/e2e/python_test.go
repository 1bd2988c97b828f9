package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
)

// startPython replaces the worker with the Python example, which implements the worker contract with Python's
// standard library.
func (c *cloud) startPython() {
	c.t.Helper()
	c.kill("worker")
	keys := c.flags["worker"][1]
	ctx := context.WithoutCancel(c.t.Context()) // the process must outlive the test's context: stop ends it
	cmd := exec.CommandContext(ctx, "python3", "../../examples/worker/worker.py",
		"--bucket", "servo", "--keys", keys, "--listen", c.address["worker"])
	cmd.Env, cmd.Stderr = append(os.Environ(), c.environ...), c.t.Output()
	require.NoError(c.t, cmd.Start())
	c.running["worker"] = cmd
	require.Eventually(c.t, func() bool {
		status, _ := c.call(http.MethodGet, c.url("worker")+"/readyz")
		return status == http.StatusOK
	}, 20*time.Second, 10*time.Millisecond, "the worker is not ready")
}

func action(name string, words []string, deps ...string) plan.Asset {
	a := command(name, "", deps...)
	a.Work = plan.Work{Command: words}
	return a
}

// output returns the content of a file of a task's output.
func (c *cloud) output(runID, taskKey, file string) string {
	c.t.Helper()
	snap, err := c.engine.Current(c.t.Context())
	require.NoError(c.t, err)
	task := snap.State.Tasks.Get(state.Key2{A: runID, B: taskKey})
	require.NotNil(c.t, task, taskKey)
	data, _, err := c.parts.Store.Get(c.t.Context(), task.OutputURI+file)
	require.NoError(c.t, err)
	return string(data)
}

func (c *cloud) runDays(dates string, assets ...plan.Asset) string {
	c.t.Helper()
	days, err := plan.ParseSelection(dates)
	require.NoError(c.t, err)
	handle, err := c.engine.Run(c.t.Context(), engine.RunRequest{
		Plan:    plan.Request{Root: c.t.TempDir(), Assets: assets, All: true, Partitions: []plan.Selection{days}, AllowIncomplete: true},
		Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(c.t, err)
	return handle.RunID
}

// A third of the deliveries arrive twice.
func TestPythonWorkerExecutesRuns(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	c := startCloud(t, 0, 333, "1s")
	c.startPython()

	daily := action("daily", []string{"write_text", "words", "of"})
	daily.Partitions = space.Days("2025-01-01", "2025-01-31")
	daily.Work.Dimensions = map[string]string{"date": "DATE"}
	nothing := action("nothing", []string{"sleep", "0.1"}, "count")
	nothing.Work.Output = plan.OutputNone
	runID := c.runDays("date=2025-01-01..2025-01-04", daily,
		action("text", []string{"write_text", "three more words"}),
		action("count", []string{"count_words"}, "daily", "text"), nothing)
	c.requireSucceeded(runID)
	require.Equal(t, "15\n", c.output(runID, "raw/count", "count.txt"))
	require.Equal(t, "words of 2025-01-02\n", c.output(runID, "raw/daily[date=2025-01-02]", "text.txt"))
	require.Len(t, c.outputs(runID), 6)

	// The asset `count` reads an output of the earlier run.
	count := action("count", []string{"count_words"}, "text")
	handle, err := c.engine.Run(t.Context(), engine.RunRequest{
		Plan: plan.Request{
			Root: t.TempDir(), Assets: []plan.Asset{action("text", []string{"write_text", "three more words"}), count},
			Select: []ids.AssetKey{count.Key},
		},
		Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(t, err)
	c.requireSucceeded(handle.RunID)
	require.Equal(t, "3\n", c.output(handle.RunID, "raw/count", "count.txt"))
}

func TestPythonWorkerReportsFailures(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	c := startCloud(t, 0, 0, "1s")
	c.startPython()
	late := action("late", []string{"sleep", "60"})
	late.TimeoutSec = 1
	runID := c.run(action("unknown", []string{"fly"}), action("wrong", []string{"sleep", "soon"}), late)
	snap := awaitRun(t, c.engine, runID, ended)
	codes := map[string]string{}
	snap.State.TasksOf(runID, func(task *state.Task) bool {
		codes[task.TaskKey] = task.ErrorCode
		return true
	})
	require.Equal(t, map[string]string{"raw/unknown": "COMMAND_NOT_FOUND", "raw/wrong": "ACTION_FAILED", "raw/late": "TASK_TIMEOUT"}, codes)

	slow := action("slow", []string{"sleep", "60"})
	slow.HeartbeatTimeoutSec = 4 // the worker sends a heartbeat every second, and the response tells it to cancel the task
	runID = c.run(slow)
	awaitRun(t, c.engine, runID, func(run *state.Run) bool { return run.TasksRunning == 1 })
	require.NoError(t, c.engine.Cancel(t.Context(), runID, "a test", false))
	snap = awaitRun(t, c.engine, runID, ended)
	require.Equal(t, state.RunCancelled, snap.State.Runs.Get(runID).State)
	snap.State.AttemptsOf(runID, "raw/slow", func(a *state.Attempt) bool {
		require.Equal(t, "the run was cancelled", a.ErrorMessage, "the worker reports the end within the grace period")
		return true
	})
}

// Another execution commits while the worker executes the task. The worker must adopt the committed output.
func TestPythonWorkerAdoptsCommittedOutput(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	c := startCloud(t, 0, 0, "1s")
	c.startPython()
	runID := c.run(action("slow", []string{"sleep", "3"}))
	awaitRun(t, c.engine, runID, func(run *state.Run) bool { return run.TasksRunning == 1 })
	asset, id := ids.AssetKey{Namespace: "raw", Name: "slow"}, ids.MaterializationID(acme, runID, "raw/slow")
	uri := contract.ExecutionPrefix(acme, asset, "", id, id, "another")
	marker, err := json.Marshal(contract.CommitMarker{
		MaterializationID: id, RunID: runID, TaskKey: "raw/slow", AssetKey: "raw/slow", Attempt: 1, AttemptID: id,
		Nonce: "another", URI: uri, Files: []contract.CommitMarkerFile{}, CommittedAt: event.At(clock.System{}.Now()),
	})
	require.NoError(t, err)
	_, err = c.parts.Store.Create(t.Context(), contract.CommitMarkerKey(acme, asset, "", id), marker)
	require.NoError(t, err)
	c.requireSucceeded(runID)
	snap, err := c.engine.Current(t.Context())
	require.NoError(t, err)
	require.Equal(t, uri, snap.State.Tasks.Get(state.Key2{A: runID, B: "raw/slow"}).OutputURI)
}

func TestPythonWorkerRejectsRequestsWithoutSignature(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed")
	}
	c := startCloud(t, 0, 0, "1s")
	c.startPython()
	env := &contract.Envelope{ContractVersion: contract.Version, Tenant: acme.Tenant, Workspace: acme.Workspace}
	forged, err := contract.Seal(env, contract.Keyring{
		Current: "k1", Secrets: map[string][]byte{"k1": bytes.Repeat([]byte("?"), contract.MinSecret)},
	}, event.At(clock.System{}.Now().Add(time.Hour)))
	require.NoError(t, err)
	for body, want := range map[string]int{
		"{}":                           http.StatusBadRequest,
		`{"auth":{},"Auth":{}}`:        http.StatusBadRequest,
		`{"tenant_id":"a"}`:            http.StatusBadRequest,
		strings.Repeat("[", 1_000):     http.StatusBadRequest,
		strings.Repeat(" ", 1_000_000): http.StatusBadRequest,
		string(forged):                 http.StatusUnauthorized,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url("worker")+"/execute", strings.NewReader(body))
		require.NoError(t, err)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err, "%.40s", body)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want, res.StatusCode, "%.40s", body)
	}
}
