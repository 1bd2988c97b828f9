package bench

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/cloudsim"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// startWorker returns a function that starts a worker in this process with the given executor.
func startWorker(t *testing.T, execute worker.Executor) func(context.Context, string) (Process, error) {
	t.Helper()
	return func(ctx context.Context, dir string) (Process, error) {
		keys, err := embedded.LoadKeys(dir)
		require.NoError(t, err)
		store, err := fileblob.Open(dir, fileblob.Options{})
		require.NoError(t, err)
		meter := cloudblob.New(store, cloudblob.Config{})
		w, err := worker.Open(worker.Config{
			Store: meter, Clock: clock.System{}, Nonce: ids.NewSource(clock.System{}.Now, nil).New, Keyring: keys, WorkerID: "w",
			ScratchDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), MaxConcurrent: 4, Executor: execute,
		})
		require.NoError(t, err)
		server := httptest.NewServer(w.Handler())
		return Process{
			URL: server.URL, PID: "self", Usage: func() (cloudblob.Usage, error) { return meter.Usage(), nil },
			Stop: func() error {
				server.Close()
				gone, cancel := context.WithCancel(ctx)
				cancel()
				_ = w.Close(gone) // do not retry reports to the closed server
				return store.Close()
			},
		}, nil
	}
}

// config returns a configuration with a counter of executed tasks.
func config(t *testing.T) (Config, *atomic.Int64) {
	t.Helper()
	executed := &atomic.Int64{}
	return Config{
		Dir: t.TempDir(), Samples: 2, Concurrency: 4, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler), Stderr: io.Discard,
		StartWorker: startWorker(t, func(context.Context, worker.Execution) error {
			executed.Add(1)
			return nil
		}),
	}, executed
}

// workloadNamed returns a workload by name.
func workloadNamed(t *testing.T, name string) Workload {
	t.Helper()
	for _, w := range Workloads() {
		if w.Name == name {
			return w
		}
	}
	require.Fail(t, "no such workload", name)
	return Workload{}
}

func TestRunMeasuresEachSampleOnNewFolder(t *testing.T) {
	cfg, executed := config(t)
	cfg.Size = 3
	results, err := Run(t.Context(), cfg, workloadNamed(t, "W1"))
	require.NoError(t, err)
	require.Len(t, results, 1)
	r := results[0]
	require.EqualValues(t, 2*3, executed.Load())
	require.Equal(t, 3, r.Tasks)
	require.Contains(t, r.Description, "measured with size 3")
	require.Len(t, r.Samples, 2)
	require.Positive(t, r.HopP99)
	require.GreaterOrEqual(t, r.HopP99, r.HopP50)
	require.Greater(t, r.Objects, 1.0, "a marker and part of the state")
	require.Equal(t, FileStore, r.Store)
	require.Nil(t, r.Dollars)
	o := r.Operations
	require.Zero(t, o.ClassAByKind["assets"], "tasks without an output commit none")
	require.GreaterOrEqual(t, o.ClassAByKind["ledger"], 1.0, "at least one entry per task")
	require.GreaterOrEqual(t, o.ClassA, o.ClassAByKind["assets"]+o.ClassAByKind["ledger"])
	require.Positive(t, o.BytesIn)
	require.Positive(t, o.Amplification)

	cfg.Outputs, cfg.Samples = true, 1
	results, err = Run(t.Context(), cfg, workloadNamed(t, "W1"))
	require.NoError(t, err)
	require.Contains(t, results[0].Description, "each commits an output")
	require.InDelta(t, 1, results[0].Operations.ClassAByKind["assets"], 0.01, "the worker's operations are counted: one marker per task")
}

func TestDeployedProjectRunsOnlyTheWorkload(t *testing.T) {
	cfg, executed := config(t)
	cfg.Deployed, cfg.Samples, cfg.Size = true, 1, 3
	results, err := Run(t.Context(), cfg, workloadNamed(t, "W1"))
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.EqualValues(t, 3, executed.Load(), "none of the other assets ran")
}

func TestRunMeasuresOnSimulatedCloud(t *testing.T) {
	cfg, _ := config(t)
	cfg.Size = 2
	model := cloudsim.GCP()
	cfg.Cloud, cfg.codec = &model, snapshot.NewMemoryCodec()
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			workload string
			tasks    int
		}{{"W1", 2}, {"W2", 4}, {"W3", 20}} {
			results, err := Run(t.Context(), cfg, workloadNamed(t, row.workload))
			require.NoError(t, err)
			r := results[0]
			require.Equal(t, row.tasks, r.Tasks)
			require.Equal(t, CloudSim, r.Store)
			require.Contains(t, r.Model, "object write 45/180")
			require.Less(t, 0.3, r.Makespan, "at least two hops through the model")
			require.Less(t, r.Makespan, 30.0)
			require.InDelta(t, 2, r.Operations.Queue, 1, "a create and a delivery per task, and a few timers")
			require.GreaterOrEqual(t, r.Operations.Messages, 0.1)
			require.InDelta(t, 5*r.Operations.ClassA, r.Dollars.ClassA, 1e-6)
			require.InDelta(t, 0.4*r.Operations.ClassB, r.Dollars.ClassB, 1e-6)
			require.InDelta(t, 0.4*r.Operations.Queue, r.Dollars.Queue, 1e-6)
			require.Greater(t, r.Dollars.Total, r.Dollars.ClassA+r.Dollars.ClassB)
		}
	})
}

func TestRunFailsWithFailedTask(t *testing.T) {
	cfg, _ := config(t)
	cfg.Size = 1
	cfg.StartWorker = startWorker(t, func(context.Context, worker.Execution) error { return os.ErrClosed })
	_, err := Run(t.Context(), cfg, workloadNamed(t, "W1"))
	require.ErrorContains(t, err, "measure W1: task bench/t00000")
}

func TestSeedAddsFinishedRuns(t *testing.T) {
	cfg, _ := config(t)
	dir := t.TempDir()
	require.NoError(t, cfg.seed(t.Context(), dir, 1201, seededTasks))
	parts, err := embedded.Open(embedded.Options{Dir: dir, Domain: Domain(), Clock: cfg.Clock, Logger: cfg.Logger})
	require.NoError(t, err)
	snap, err := parts.Reader().Current(t.Context())
	require.NoError(t, errors.Join(err, parts.Folder.Close()))
	s := snap.State
	require.Equal(t, 3, s.Runs.Len(), "500, 500 and 201 tasks")
	require.Equal(t, 1201, s.Tasks.Len())
	require.Equal(t, 1201, s.Attempts.Len())
	require.Zero(t, s.LiveRuns())
	require.Zero(t, s.Outbox.Len(), "no pending dispatches")
	require.Zero(t, s.Timers.Len())
	for task := range s.Tasks.All {
		require.Equal(t, state.TaskSucceeded, task.State)
	}
	for entry := range s.Entries.All {
		require.Equal(t, state.Folded, entry.Outcome)
	}
}

func TestRunComparesHistories(t *testing.T) {
	cfg, executed := config(t)
	cfg.Size, cfg.Samples, cfg.History = 2, 1, []int{0, 10}
	results, err := Run(t.Context(), cfg, workloadNamed(t, "W5"))
	require.NoError(t, err)
	require.EqualValues(t, rounds*8, executed.Load(), "the history is not executed")
	require.Len(t, results, 2)
	require.Zero(t, *results[0].History)
	require.Zero(t, results[0].Ratio)
	require.Equal(t, 10, *results[1].History)
	require.InDelta(t, ratio(results[1].Samples, results[0].Samples), results[1].Ratio, 1e-9)
	require.InDelta(t, 2, ratio([]float64{2, 10, 3}, []float64{1, 20, 1}), 1e-9, "the median of 2, 0.5 and 3")
}

// startServer returns a function that starts a server in this process. The server responds with the given status.
// Each call of Usage reports one more operation than the call before.
func startServer(t *testing.T, status int) (start func(context.Context, string) (Process, error), started *int) {
	t.Helper()
	started = new(int)
	asked := 0
	return func(context.Context, string) (Process, error) {
		*started++
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/runs" {
				status = http.StatusNotFound
			}
			w.WriteHeader(status)
		}))
		return Process{
			URL: server.URL, PID: "self",
			Usage: func() (cloudblob.Usage, error) {
				asked++
				return cloudblob.Usage{"state": {ClassA: int64(asked)}, "ledger": {Free: 7}}, nil
			},
			Stop: func() error {
				server.Close()
				return nil
			},
		}, nil
	}, started
}

func TestIdleIsMeasuredOnceAndColdStartEachTime(t *testing.T) {
	cfg, _ := config(t)
	cfg.IdleRuns, cfg.IdleFor, cfg.Samples = 5, 20*time.Millisecond, 3
	start, started := startServer(t, http.StatusOK)
	cfg.StartServer = func(ctx context.Context, dir string) (Process, error) {
		_, err := os.Stat(filepath.Join(dir, "manifests"))
		require.NoError(t, err, "the history exists")
		return start(ctx, dir)
	}
	results, err := Run(t.Context(), cfg, workloadNamed(t, "W4"))
	require.NoError(t, err)
	require.Equal(t, 3, *started)
	r := results[0]
	require.Len(t, r.Samples, 3)
	require.Positive(t, r.Median)
	require.Equal(t, 5, r.Idle.Runs)
	require.GreaterOrEqual(t, r.Idle.Seconds, 0.02)
	require.EqualValues(t, 1, r.Idle.Operations, "only operations while idle")

	cfg.StartServer, started = startServer(t, http.StatusServiceUnavailable)
	_, err = Run(t.Context(), cfg, workloadNamed(t, "W4"))
	require.ErrorContains(t, err, "503")
	require.Equal(t, 1, *started)
}

func TestWorkloadsMatchTheirDescriptions(t *testing.T) {
	tasks := map[string]int{"W1": 200, "W2": 1002, "W3": 2000, "W5": 1002, "W7": 100_010}
	for _, w := range Workloads() {
		if w.assets == nil {
			continue
		}
		assets := w.assets(0)
		require.Equal(t, tasks[w.Name], w.runs(0)*len(assets))
		require.Equal(t, w.Description, Config{}.described(w))
		made, err := plan.Build(plan.Request{Assets: assets, All: true, Root: "/"})
		require.NoError(t, err)
		made.Tasks = slices.DeleteFunc(made.Tasks, func(t plan.Task) bool { return t.AssetKey == "" }) // group nodes have no asset
		require.Len(t, made.Tasks, len(assets))
	}
	fanned := fan(1000)
	require.Len(t, fanned[1001].Deps, 1000)
	require.Empty(t, fanned[0].Deps)
	last := diamonds()[9]
	require.Equal(t, []ids.AssetKey{key(7), key(8)}, last.Deps)
}

func TestPercentileReturnsMeasuredValue(t *testing.T) {
	five := []float64{1, 2, 3, 4, 5}
	require.InDelta(t, 3, percentile(five, 50), 0)
	require.InDelta(t, 5, percentile(five, 99), 0)
	require.InDelta(t, 1, percentile(five[:1], 99), 0)
	require.InDelta(t, 2, percentile(five[:4], 50), 0)
	require.InDelta(t, 2, median([]float64{3, 1, 2}), 0)
}

func TestMaxSizeFillsPlan(t *testing.T) {
	for _, w := range Workloads() {
		if w.assets == nil {
			require.Zero(t, w.MaxSize(), w.Name)
			continue
		}
		for _, size := range []int{1, 7} {
			require.Equal(t, w.runs(size)*len(w.assets(size)), w.others+size*w.each, w.Name)
		}
		most := w.MaxSize()
		require.LessOrEqual(t, w.others+most*w.each, plan.MaxTasks, w.Name)
		require.Greater(t, w.others+(most+1)*w.each, plan.MaxTasks, w.Name)
	}
}
