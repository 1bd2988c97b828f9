package worker_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// die copies what a killed process would leave of the worker's folder.
func (w *fixture) die() {
	w.t.Helper()
	records, err := filepath.Glob(filepath.Join(w.config.ScratchDir, "worker-*", "executing"))
	require.NoError(w.t, err)
	require.Len(w.t, records, 1)
	data, err := os.ReadFile(records[0])
	require.NoError(w.t, err)
	dead := filepath.Join(w.config.ScratchDir, "worker-dead")
	require.NoError(w.t, os.Mkdir(dead, 0o700))
	require.NoError(w.t, os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600))
	require.NoError(w.t, os.WriteFile(filepath.Join(dead, "executing"), data, 0o600))
}

// restart opens the next worker on the same scratch folder, and forgets earlier reports.
func (w *fixture) restart() {
	w.t.Helper()
	w.control.mu.Lock()
	w.control.ends = nil
	w.control.mu.Unlock()
	w.worker, w.server = w.open(w.config)
}

// A task that kills its worker must not be executed again and again as the same attempt.
func TestLostAttemptIsNotExecutedAgain(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script), "a/c": shell("echo c > $SERVO_OUTPUT/c")}, ab, task("a/c", "", nil))
	require.Equal(t, http.StatusOK, w.deliver("a/c"))
	answer := w.deliverLater("a/b")
	p.started(t)
	w.die()
	require.NoError(t, w.worker.Close(t.Context()))
	<-answer
	w.setPlan(map[string]plan.Work{"a/b": shell("echo b > $SERVO_OUTPUT/b"), "a/c": shell("echo c > $SERVO_OUTPUT/c")}, ab, task("a/c", "", nil))
	for range 2 { // the second worker may die before its report is stored
		w.restart()
		require.Equal(t, http.StatusOK, w.deliver("a/b"))
		end := w.control.end(t)
		require.Equal(t, event.Failed, end.Outcome)
		require.Equal(t, worker.CodeInterrupted, end.Error.Code)
		require.Equal(t, worker.CategoryInfrastructure, end.Error.Category)
		require.True(t, end.Error.Retryable)
		require.Contains(t, end.Error.Message, "has died")
		require.NoError(t, w.worker.Close(t.Context()))
	}
	w.restart()
	status, _ := post(t, w.server.URL, w.envelope("a/b", 2))
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, event.Succeeded, w.control.end(t).Outcome, "the next attempt is executed")
	lost, err := os.ReadDir(filepath.Join(w.config.ScratchDir, "lost"))
	require.NoError(t, err)
	require.Len(t, lost, 1, "a/c had ended when its worker died")
	require.Equal(t, ids.AttemptID(domain, runID, "a/b", 1), lost[0].Name())
}

func TestLostAttemptWithOutputSucceeds(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	require.Equal(t, http.StatusOK, w.deliver("a/b"))
	output := w.control.end(t).Output
	lost := filepath.Join(w.config.ScratchDir, "lost")
	require.NoError(t, os.MkdirAll(lost, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(lost, ids.AttemptID(domain, runID, "a/b", 1)), nil, 0o600))
	require.NoError(t, w.worker.Close(t.Context()))
	w.restart()
	require.Equal(t, http.StatusOK, w.deliver("a/b"))
	end := w.control.end(t)
	require.Equal(t, event.Succeeded, end.Outcome)
	require.Equal(t, output, end.Output)
}

// A worker that is asked to end does not lose its tasks: it reports their ends, or the next worker executes them
// again.
func TestClosedWorkerLosesNoAttempts(t *testing.T) {
	p := newProcesses(t, "")
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(p.script)}, ab)
	answer := w.deliverLater("a/b")
	p.started(t)
	require.NoError(t, w.worker.Close(t.Context()))
	require.Equal(t, http.StatusOK, <-answer)
	w.setPlan(hello, ab)
	w.restart()
	require.Equal(t, http.StatusOK, w.deliver("a/b"))
	require.Equal(t, event.Succeeded, w.control.end(t).Outcome)
	require.NoDirExists(t, filepath.Join(w.config.ScratchDir, "lost"))
}

// A damaged record must neither prevent the start of a worker nor name files outside of the folder.
func TestRecordOfDeadWorkerIsReadLeniently(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	dead := filepath.Join(w.config.ScratchDir, "worker-dead")
	require.NoError(t, os.Mkdir(dead, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dead, "lock"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dead, "executing"), []byte(strings.Join([]string{
		"\x00\x00", fmt.Sprintf("%-63s", "../../x"), strings.Repeat("a", 5000), fmt.Sprintf("%-63s", "ABC"), fmt.Sprintf("%63s", ""), "DE",
	}, "\n")), 0o600))
	w.open(w.config)
	require.NoDirExists(t, dead)
	lost, err := os.ReadDir(filepath.Join(w.config.ScratchDir, "lost"))
	require.NoError(t, err)
	require.Len(t, lost, 1)
	require.Equal(t, "ABC", lost[0].Name())
}

func TestMarksOfLostAttemptsExpire(t *testing.T) {
	w := newFixture(t, nil, hello, ab)
	lost := filepath.Join(w.config.ScratchDir, "lost")
	require.NoError(t, os.MkdirAll(lost, 0o700))
	for name, age := range map[string]time.Duration{"OLD": 8 * 24 * time.Hour, "NEW": 6 * 24 * time.Hour} {
		require.NoError(t, os.WriteFile(filepath.Join(lost, name), nil, 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(lost, name), epoch, epoch.Add(-age)))
	}
	w.open(w.config)
	require.NoFileExists(t, filepath.Join(lost, "OLD"))
	require.FileExists(t, filepath.Join(lost, "NEW"))
}
