// Package tenants_test runs many tenants on two compactors and two dispatchers.
package tenants_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

var full = flag.Bool("full", false, "run 200 tenants instead of 30, and the test of large and small tenants")

// Requests go to the two instances of a service in turn. So both compactors fold entries of each domain, and do some
// work twice.
func TestManyTenantsShareTwoInstances(t *testing.T) {
	tenants := 30
	if *full {
		tenants = 200
	}
	c, w := start(t, nil)
	runs := make([]string, tenants)
	var begun sync.WaitGroup
	for i := range tenants {
		begun.Go(func() { runs[i] = begin(t, c, tenant(i), diamond()) })
	}
	begun.Wait()
	var took []time.Duration
	for i, runID := range runs {
		run := ended(c, tenant(i), runID)
		require.Equal(t, state.RunSucceeded, run.State, tenant(i))
		took = append(took, run.CompletedAt.Sub(run.CreatedAt))
	}
	require.Equal(t, tenants*len(diamond()), w.executed(), "each task is executed once")
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	mean, longest := sum/time.Duration(tenants), slices.Max(took)
	t.Logf("%d runs of %d tasks took %s in the mean, %s at most; conflicts: %v",
		tenants, len(diamond()), mean.Round(time.Millisecond), longest.Round(time.Millisecond), c.Metrics("compactor", "servo_publish_conflicts_total"))
	require.True(t, slices.ContainsFunc(c.Metrics("compactor", "servo_publish_conflicts_total"), func(line string) bool { return !strings.HasSuffix(line, " 0") }),
		"both compactors work on the same domains and count conflicts")
	require.Less(t, longest, 2*mean, "no run takes twice the mean")
	for i := 0; i < tenants; i += 10 {
		parts := c.Parts(tenant(i))
		report, err := repair.Verify(t.Context(), repair.Config{
			Handle: parts.Handle,
		})
		require.NoError(t, err)
		require.Empty(t, report.Problems)
	}
}

// Each dispatcher may create only 20 queue tasks per second, so tasks have to wait. If all tenants shared one queue,
// this test would fail.
func TestLargeTenantsDoNotDelaySmallOnes(t *testing.T) {
	if !*full {
		t.Skip("takes half a minute: run it with -full, or make chaos")
	}
	const large, small, each = 10, 3, 100
	c, w := start(t, map[string][]string{"dispatcher": {"--dispatch-rate", "20", "--tenant-weights", "t011=2"}})
	many := make([]plan.Asset, each)
	for i := range many {
		many[i] = asset(fmt.Sprintf("x%03d", i))
	}
	var runs [large + small]string
	for i := range large {
		runs[i] = begin(t, c, tenant(i), many)
	}
	c.Eventually("the large tenants' tasks wait", func() bool { return w.executed() > 0 })
	for i := large; i < len(runs); i++ {
		runs[i] = begin(t, c, tenant(i), diamond())
	}
	for i := large; i < len(runs); i++ {
		require.Equal(t, state.RunSucceeded, ended(c, tenant(i), runs[i]).State)
	}
	done := w.executed() - small*len(diamond())
	t.Logf("%d of the large tenants' %d tasks were done when the small ones had ended", done, large*each)
	require.Less(t, done, large*each*3/4, "small tenants need not wait for large ones")
	for i := range large {
		require.Equal(t, state.RunSucceeded, ended(c, tenant(i), runs[i]).State)
	}
	require.Equal(t, large*each+small*len(diamond()), w.executed(), "each task is executed once")
}

// begin triggers a run of assets in a domain.
func begin(t *testing.T, c *clustertest.Cluster, d ids.Domain, assets []plan.Asset) string {
	t.Helper()
	handle, err := c.Engine(d).Run(t.Context(), engine.RunRequest{
		Plan: plan.Request{Root: t.TempDir(), All: true, Assets: assets}, Trigger: event.Trigger{Type: "manual"},
	})
	if err != nil {
		t.Errorf("%s: %v", d, err)
	}
	return handle.RunID
}

// ended waits for the end of a run.
func ended(c *clustertest.Cluster, d ids.Domain, runID string) (run *state.Run) {
	c.T.Helper()
	reader := c.Reader(d)
	c.Eventually("the run of "+d.String(), func() bool {
		snap, err := reader.Current(c.T.Context())
		if err != nil {
			return false
		}
		run = snap.State.Runs.Get(runID)
		return run != nil && run.State.Terminal()
	})
	return run
}

func tenant(i int) ids.Domain { return ids.Domain{Tenant: fmt.Sprintf("t%03d", i), Workspace: "prod"} }

func diamond() []plan.Asset {
	return []plan.Asset{asset("a"), asset("b", "a"), asset("c", "a"), asset("d", "b", "c")}
}

func asset(name string, after ...string) plan.Asset {
	a := plan.Asset{Key: ids.AssetKey{Namespace: "raw", Name: name}, Work: plan.Work{Command: []string{"true"}}, WorkerQueue: "default"}
	for _, dep := range after {
		a.Deps = append(a.Deps, ids.AssetKey{Namespace: "raw", Name: dep})
	}
	return a
}

// counting is an executor that only counts executions.
type counting struct {
	mu    sync.Mutex
	tasks map[string]int
}

func (w *counting) execute(_ context.Context, e worker.Execution) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tasks[e.RunID+e.TaskKey]++
	return nil
}

func (w *counting) executed() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, times := range w.tasks {
		n += times
	}
	return n
}

// start starts two instances of each service, a shared queue and a worker. The parameter flags contains additional
// flags by service.
func start(t *testing.T, flags map[string][]string) (*clustertest.Cluster, *counting) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	var handler http.Handler
	var c *clustertest.Cluster
	tokens := roundTripper(func(r *http.Request) (*http.Response, error) { // add a token, as Cloud Tasks does
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+c.Token("queue", "dispatcher"))
		return http.DefaultTransport.RoundTrip(r)
	})
	q := localqueue.New(localqueue.Options{Client: &http.Client{Transport: tokens}})
	c = clustertest.Start(t, clustertest.Options{
		Instances: 2, Queue: q, LogLevel: "error", Flags: flags,
		Worker: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { handler.ServeHTTP(rw, r) }),
	})
	counted := &counting{tasks: map[string]int{}}
	source := ids.NewSource(clock.System{}.Now, nil)
	w, err := worker.Open(worker.Config{
		Store: c.Store, Clock: clock.System{}, Nonce: source.New, Keyring: c.WorkerKeys, WorkerID: "w", HTTPClient: http.DefaultClient,
		ScratchDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), MaxConcurrent: 32, Executor: counted.execute,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Close(t.Context()) })
	handler = w.Handler()
	running.Go(func() {
		if err := q.Run(ctx); err != nil {
			t.Errorf("queue: %v", err)
		}
	})
	return c, counted
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
