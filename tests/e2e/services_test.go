package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/cli"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/metrics/prom"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

// programs builds the programs under test once and returns their folder.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "servo-e2e-")
	if err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir, "../../cmd/...")
	if out, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("build programs: %w\n%s", err, out)
	}
	return dir, nil
})

// builtPrograms is true if [programs] was called. In this case, TestMain removes the folder at the end.
var builtPrograms atomic.Bool

// program returns the command that runs one of Servo's programs. With -full, it runs the built program. Otherwise it
// runs this test binary, which contains the same code and needs no build.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // the caller ends the process
	if *full {
		builtPrograms.Store(true)
		dir, err := programs()
		require.NoError(t, err)
		return exec.CommandContext(ctx, filepath.Join(dir, name), args...)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	return exec.CommandContext(ctx, self, append([]string{name}, args...)...)
}

// programMain runs the main function of a program. ok is false for an unknown program.
func programMain(name string, args []string) (code int, ok bool) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p := service.Process{
		Args: args, Stderr: os.Stderr, Clock: clock.System{},
		Getenv:    os.Getenv,                                               //nolint:forbidigo // like main, in a process of its own
		OpenStore: binding.OpenStore, OpenQueue: binding.Queues(os.Getenv), //nolint:forbidigo // as above
		Tokens: binding.Tokens(), Metrics: prom.New,
	}
	switch name {
	case "servo", "servo-cloud":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		return cli.Main(context.WithoutCancel(ctx), cli.Env{
			Args: args, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Clock: clock.System{}, Signals: signals,
			OpenStore: binding.OpenStore,
		}), true
	case "servo-compactor":
		return service.RunCompactor(ctx, p), true
	case "servo-dispatcher":
		return service.RunDispatcher(ctx, p), true
	case "servo-sweeper":
		return service.RunSweeper(ctx, p), true
	}
	return 0, false
}

// cluster contains the services, which run as processes on this machine and share one store.
type cluster struct {
	t       *testing.T
	store   string              // name of the store
	flags   map[string][]string // additional flags, by service
	environ []string
	account map[string]string // address of each service's metadata server
	// notified means that clients cannot hand over entries, so that services learn of new entries only from
	// notifications.
	notified bool
	address  map[string]string
	metrics  map[string]string // addresses of the metrics endpoints, by service
	running  map[string]*exec.Cmd
	engine   *engine.Engine
	parts    *embedded.Workspace
}

var services = []string{"worker", "compactor", "dispatcher", "sweeper"}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	c := &cluster{t: t, store: dir, parts: openParts(t, dir)}
	c.startAll()
	return c
}

func (c *cluster) startAll() {
	c.t.Helper()
	c.running = map[string]*exec.Cmd{}
	if c.address == nil {
		c.address = map[string]string{}
	}
	c.metrics = map[string]string{"compactor": clustertest.FreeAddress(c.t), "dispatcher": clustertest.FreeAddress(c.t)}
	for _, name := range services {
		if c.address[name] == "" {
			c.address[name] = clustertest.FreeAddress(c.t)
		}
	}
	for _, name := range services {
		c.start(name)
	}
	c.t.Cleanup(c.stop)
	p := c.parts
	var folding engine.Compactor = &remote.Client{Domain: acme, URL: c.url("compactor"), HTTP: http.DefaultClient}
	if c.notified {
		folding = engine.Services{Domain: acme, Store: p.Store, Snapshots: p.Reader(), Clock: p.Clock, Remind: time.Second}
	}
	c.engine = engine.New(engine.Config{
		Handle:    p.Handle,
		Snapshots: p.Reader(),
		Appender:  p.Appender(ledger.Config{}),
		Compactor: folding,
	}).As(engine.User("e2e"))
}

func (c *cluster) url(name string) string { return "http://" + c.address[name] }

// start starts a service and waits until it is ready.
func (c *cluster) start(name string) {
	c.t.Helper()
	var cmd *exec.Cmd
	common := append([]string{"--store", c.store, "--listen", c.address[name]}, c.flags[name]...)
	switch name {
	case "worker":
		cmd = program(c.t, "servo-cloud", append([]string{"worker", "--concurrency", "4"}, common...)...)
	case "compactor":
		cmd = program(c.t, "servo-compactor", append(common, "--dispatcher-url", c.url("dispatcher"), "--metrics-listen", c.metrics[name])...)
	case "dispatcher":
		cmd = program(c.t, "servo-dispatcher", append(common, "--metrics-listen", c.metrics[name])...)
		cmd.Env = []string{"SERVO_COMPACTOR_URL=" + c.url("compactor"), "SERVO_WORKER_URL=" + c.url("worker")}
	case "sweeper":
		cmd = program(c.t, "servo-sweeper", append(common, "--compactor-url", c.url("compactor"), "--dispatcher-url", c.url("dispatcher"))...)
	}
	cmd.Env = append(append(os.Environ(), c.environ...), cmd.Env...)
	if host := c.account[name]; host != "" {
		cmd.Env = append(cmd.Env, "GCE_METADATA_HOST="+host)
	}
	cmd.Stderr = c.t.Output()
	require.NoError(c.t, cmd.Start())
	c.running[name] = cmd
	require.Eventually(c.t, func() bool {
		status, _ := c.call(http.MethodGet, c.url(name)+"/readyz")
		return status == http.StatusOK
	}, 20*time.Second, 10*time.Millisecond, "%s is not ready", name)
}

// call sends a request. Status 0 means no response.
func (c *cluster) call(method, url string) (status int, answer string) {
	req, err := http.NewRequestWithContext(c.t.Context(), method, url, http.NoBody)
	require.NoError(c.t, err)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	return res.StatusCode, string(data)
}

// kill sends SIGKILL to a service.
func (c *cluster) kill(name string) {
	c.t.Helper()
	cmd := c.running[name]
	delete(c.running, name)
	require.NoError(c.t, cmd.Process.Kill())
	_ = cmd.Wait() // the error names the signal
}

// stop terminates all running services, which must exit with 0.
func (c *cluster) stop() {
	for name, cmd := range c.running {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			c.t.Errorf("stop %s: %v", name, err)
		}
		if err := cmd.Wait(); err != nil {
			c.t.Errorf("%s failed: %v", name, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func command(key, script string, deps ...string) plan.Asset {
	a := plan.Asset{Key: ids.AssetKey{Namespace: "raw", Name: key}, Work: plan.Work{Command: []string{"sh", "-c", script}}}
	for _, dep := range deps {
		a.Deps = append(a.Deps, ids.AssetKey{Namespace: "raw", Name: dep})
	}
	return a
}

func (c *cluster) run(assets ...plan.Asset) string {
	c.t.Helper()
	handle, err := c.engine.Run(c.t.Context(), engine.RunRequest{
		Plan: plan.Request{Root: c.t.TempDir(), Assets: assets, All: true}, Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(c.t, err)
	return handle.RunID
}

func (c *cluster) requireSucceeded(runID string) {
	c.t.Helper()
	snap := awaitRun(c.t, c.engine, runID, ended)
	require.Equal(c.t, state.RunSucceeded, snap.State.Runs.Get(runID).State)
	requireVerified(c.t, c.parts)
}

func TestServicesRunPipeline(t *testing.T) {
	c := startCluster(t)
	marks := t.TempDir()
	c.requireSucceeded(c.run(
		command("a", "echo x >> "+marks+"/a; echo 1 > $SERVO_OUTPUT/a.txt"),
		command("b", "echo x >> "+marks+"/b", "a"), command("c", "echo x >> "+marks+"/c", "a"),
		command("d", "echo x >> "+marks+"/d", "b", "c"),
	))
	for _, key := range []string{"a", "b", "c", "d"} {
		requireFile(t, filepath.Join(marks, key), "x\n")
	}
	_, metrics := c.call(http.MethodGet, "http://"+c.metrics["compactor"]+"/metrics")
	require.Regexp(t, `(?m)^servo_publishes_total [1-9]`, metrics)
	_, metrics = c.call(http.MethodGet, "http://"+c.metrics["dispatcher"]+"/metrics")
	require.Contains(t, metrics, `servo_queue_tasks_total{kind="dispatch",result="created"} 4`)
	require.Contains(t, metrics, `servo_queue_tasks_total{kind="dispatch",result="exists"} 0`, "each task is queued once")
	for _, route := range []struct {
		service, method, path string
		want                  int
	}{
		{"compactor", http.MethodGet, "/healthz", http.StatusOK},
		{"dispatcher", http.MethodGet, "/healthz", http.StatusOK},
		{"sweeper", http.MethodGet, "/healthz", http.StatusOK},
		{"compactor", http.MethodGet, "/v1/compact", http.StatusMethodNotAllowed},
		{"dispatcher", http.MethodPost, "/v1/compact", http.StatusNotFound},
		{"sweeper", http.MethodPost, "/v1/sweep", http.StatusOK},
	} {
		status, answer := c.call(route.method, c.url(route.service)+route.path)
		require.Equal(t, route.want, status, "%s %s %s: %s", route.service, route.method, route.path, answer)
	}
}

func requireFile(t *testing.T, name, content string) {
	t.Helper()
	data, err := os.ReadFile(name) //nolint:gosec // the test created this file
	require.NoError(t, err)
	require.Equal(t, content, string(data), name)
}

// The dispatcher contains the queue, so the tasks and deliveries of the queue are lost when the dispatcher is killed.
// The worker finishes the running tasks and reports them to the next dispatcher. No task is executed twice.
func TestServicesContinueAfterDispatcherKill(t *testing.T) {
	c := startCluster(t)
	marks := t.TempDir()
	script := func(key string) string {
		return "echo x >> " + marks + "/" + key + "; while ! test -e " + marks + "/gate; do sleep 0.01; done"
	}
	runID := c.run(
		command("a", "echo x >> "+marks+"/a"), command("b", script("b"), "a"), command("c", script("c"), "a"),
		command("d", "echo x >> "+marks+"/d", "b", "c"),
	)
	awaitRun(t, c.engine, runID, func(run *state.Run) bool { return run.TasksRunning == 2 })
	c.kill("dispatcher")
	require.NoError(t, os.WriteFile(filepath.Join(marks, "gate"), nil, 0o600))
	// From now on, the worker's reports reach no dispatcher.
	require.NoError(t, clock.System{}.Sleep(t.Context(), 300*time.Millisecond))
	c.start("dispatcher")
	c.requireSucceeded(runID)
	for _, key := range []string{"a", "b", "c", "d"} {
		requireFile(t, filepath.Join(marks, key), "x\n")
	}
}

// An entry is appended to an idle domain while no compactor runs. Sweeps of domains with wakeups do not find the
// entry. The next full sweep must fold it and dispatch its tasks.
func TestFullSweepFoldsUnannouncedEntry(t *testing.T) {
	c := startCluster(t)
	c.requireSucceeded(c.run(command("a", "true"))) // the first run creates the domain
	c.kill("compactor")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := c.engine.Run(ctx, engine.RunRequest{
		Plan: plan.Request{Root: t.TempDir(), Assets: []plan.Asset{command("b", "true")}, All: true}, Trigger: event.Trigger{Type: "manual"},
	})
	require.ErrorContains(t, err, "is durable and will be folded")
	c.start("compactor")
	status, answer := c.call(http.MethodPost, c.url("sweeper")+"/v1/sweep")
	require.Equal(t, http.StatusOK, status, answer)
	require.Contains(t, answer, `"domains":0,"folded":0,"failed":0`)
	status, answer = c.call(http.MethodPost, c.url("sweeper")+"/v1/sweep?full=true")
	require.Equal(t, http.StatusOK, status, answer)
	require.Contains(t, answer, `"domains":1,"folded":1,"failed":0`)
	snap, err := c.engine.Current(t.Context())
	require.NoError(t, err)
	_, latest, err := engine.FindRun(t.Context(), snap, "latest")
	require.NoError(t, err)
	require.Equal(t, "raw/b", strings.Trim(latest.RootAssets, `[]"`))
	c.requireSucceeded(latest.RunID)
}
