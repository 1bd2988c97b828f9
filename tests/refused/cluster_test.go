package refused_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
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

	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/identity"
	"github.com/servo-orchestration/servo/pkg/identity/identitytest"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/state"
)

var (
	acme   = ids.Domain{Tenant: "acme", Workspace: "prod"}
	globex = ids.Domain{Tenant: "globex", Workspace: "prod"}
)

const secret = "the secret that signs what workers report"

type snap = state.State

// account is the service account of a name.
func account(name string) string { return name + "@acme.example" }

// cluster are the services, in this process, on a store in memory.
type cluster struct {
	t                *testing.T
	store            *memblob.Store
	url              map[string]string
	keys             contract.Keyring
	issuer, stranger *identitytest.Issuer
	logs             *logs
	client           *http.Client // as a user
	pushed           chan *contract.Envelope
}

// logs are what the services log.
type logs struct {
	mu sync.Mutex
	bytes.Buffer
}

// Write implements [io.Writer].
func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

// String is all of it.
func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

func start(t *testing.T) *cluster {
	t.Helper()
	now := clock.System{}.Now
	c := &cluster{
		t: t, store: memblob.New(memblob.Options{}), url: map[string]string{}, logs: &logs{},
		keys:   contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": []byte(secret)}},
		issuer: identitytest.New(t, now), stranger: identitytest.New(t, now), pushed: make(chan *contract.Envelope, 2),
	}
	c.client = &http.Client{Transport: c.as("dispatcher").Transport(http.DefaultTransport)}
	keys := filepath.Join(t.TempDir(), "keys.json")
	data, err := json.Marshal(map[string]any{"current": "k1", "secrets": map[string]string{"k1": base64.StdEncoding.EncodeToString([]byte(secret))}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(keys, data, 0o600))
	ctx, stop := context.WithCancel(t.Context())
	worker := c.worker(ctx)
	addresses := map[string]string{}
	for _, name := range []string{"compactor", "dispatcher", "sweeper"} {
		addresses[name] = freeAddress(t)
		c.url[name] = "http://" + addresses[name]
	}
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait(); http.DefaultClient.CloseIdleConnections() })
	for name, s := range map[string]struct {
		run     func(context.Context, service.Process) int
		callers []string
		args    []string
	}{
		"compactor": {service.RunCompactor, []string{"dispatcher", "sweeper", "pubsub"}, []string{"--dispatcher-url", c.url["dispatcher"]}},
		"dispatcher": {service.RunDispatcher, []string{"compactor", "sweeper", "pubsub", "queue", "dispatcher"}, []string{
			"--compactor-url", c.url["compactor"], "--worker-url", worker, "--keys", keys,
		}},
		"sweeper": {service.RunSweeper, []string{"scheduler"}, []string{"--compactor-url", c.url["compactor"], "--dispatcher-url", c.url["dispatcher"]}},
	} {
		for i := range s.callers {
			s.callers[i] = account(s.callers[i])
		}
		p := service.Process{
			Args: append([]string{
				"--store", "mem", "--listen", addresses[name], "--callers", strings.Join(s.callers, ","), "--audience", c.url[name],
				"--issuer", c.issuer.URL, "--issuer-keys", c.issuer.KeysURL(), "--identity", "google", "--log-level", "debug",
			}, s.args...),
			Getenv: func(string) string { return "" }, Stderr: c.logs, Clock: clock.System{}, Tokens: c.as(name),
			OpenStore: func(context.Context, string) (blob.Store, io.Closer, error) { return c.store, io.NopCloser(nil), nil },
			OpenQueue: binding.Queues(func(string) string { return "" }),
		}
		running.Go(func() {
			if code := s.run(ctx, p); code != 0 {
				t.Errorf("%s ended with %d: %s", name, code, c.logs.String())
			}
		})
	}
	for name := range addresses {
		c.eventually(name+" is ready", func() bool {
			res, err := http.Get(c.url[name] + "/readyz")
			if err != nil {
				return false
			}
			defer res.Body.Close()
			return res.StatusCode == http.StatusOK
		})
	}
	return c
}

// worker takes what is pushed and does not answer: its tasks go on until the test
// says otherwise.
func (c *cluster) worker(ctx context.Context) (url string) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		env, err := contract.Open(body, c.keys, event.At(clock.System{}.Now()))
		if err != nil {
			c.t.Errorf("pushed: %v", err)
			return
		}
		c.pushed <- env
		select {
		case <-ctx.Done():
		case <-r.Context().Done():
		}
	}))
	c.t.Cleanup(server.Close)
	return server.URL
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (c *cluster) eventually(what string, holds func() bool) {
	c.t.Helper()
	require.Eventually(c.t, holds, 20*time.Second, 10*time.Millisecond, what)
}

// as is the identity of a service.
func (c *cluster) as(name string) identity.Source {
	return func(_ context.Context, audience string) (string, error) {
		return c.issuer.Token(account(name), audience)
	}
}

func (c *cluster) token(account, audience string) string {
	token, err := c.issuer.Token(account, audience)
	require.NoError(c.t, err)
	return token
}

func (c *cluster) sign(by *identitytest.Issuer, claims identitytest.Claims) string {
	token, err := by.Sign(claims)
	require.NoError(c.t, err)
	return token
}

// attempt is one that has been started.
type attempt struct {
	env   *contract.Envelope
	calls contract.Callbacks
}

// running begins a run of one task in a domain, starts it as a worker does, and
// waits until nothing is left to be written.
func (c *cluster) running(d ids.Domain) *attempt {
	c.t.Helper()
	source := ids.NewSource(clock.System{}.Now, nil)
	parts := embedded.PartsOf(embedded.Options{Domain: d, Clock: clock.System{}}, c.store, io.NopCloser(nil))
	e := engine.New(engine.Config{
		Domain: d, Store: c.store, Snapshots: parts.Reader(), IDs: source, Clock: clock.System{}, Actor: "user:e2e",
		Appender:  ledger.NewAppender(ledger.Config{Domain: d, Store: c.store, IDs: source, Clock: clock.System{}}),
		Compactor: &compactor.Client{Domain: d, URL: c.url["compactor"], HTTP: c.client},
	})
	_, err := e.Run(c.t.Context(), engine.RunRequest{
		Plan: plan.Request{Root: c.t.TempDir(), All: true, Assets: []plan.Asset{{
			Key: ids.AssetKey{Namespace: "raw", Name: "a"}, Work: plan.Work{Command: []string{"true"}},
		}}},
		Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(c.t, err)
	a := &attempt{env: <-c.pushed}
	status, answer := c.send(c.t, request{url: a.env.Callbacks.Started, body: a.started()})
	require.Equal(c.t, http.StatusOK, status, answer)
	var started contract.StartedAnswer
	require.NoError(c.t, json.Unmarshal([]byte(answer), &started))
	a.calls = started.Callbacks
	c.await(d, func(s *snap) bool {
		for row := range s.Outbox.All {
			if row.Status == state.DispatchPending {
				return false
			}
		}
		for row := range s.Timers.All {
			if row.State == state.TimerScheduled && row.EnqueuedAt == 0 {
				return false
			}
		}
		return s.Tasks.Get(state.Key2{A: a.env.RunID, B: a.env.TaskKey}).State == state.TaskRunning
	})
	return a
}

// await waits until a domain's state is as it should be and has all that its ledger
// holds.
func (c *cluster) await(d ids.Domain, holds func(*snap) bool) {
	c.t.Helper()
	reader := embedded.PartsOf(embedded.Options{Domain: d, Clock: clock.System{}}, c.store, io.NopCloser(nil)).Reader()
	c.eventually("the state of "+d.String(), func() bool {
		current, err := reader.Current(c.t.Context())
		if err != nil || !holds(current.State) {
			return false
		}
		for _, key := range c.ledger(d) {
			if _, entry, err := ledger.ParseKey(key); err != nil || !current.State.Recorded(entry) {
				return false
			}
		}
		return true
	})
}

// prefix is the folder of an execution of its.
func (a *attempt) prefix() string {
	asset, err := ids.ParseAssetKey(a.env.AssetKey)
	if err != nil {
		panic(err)
	}
	return contract.ExecutionPrefix(a.env.Domain(), asset, a.env.PartitionKey, a.env.MaterializationID, a.env.AttemptID, "n")
}

func (a *attempt) started() *contract.Started {
	return &contract.Started{AttemptID: a.env.AttemptID, WorkerID: "w", StartedAt: event.At(clock.System{}.Now())}
}

func (a *attempt) beat() *contract.Heartbeat {
	return &contract.Heartbeat{AttemptID: a.env.AttemptID, WorkerID: "w", HeartbeatAt: event.At(clock.System{}.Now())}
}

func (a *attempt) finished() *contract.Finished {
	now := event.At(clock.System{}.Now())
	return &contract.Finished{
		AttemptID: a.env.AttemptID, WorkerID: "w", Outcome: event.Succeeded, MaterializationID: a.env.MaterializationID, StartedAt: now, CompletedAt: now,
		Output: &event.Output{URI: a.prefix()},
	}
}
