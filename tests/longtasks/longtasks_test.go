// Package longtasks_test runs tasks that take longer than their delivery: the worker answers
// 202, and the queue does not wait for the end.
package longtasks_test

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

var domain = ids.Domain{Tenant: "acme", Workspace: "prod"}

// fixture is a cluster whose worker can be replaced.
type fixture struct {
	*clustertest.Cluster

	worker   atomic.Pointer[worker.Worker]
	answered chan int      // statuses of the responses to deliveries
	begun    chan string   // for each execution that begins: the id of its worker
	gate     chan struct{} // executions end when this channel is closed
}

func start(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{answered: make(chan int, 100), begun: make(chan string, 100), gate: make(chan struct{})}
	w.Cluster = clustertest.Start(t, clustertest.Options{LogLevel: "error", Worker: http.HandlerFunc(
		func(rw http.ResponseWriter, r *http.Request) {
			noted := &noting{ResponseWriter: rw, status: http.StatusOK}
			w.worker.Load().Handler().ServeHTTP(noted, r)
			w.answered <- noted.status
		})})
	return w
}

type noting struct {
	http.ResponseWriter

	status int
}

// WriteHeader implements [http.ResponseWriter].
func (n *noting) WriteHeader(status int) {
	n.status = status
	n.ResponseWriter.WriteHeader(status)
}

// open opens a worker, to which the next deliveries go.
func (w *fixture) open(id string) *worker.Worker {
	w.T.Helper()
	opened, err := worker.Open(worker.Config{
		Store: w.Store, Clock: clock.System{}, Nonce: ids.NewSource(clock.System{}.Now, nil).New, Keyring: w.WorkerKeys, WorkerID: id,
		HTTPClient: http.DefaultClient, ScratchDir: w.T.TempDir(), Logger: slog.New(slog.DiscardHandler),
		HoldFor: time.Second, HeartbeatEvery: 100 * time.Millisecond,
		Executor: func(ctx context.Context, _ worker.Execution) error {
			w.begun <- id
			select {
			case <-w.gate:
			case <-ctx.Done():
			}
			return nil
		},
	})
	require.NoError(w.T, err)
	w.T.Cleanup(func() {
		if err := opened.Close(context.Background()); err != nil {
			w.T.Errorf("close worker %s: %v", id, err)
		}
	})
	w.worker.Store(opened)
	return opened
}

// run starts a run of one task. The task's timeout is longer than the time for which a worker keeps a delivery open.
func (w *fixture) run() (runID string) {
	w.T.Helper()
	handle, err := w.Engine(domain).Run(w.T.Context(), engine.RunRequest{
		Plan: plan.Request{Root: w.T.TempDir(), All: true, Assets: []plan.Asset{{
			Key: ids.AssetKey{Namespace: "raw", Name: "a"}, Work: plan.Work{Command: []string{"true"}},
			TimeoutSec: 600, Retries: plan.Retries{MaxAttempts: 2, InitialDelayMS: 1},
		}}},
		Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(w.T, err)
	return handle.RunID
}

// task waits until the run's task satisfies a condition, and returns it.
func (w *fixture) task(runID string, holds func(*state.Task) bool) (task *state.Task) {
	w.T.Helper()
	reader := w.Reader(domain)
	w.Eventually("the task", func() bool {
		current, err := reader.Current(w.T.Context())
		if err != nil {
			return false
		}
		task = current.State.Tasks.Get(state.Key2{A: runID, B: "raw/a"})
		return task != nil && holds(task)
	})
	return task
}

func terminal(t *state.Task) bool { return t.State.Terminal() }

func TestLongTaskSucceedsAfter202(t *testing.T) {
	w := start(t)
	w.open("w1")
	runID := w.run()
	require.Equal(t, http.StatusAccepted, <-w.answered)
	w.task(runID, func(t *state.Task) bool { return t.State == state.TaskRunning })
	close(w.gate)
	task := w.task(runID, terminal)
	require.Equal(t, state.TaskSucceeded, task.State)
	require.EqualValues(t, 1, task.Attempt)
	require.Len(t, w.begun, 1)
	require.Empty(t, w.answered, "delivered once")
}

func TestLongTaskRunsAgainWhenWorkerCloses(t *testing.T) {
	w := start(t)
	first := w.open("w1")
	runID := w.run()
	require.Equal(t, http.StatusAccepted, <-w.answered)
	require.Equal(t, "w1", <-w.begun)
	w.open("w2")
	require.NoError(t, first.Close(t.Context()))
	require.Equal(t, "w2", <-w.begun)
	require.Equal(t, http.StatusAccepted, <-w.answered)
	close(w.gate)
	task := w.task(runID, terminal)
	require.Equal(t, state.TaskSucceeded, task.State)
	require.EqualValues(t, 2, task.Attempt)
	require.Equal(t, "w2", task.WorkerID)
}
