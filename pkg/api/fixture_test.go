package api_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/servov1"
	"github.com/servo-orchestration/servo/pkg/servov1/servov1connect"
	"github.com/servo-orchestration/servo/pkg/space"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/tiers"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// fixture is a server with a small project.
type fixture struct {
	stack *embedded.Stack
	owner embedded.Owner
	mux   *http.ServeMux
	// project is the project of the server; nil: there is no valid project.
	project *api.Project
}

func asset(key, script string, deps ...string) plan.Asset {
	parse := func(key string) ids.AssetKey {
		k, err := ids.ParseAssetKey(key)
		if err != nil {
			panic(err)
		}
		return k
	}
	a := plan.Asset{Key: parse(key), Work: plan.Work{Command: []string{"sh", "-c", script}}}
	for _, dep := range deps {
		a.Deps = append(a.Deps, parse(dep))
	}
	return a
}

// daily returns the asset with a partition for each of the first five days of 2025.
func daily(a plan.Asset) plan.Asset {
	a.Partitions = &space.Space{Dimensions: []space.Dimension{{Name: "date", Kind: space.Daily, Start: "2025-01-01", End: "2025-01-05"}}}
	return a
}

// serve starts a server of a project with the assets.
func serve(t testing.TB, assets ...plan.Asset) *fixture {
	t.Helper()
	return serveIn(t, t.TempDir(), nil, assets...)
}

// serveIn starts a server on a state folder. The server signs its page tokens with the given key.
func serveIn(t testing.TB, dir string, pageKey []byte, assets ...plan.Asset) *fixture {
	t.Helper()
	return serveTiers(t, dir, pageKey, tiers.Options{}, assets...)
}

// serveTiers starts a server like serveIn, with the given limits for the tiers of tables.
func serveTiers(t testing.TB, dir string, pageKey []byte, limits tiers.Options, assets ...plan.Asset) *fixture {
	t.Helper()
	f := &fixture{project: &api.Project{Name: "test", Root: t.TempDir(), Assets: assets}}
	stack, err := embedded.Start(t.Context(), embedded.Options{
		Dir: dir, Domain: ids.Domain{Tenant: "acme", Workspace: "prod"}, Clock: clock.System{},
		Logger:  slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Environ: os.Environ(), Concurrency: 4, Actor: "user:test", Compactor: compactor.Options{Tiers: limits},
		Routes: func(mux *http.ServeMux, e *engine.Engine, w *worker.Worker) {
			f.mux = mux
			api.Register(mux, api.Config{
				Engine: e, Logs: w, User: func(http.Header) string { return "test" }, Version: "1.2.3", PageKey: pageKey,
				Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
				Project: func() (*api.Project, error) {
					if f.project == nil {
						return nil, errors.New("the project has problems")
					}
					return f.project, nil
				},
			})
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = stack.Close() })
	f.stack = stack
	f.owner, err = embedded.ReadOwner(dir)
	require.NoError(t, err)
	return f
}

// clients are the clients of all services.
type clients struct {
	access     servov1connect.AccessServiceClient
	assets     servov1connect.AssetServiceClient
	automation servov1connect.AutomationServiceClient
	backfills  servov1connect.BackfillServiceClient
	execution  servov1connect.ExecutionServiceClient
	keySets    servov1connect.KeySetServiceClient
	logs       servov1connect.LogServiceClient
	partitions servov1connect.PartitionServiceClient
	quality    servov1connect.QualityServiceClient
	schedules  servov1connect.ScheduleServiceClient
	state      servov1connect.StateServiceClient
}

func newClients(http connect.HTTPClient, url string, options ...connect.ClientOption) clients {
	return clients{
		servov1connect.NewAccessServiceClient(http, url, options...), servov1connect.NewAssetServiceClient(http, url, options...),
		servov1connect.NewAutomationServiceClient(http, url, options...), servov1connect.NewBackfillServiceClient(http, url, options...),
		servov1connect.NewExecutionServiceClient(http, url, options...), servov1connect.NewKeySetServiceClient(http, url, options...),
		servov1connect.NewLogServiceClient(http, url, options...), servov1connect.NewPartitionServiceClient(http, url, options...),
		servov1connect.NewQualityServiceClient(http, url, options...), servov1connect.NewScheduleServiceClient(http, url, options...),
		servov1connect.NewStateServiceClient(http, url, options...),
	}
}

// connect returns clients of the Connect protocol.
func (f *fixture) connect(t testing.TB) clients {
	t.Helper()
	client := f.owner.Client()
	t.Cleanup(client.CloseIdleConnections)
	return newClients(client, f.owner.URL)
}

// run runs all assets, and waits for the end of the run.
func (f *fixture) run(t *testing.T, partitions ...string) string {
	t.Helper()
	c := f.connect(t)
	started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true, Partitions: partitions, AllowIncomplete: true})
	require.NoError(t, err)
	f.await(t, started.GetRunId())
	return started.GetRunId()
}

// await waits for the end of a run.
func (f *fixture) await(t *testing.T, runID string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	snap, err := f.stack.Current(ctx)
	for ; err == nil; snap, err = f.stack.Await(ctx, snap.Revision) {
		if run := snap.State.Runs.Get(runID); run != nil && run.State.Terminal() {
			return
		}
	}
	require.NoError(t, err)
}

// awaitAttempt waits until a task runs or has ended, and returns its state.
func (f *fixture) awaitAttempt(t *testing.T, runID, taskKey string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	snap, err := f.stack.Current(ctx)
	for ; err == nil; snap, err = f.stack.Await(ctx, snap.Revision) {
		if task := snap.State.Tasks.Get(state.Key2{A: runID, B: taskKey}); task != nil && task.StartedAt != 0 {
			return string(task.State)
		}
	}
	require.NoError(t, err)
	return ""
}
