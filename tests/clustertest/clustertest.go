// Package clustertest runs Servo's services in the process of a test. Their store is in memory, and they communicate
// over the loopback network. The services authenticate callers as in a cloud.
package clustertest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/identitytest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/identity"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/metrics/prom"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

// Secret signs callbacks of workers, and WorkerSecret signs envelopes.
const (
	Secret       = "the secret that signs what workers report"
	WorkerSecret = "the secret that seals what workers are sent"
)

// Options are the settings of a cluster.
type Options struct {
	// Instances is the number of compactors and of dispatchers; 0 means 1. Requests go to the instances in turn.
	Instances int
	// Queue is the queue that all dispatchers share. Nil: there is one dispatcher, with a queue of its own.
	Queue queue.Queue
	// Worker receives the tasks that the queue pushes.
	Worker http.Handler
	// LogLevel is the services' log level; "" means debug.
	LogLevel string
	// Flags are additional flags, by service.
	Flags map[string][]string
	// Traces is the URL of a collector; "" means no traces.
	Traces string
}

// Cluster is a set of running services.
type Cluster struct {
	T     *testing.T
	Store *memblob.Store
	// URL contains the URLs of compactor, dispatcher and sweeper, by name.
	URL map[string]string
	// Keys sign callbacks, and WorkerKeys sign envelopes.
	Keys, WorkerKeys contract.Keyring
	// Issuer signs the accounts' tokens.
	Issuer *identitytest.Issuer

	instances map[string][]string
	metrics   map[string]string // addresses of the metrics endpoints, by address of the instance
	client    *http.Client
	logs      logs
}

// logs collects the services' logs.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func keyring(secret string) contract.Keyring {
	return contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": []byte(secret)}}
}

// keysFile writes a keyring to a file and returns its path.
func keysFile(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	data, err := json.Marshal(map[string]any{"current": "k1", "secrets": map[string]string{"k1": base64.StdEncoding.EncodeToString([]byte(secret))}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// Account returns the service account with the given name.
func Account(name string) string { return name + "@acme.example" }

// Start starts the services. They run until the test ends.
func Start(t *testing.T, o Options) *Cluster {
	t.Helper()
	c := &Cluster{
		T: t, Store: memblob.New(memblob.Options{}), URL: map[string]string{}, instances: map[string][]string{}, metrics: map[string]string{},
		Keys: keyring(Secret), WorkerKeys: keyring(WorkerSecret), Issuer: identitytest.New(t, clock.System{}.Now),
	}
	c.client = &http.Client{Transport: c.tokenSource("dispatcher").Transport(http.DefaultTransport)}
	worker := httptest.NewServer(o.Worker)
	t.Cleanup(worker.Close)
	n := max(o.Instances, 1)
	for name, instances := range map[string]int{"compactor": n, "dispatcher": n, "sweeper": 1} {
		for range instances {
			address := FreeAddress(t)
			c.instances[name], c.metrics[address] = append(c.instances[name], address), FreeAddress(t)
		}
		c.URL[name] = c.inTurn(c.instances[name])
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait(); http.DefaultClient.CloseIdleConnections() })
	for name, s := range map[string]struct {
		run     func(context.Context, service.Process) int
		callers []string
		args    []string
	}{
		"compactor": {service.RunCompactor, []string{"dispatcher", "sweeper", "pubsub"}, []string{"--dispatcher-url", c.URL["dispatcher"]}},
		"dispatcher": {service.RunDispatcher, []string{"compactor", "sweeper", "pubsub", "queue"}, []string{
			"--compactor-url", c.URL["compactor"], "--worker-url", worker.URL, "--url", c.URL["dispatcher"],
			"--keys", keysFile(t, Secret), "--worker-keys", keysFile(t, WorkerSecret),
		}},
		"sweeper": {service.RunSweeper, []string{"scheduler"}, []string{"--compactor-url", c.URL["compactor"], "--dispatcher-url", c.URL["dispatcher"]}},
	} {
		for i, role := range s.callers {
			s.callers[i] = role + "=" + Account(role)
		}
		if name == "dispatcher" { // the dispatcher also accepts calls from its queue
			s.callers = append(s.callers, "queue="+Account("dispatcher"))
		}
		for _, address := range c.instances[name] {
			p := service.Process{
				Args: append([]string{
					"--store", "mem", "--listen", address, "--metrics-listen", c.metrics[address], "--callers", strings.Join(s.callers, ","), "--audience", c.URL[name],
					"--issuer", c.Issuer.URL, "--issuer-keys", c.Issuer.KeysURL(), "--identity", service.GoogleIdentity,
					"--log-level", cmp.Or(o.LogLevel, "debug"), "--traces", o.Traces,
				}, slices.Concat(s.args, o.Flags[name])...),
				Getenv: func(string) string { return "" }, Stderr: &c.logs, Clock: clock.System{}, Tokens: c.tokenSource(name), Instance: address,
				OpenStore:  func(context.Context, string) (blob.Store, io.Closer, error) { return c.Store, io.NopCloser(nil), nil },
				OpenQueue:  binding.Queues(func(string) string { return "" }),
				OpenTraces: otlp.Open, Metrics: prom.New,
			}
			if o.Queue != nil {
				p.OpenQueue = func(context.Context, service.QueueOptions) (queue.Queue, func(context.Context) error, error) {
					return o.Queue, nil, nil
				}
			}
			running.Go(func() {
				if code := s.run(ctx, p); code != 0 {
					t.Errorf("%s exited with code %d: %s", name, code, c.Logs())
				}
			})
		}
	}
	for name, addresses := range c.instances {
		for _, address := range addresses {
			c.Eventually(name+" is ready", func() bool { return c.get("http://"+address+"/readyz") != "" })
		}
	}
	return c
}

// inTurn returns a URL that forwards requests to the instances of a service in turn.
func (c *Cluster) inTurn(addresses []string) string {
	if len(addresses) == 1 {
		return "http://" + addresses[0]
	}
	var next atomic.Uint64
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Transport: &http.Transport{MaxIdleConnsPerHost: 256}, //nolint:mnd // enough
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: addresses[next.Add(1)%uint64(len(addresses))]})
			r.Out.Host = r.In.Host
		},
	})
	c.T.Cleanup(proxy.Close)
	return proxy.URL
}

// get returns the body of a response followed by a line break, or "" if the status is not 200.
func (c *Cluster) get(url string) string {
	r, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(c.T, err)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return string(data) + "\n"
}

// Metrics returns the lines of a metric from all instances of a service.
func (c *Cluster) Metrics(service, metric string) []string {
	var lines []string
	for _, address := range c.instances[service] {
		for line := range strings.Lines(c.get("http://" + c.metrics[address] + "/metrics")) {
			if strings.HasPrefix(line, metric) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// Eventually calls condition until it returns true. If this takes more than a minute, the test fails with the message.
func (c *Cluster) Eventually(message string, condition func() bool) {
	c.T.Helper()
	const within, every = time.Minute, 10 * time.Millisecond
	require.Eventually(c.T, condition, within, every, message)
}

// Logs returns the services' logs.
func (c *Cluster) Logs() string {
	c.logs.mu.Lock()
	defer c.logs.mu.Unlock()
	return c.logs.text.String()
}

// tokenSource returns a source of tokens with which a service authenticates itself.
func (c *Cluster) tokenSource(name string) identity.Source {
	return func(_ context.Context, audience string) (string, error) {
		return c.Issuer.Token(Account(name), audience)
	}
}

// Token returns a valid token of an account for a service.
func (c *Cluster) Token(account, service string) string {
	token, err := c.Issuer.Token(Account(account), c.URL[service])
	require.NoError(c.T, err)
	return token
}

// Reader returns a reader of the published states of a domain.
func (c *Cluster) Reader(d ids.Domain) *snapshot.Reader { return c.Parts(d).Reader() }

// Parts returns a workspace that reads and writes a domain in the cluster's store.
func (c *Cluster) Parts(d ids.Domain) *embedded.Workspace {
	return embedded.OpenStore(embedded.Options{Domain: d, Clock: clock.System{}}, c.Store, io.NopCloser(nil))
}

// Engine returns the engine of a client of a domain.
func (c *Cluster) Engine(d ids.Domain) *engine.Engine { return c.TracedEngine(d, nil) }

// TracedEngine is like Engine, with traces.
func (c *Cluster) TracedEngine(d ids.Domain, traces *trace.Tracer) *engine.Engine {
	parts := c.Parts(d)
	return engine.New(engine.Config{
		Handle:    parts.Handle,
		Snapshots: parts.Reader(),
		Appender:  parts.Appender(ledger.Config{}),
		Compactor: &remote.Client{Domain: d, URL: c.URL["compactor"], HTTP: traces.Client(c.client)},
		Traces:    traces,
	}).As(engine.User("test"))
}
