// Package tenants_test has many tenants share two compactors and two dispatchers.
package tenants_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
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

var full = flag.Bool("full", false, "200 tenants instead of 30")

// Each request goes to one instance or the other, so that both compactors work on each
// domain: what that costs is work done twice.
func TestManyTenantsShareTwoOfEachService(t *testing.T) {
	tenants := 30
	if *full {
		tenants = 200
	}
	c, w := start(t)
	runs := make([]string, tenants)
	var begun sync.WaitGroup
	for i := range tenants {
		begun.Go(func() {
			ticket, err := c.Engine(domain(i)).Run(t.Context(), engine.RunRequest{
				Plan: plan.Request{Root: t.TempDir(), All: true, Assets: diamond()}, Trigger: event.Trigger{Type: "manual"},
			})
			if err != nil {
				t.Errorf("%s: %v", domain(i), err)
			}
			runs[i] = ticket.RunID
		})
	}
	begun.Wait()
	var took []time.Duration
	for i, runID := range runs {
		reader := c.Reader(domain(i))
		var run *state.Run
		c.Eventually("the run of "+domain(i).String(), func() bool {
			snap, err := reader.Current(t.Context())
			if err != nil {
				return false
			}
			run = snap.State.Runs.Get(runID)
			return run != nil && run.State.Terminal()
		})
		require.Equal(t, state.RunSucceeded, run.State, domain(i))
		took = append(took, run.CompletedAt.Sub(run.CreatedAt))
	}
	require.Equal(t, tenants*len(diamond()), w.executed(), "each task once")
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	mean, longest := sum/time.Duration(tenants), slices.Max(took)
	t.Logf("%d runs of %d tasks took %s in the mean, %s at most; conflicts: %v",
		tenants, len(diamond()), mean.Round(time.Millisecond), longest.Round(time.Millisecond), c.Metrics("compactor", "servo_publish_conflicts_total"))
	require.NotEmpty(t, c.Metrics("compactor", "servo_publish_conflicts_total"), "both work on the same domains, and each conflict is counted")
	require.Less(t, longest, 2*mean, "nobody waits twice as long as the mean")
	for i := 0; i < tenants; i += 10 {
		parts := c.Parts(domain(i))
		report, err := repair.Verify(t.Context(), repair.Config{
			Domain: domain(i), Store: c.Store, Manifests: parts.Manifests, Codec: parts.Codec, IDs: parts.IDs,
		})
		require.NoError(t, err)
		require.Empty(t, report.Problems)
	}
}

func domain(i int) ids.Domain { return ids.Domain{Tenant: fmt.Sprintf("t%03d", i), Workspace: "prod"} }

func diamond() []plan.Asset {
	asset := func(name string, after ...string) plan.Asset {
		a := plan.Asset{Key: ids.AssetKey{Namespace: "raw", Name: name}, Work: plan.Work{Command: []string{"true"}}, WorkerQueue: "default"}
		for _, dep := range after {
			a.Deps = append(a.Deps, ids.AssetKey{Namespace: "raw", Name: dep})
		}
		return a
	}
	return []plan.Asset{asset("a"), asset("b", "a"), asset("c", "a"), asset("d", "b", "c")}
}

// counting executes nothing, and counts how often.
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

// start starts two of each service, a queue that they share, and a worker.
func start(t *testing.T) (*clustertest.Cluster, *counting) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	var handler http.Handler
	var c *clustertest.Cluster
	tokens := roundTripper(func(r *http.Request) (*http.Response, error) { // as Cloud Tasks does
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+c.Token("queue", "dispatcher"))
		return http.DefaultTransport.RoundTrip(r)
	})
	q := localqueue.New(localqueue.Options{Client: &http.Client{Transport: tokens}})
	c = clustertest.Start(t, clustertest.Options{
		Instances: 2, Queue: q, LogLevel: "error",
		Worker: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { handler.ServeHTTP(rw, r) }),
	})
	counted := &counting{tasks: map[string]int{}}
	source := ids.NewSource(clock.System{}.Now, nil)
	w, err := worker.Open(worker.Config{
		Store: c.Store, Clock: clock.System{}, Nonce: source.New, Keyring: c.Keys, WorkerID: "w", HTTPClient: http.DefaultClient,
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
