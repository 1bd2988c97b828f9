package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/servo-orchestration/servo/internal/cloudtasksfake"
	"github.com/servo-orchestration/servo/internal/gcsfake"
	"github.com/servo-orchestration/servo/internal/identitytest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/gcsblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/project/duckparse"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/tests/clustertest"
)

// cloud is the part of a cloud that services need: a bucket, its notifications, and queues. It keeps running when
// services are killed.
type cloud struct {
	*cluster

	issuer *identitytest.Issuer

	push sync.WaitGroup
	ctx  context.Context //nolint:containedctx // context for the delivery of notifications

	mu  sync.Mutex
	rng *rand.Rand
	// How many of a thousand notifications are lost, and how many of a thousand deliveries
	// are repeated.
	lost, twice int
}

// draw returns true with a probability of n/1000.
func (c *cloud) draw(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(1000) < n
}

// startCloud starts a fake cloud on this machine, and services that use it through the official clients. fullEvery is
// the interval of full sweeps.
func startCloud(t *testing.T, lost, twice int, fullEvery string) *cloud {
	t.Helper()
	from := *seed
	if from == 0 {
		from = uint64(clock.System{}.Now().UnixNano()) //nolint:gosec // positive
	}
	t.Logf("seed %d", from)
	ctx, cancel := context.WithCancel(t.Context())
	c := &cloud{
		ctx: ctx, rng: rand.New(rand.NewPCG(from, 0)), lost: lost, twice: twice, //nolint:gosec // no secret
		issuer: identitytest.New(t, clock.System{}.Now),
	}
	t.Cleanup(func() { cancel(); c.push.Wait() })
	storage := httptest.NewServer((&gcsfake.Server{Bucket: "servo", Store: memblob.New(memblob.Options{}), OnFinalize: c.notify}).Handler())
	t.Cleanup(storage.Close)
	tasks := c.serveTasks(t)

	dir := t.TempDir()
	keysFile := func(of string) string {
		path := filepath.Join(dir, of+".json")
		secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(of[:1]), contract.MinSecret))
		require.NoError(t, os.WriteFile(path, []byte(`{"current":"k1","secrets":{"k1":"`+secret+`"}}`), 0o600))
		return path
	}
	workerKeys := keysFile("worker")
	objects, err := gcsblob.Open(ctx, "gs://servo", option.WithEndpoint(storage.URL+"/storage/v1/"), option.WithoutAuthentication())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, objects.Close()) })
	c.cluster = &cluster{
		t: t, store: "gs://servo",
		parts:    embedded.OpenStore(embedded.Options{Domain: acme, Clock: clock.System{}}, objects, objects),
		environ:  []string{"STORAGE_EMULATOR_HOST=" + strings.TrimPrefix(storage.URL, "http://"), binding.TasksEmulator + "=" + tasks},
		address:  map[string]string{"compactor": clustertest.FreeAddress(t), "dispatcher": clustertest.FreeAddress(t), "sweeper": clustertest.FreeAddress(t)},
		account:  map[string]string{},
		notified: true,
	}
	c.flags = map[string][]string{
		"worker": {"--keys", workerKeys, "--scratch", filepath.Join(dir, "scratch")},
		"dispatcher": {
			"--keys", keysFile("reports"), "--worker-keys", workerKeys, "--queue", "projects/acme/locations/here",
			"--url", c.url("dispatcher"), "--queue-account", account("queue"),
		},
		// Sweep every second: by default, work that was lost with a service is repaired only after minutes.
		"sweeper": {"--every", "1s", "--full-every", fullEvery},
	}
	for service, callers := range map[string][]string{
		"compactor": {"dispatcher", "sweeper", "pubsub"}, "dispatcher": {"compactor", "sweeper", "pubsub", "queue"}, "sweeper": {"scheduler"},
	} {
		for i, name := range callers {
			callers[i] = name + "=" + account(name)
		}
		c.account[service] = c.issuer.Metadata(t, account(service))
		c.flags[service] = append(c.flags[service], "--callers", strings.Join(callers, ","), "--audience", c.url(service),
			"--issuer", c.issuer.URL, "--issuer-keys", c.issuer.KeysURL())
	}
	c.startAll()
	return c
}

// account returns the service account with the given name.
func account(name string) string { return name + "@acme.example" }

// serveTasks serves the queues and returns their address.
func (c *cloud) serveTasks(t *testing.T) string {
	t.Helper()
	q := localqueue.New(localqueue.Options{Client: &http.Client{Transport: repeating{c, http.DefaultTransport}}, MinBackoff: 50 * time.Millisecond})
	ended := make(chan error, 1)
	go func() { ended <- q.Run(c.ctx) }()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	(&cloudtasksfake.Server{Queue: q, Token: c.issuer.Token}).Register(server)
	go func() { _ = server.Serve(listener) }() // Serve returns when Stop is called
	t.Cleanup(func() { server.Stop() })
	return listener.Addr().String()
}

// repeating sends some requests twice, like a queue that does not know whether the first request has arrived.
type repeating struct {
	c *cloud
	http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (r repeating) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.c.draw(r.c.twice) && req.GetBody != nil {
		again := req.Clone(req.Context())
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		again.Body = body
		if res, err := r.RoundTripper.RoundTrip(again); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}
	return r.RoundTripper.RoundTrip(req)
}

// notify pushes the notification of an object to its service until the service answers 2xx.
func (c *cloud) notify(o blob.Object) {
	service := ""
	switch {
	case strings.HasPrefix(o.Key, "ledger/"):
		service = "compactor"
	case strings.HasPrefix(o.Key, "manifests/"):
		service = "dispatcher"
	}
	if service == "" || c.draw(c.lost) || c.ctx.Err() != nil {
		return
	}
	body, err := json.Marshal(map[string]any{
		"message": map[string]any{
			"attributes": map[string]string{"eventType": "OBJECT_FINALIZE", "payloadFormat": "NONE", "bucketId": "servo", "objectId": o.Key},
			"messageId":  "1",
		},
		"subscription": "projects/acme/subscriptions/" + service,
	})
	if err != nil {
		c.t.Error(err)
		return
	}
	c.push.Go(func() {
		for try := range 50 {
			req, err := http.NewRequestWithContext(c.ctx, http.MethodPost, c.url(service)+"/v1/notifications", bytes.NewReader(body))
			if err != nil {
				return
			}
			token, err := c.issuer.Token(account("pubsub"), c.url(service)+"/v1/notifications")
			if err != nil {
				return
			}
			req.Header.Set("Authorization", "Bearer "+token)
			if res, err := http.DefaultClient.Do(req); err == nil {
				_ = res.Body.Close()
				if res.StatusCode < http.StatusMultipleChoices {
					return
				}
			}
			if (clock.System{}).Sleep(c.ctx, time.Duration(try+1)*20*time.Millisecond) != nil {
				return
			}
		}
	})
}

// weather starts a run of the example for the given dates, and returns the run's id.
func (c *cloud) weather(dates string) string {
	c.t.Helper()
	parser, err := duckparse.Open(c.t.Context())
	require.NoError(c.t, err)
	defer func() { require.NoError(c.t, parser.Close()) }()
	p, err := project.Load(c.t.Context(), "../../examples/weather", project.Options{ParseSQL: parser.Parse})
	require.NoError(c.t, err)
	days, err := plan.ParseSelection(dates)
	require.NoError(c.t, err)
	handle, err := c.engine.Run(c.t.Context(), engine.RunRequest{
		Plan: plan.Request{Root: p.Root, Assets: p.Assets, All: true, Partitions: []plan.Selection{days}}, Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(c.t, err)
	return handle.RunID
}

func TestCloudRunsExample(t *testing.T) {
	c := startCloud(t, 0, 0, "1s")
	runID := c.weather("date=2012-01-01..2012-01-07")
	c.requireSucceeded(runID)
	snap, err := c.engine.Current(t.Context())
	require.NoError(t, err)
	require.Equal(t, snap.State.Runs.Get(runID).TasksTotal, snap.State.Runs.Get(runID).TasksSucceeded)
}

// All notifications are lost, and there are no full sweeps: sweeps visit only domains with a wakeup. When the client
// notices that no service folds its entry, it creates a wakeup. After that, the services hand over entries to each
// other.
func TestCloudRunSucceedsWithoutNotifications(t *testing.T) {
	c := startCloud(t, 1000, 0, "0")
	c.requireSucceeded(c.weather("date=2012-01-01..2012-01-03"))
}

// servo runs the program servo-cloud in the folder of the example, with the state in the bucket, and returns its
// output.
func (c *cloud) servo(args ...string) string {
	c.t.Helper()
	cmd := program(c.t, "servo-cloud", append([]string{"-C", "../../examples/weather"}, args...)...)
	cmd.Env = append(append(os.Environ(), c.environ...), "SERVO_STATE=gs://servo")
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	c.t.Logf("servo %s:\n%s%s", strings.Join(args, " "), problems.String(), out.String())
	require.NoError(c.t, err, "servo %v: %s", args, problems.String())
	return out.String()
}

// Commands work on a bucket as they do on a folder.
func TestCloudCommandLine(t *testing.T) {
	inExample(t)
	c := startCloud(t, 0, 0, "1s")
	require.Contains(t, c.servo("assets"), "clean/daily")
	out := c.servo("run", "--all", "-p", "date=2012-01-01..2012-01-31") // more rows than fit into a manifest
	require.Contains(t, out, "SUCCEEDED")
	require.NotContains(t, out, "FAILED")
	require.Contains(t, c.servo("runs"), "SUCCEEDED")
	require.Contains(t, c.servo("tasks"), "clean/daily")
	require.Contains(t, c.servo("explain", "latest", "clean/daily[date=2012-01-02]"), "SUCCEEDED")
	require.Contains(t, c.servo("query", "-o", "csv", "select state, count(*) n from runs group by 1"), "SUCCEEDED,1")
	require.Contains(t, c.servo("admin", "sql"), "gs://servo/state/")
	require.Contains(t, c.servo("admin", "verify"), "")
	detached := c.servo("run", "--detach", "-o", "csv", "raw/observations")
	require.Contains(t, detached, "run_id,tasks,attached")
	c.requireSucceeded(strings.Split(strings.Split(detached, "\n")[1], ",")[0])
}

// Services are killed and restarted while tasks run. Half of the notifications are lost, and
// a third of the deliveries are repeated.
func TestCloudRunSurvivesKillsAndLostMessages(t *testing.T) {
	c := startCloud(t, 500, 300, "1s")
	marks := t.TempDir()
	var assets []plan.Asset
	const layers, width = 4, 4
	name := func(layer, i int) string { return string(rune('a'+layer)) + string(rune('0'+i)) }
	for layer := range layers {
		for i := range width {
			// Every execution of a task writes the same output.
			var deps []string
			if layer > 0 {
				deps = []string{name(layer-1, i), name(layer-1, (i+1)%width)}
			}
			assets = append(assets, command(name(layer, i), "sleep 0.1; echo x >> "+marks+"/"+name(layer, i)+"; echo 1 > $SERVO_OUTPUT/made.txt", deps...))
		}
	}
	for i := range assets {
		assets[i].Retries.MaxAttempts = 5
	}
	runID := c.run(assets...)
	for _, name := range []string{"dispatcher", "compactor", "sweeper", "dispatcher", "compactor"} {
		require.NoError(t, clock.System{}.Sleep(t.Context(), 150*time.Millisecond))
		c.kill(name)
		c.start(name)
	}
	c.requireSucceeded(runID)
	require.Len(t, c.outputs(runID), layers*width)
}
