package bench

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// startWorker starts a worker whose tasks do as a function says.
func startWorker(t *testing.T, execute worker.Executor) func(context.Context, string) (string, func() (int64, error), error) {
	t.Helper()
	return func(ctx context.Context, dir string) (string, func() (int64, error), error) {
		keys, err := embedded.LoadKeys(dir)
		require.NoError(t, err)
		store, err := fileblob.Open(dir, fileblob.Options{})
		require.NoError(t, err)
		w, err := worker.Open(worker.Config{
			Store: store, Clock: clock.System{}, Nonce: ids.NewSource(clock.System{}.Now, nil).New, Keyring: keys, WorkerID: "w",
			ScratchDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), MaxConcurrent: 4, Executor: execute,
		})
		require.NoError(t, err)
		server := httptest.NewServer(w.Handler())
		return server.URL, func() (int64, error) {
			server.Close()
			return 7, errors.Join(w.Close(ctx), store.Close())
		}, nil
	}
}

func TestAWorkloadIsMeasuredOnAFolderOfItsOwnEachTime(t *testing.T) {
	executed := make(chan string, 100)
	cfg := Config{
		Dir: t.TempDir(), Samples: 2, Concurrency: 4, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler),
		StartWorker: startWorker(t, func(_ context.Context, e worker.Execution) error {
			executed <- e.TaskKey
			return nil
		}),
	}
	w := Workload{Name: "T", runs: 2, assets: func() []plan.Asset { return chain(3) }, chain: true, value: func(s sample) float64 { return float64(s.tasks) }}
	r, err := Run(t.Context(), cfg, w)
	require.NoError(t, err)
	require.Len(t, executed, 2*2*3)
	require.Equal(t, 6, r.Tasks)
	require.Equal(t, []float64{6, 6}, r.Samples)
	require.Positive(t, r.HopP99)
	require.GreaterOrEqual(t, r.HopP99, r.HopP50)
	require.Greater(t, r.Objects, 1.0, "a marker and something of the state")
	require.EqualValues(t, 7, r.WorkerPeakRSS)
	left, err := os.ReadDir(cfg.Dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestATaskThatFailsFailsTheBench(t *testing.T) {
	cfg := Config{
		Dir: t.TempDir(), Samples: 1, Concurrency: 4, Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler),
		StartWorker: startWorker(t, func(context.Context, worker.Execution) error { return os.ErrClosed }),
	}
	_, err := Run(t.Context(), cfg, Workload{Name: "T", runs: 1, assets: func() []plan.Asset { return chain(1) }})
	require.ErrorContains(t, err, "measure T: task bench/t00000")
}

func TestWorkloadsHaveTheShapesThatTheySay(t *testing.T) {
	tasks := map[string]int{"W1": 200, "W2": 1002, "W3": 2000}
	for _, w := range Workloads() {
		assets := w.assets()
		require.Equal(t, tasks[w.Name], w.runs*len(assets))
		_, err := plan.Build(plan.Request{Root: "/", Assets: assets, All: true})
		require.NoError(t, err)
	}
	fanned := fan(1000)
	require.Len(t, fanned[1001].Deps, 1000)
	require.Empty(t, fanned[0].Deps)
	last := diamonds()[9]
	require.Equal(t, []ids.AssetKey{key(7), key(8)}, last.Deps)
}

func TestPercentilesAreValuesThatWereMeasured(t *testing.T) {
	five := []float64{1, 2, 3, 4, 5}
	require.InDelta(t, 3, percentile(five, 50), 0)
	require.InDelta(t, 5, percentile(five, 99), 0)
	require.InDelta(t, 1, percentile(five[:1], 99), 0)
	require.InDelta(t, 2, percentile(five[:4], 50), 0)
}
