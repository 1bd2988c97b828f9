// Package clustertest is Servo's services in the process of a test: on a store in memory and
// the machine's own network, asking who calls as in a cloud.
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

	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/identity"
	"github.com/servo-orchestration/servo/pkg/identity/identitytest"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

// Secret signs what workers report, and WorkerSecret seals what they are sent.
const (
	Secret       = "the secret that signs what workers report"
	WorkerSecret = "the secret that seals what workers are sent"
)

// Options are what a cluster is made of.
type Options struct {
	// Instances are how many there are of the compactor and of the dispatcher; 0: one.
	// Requests go to them in turn.
	Instances int
	// Queue is shared by all dispatchers; nil: the one has its own.
	Queue queue.Queue
	// Worker takes what is pushed.
	Worker http.Handler
	// LogLevel is that of the services; "": debug.
	LogLevel string
	// Flags are more of a service's, by its name.
	Flags map[string][]string
	// Traces is where the services send spans; "": nowhere.
	Traces string
}

// Cluster are services that run.
type Cluster struct {
	T     *testing.T
	Store *memblob.Store
	// URL is where the compactor, the dispatcher and the sweeper are.
	URL map[string]string
	// Keys sign reports of workers, WorkerKeys what they are sent.
	Keys, WorkerKeys contract.Keyring
	// Issuer signs tokens of the accounts.
	Issuer *identitytest.Issuer

	instances map[string][]string
	metrics   map[string]string // where an instance serves them, by its address
	client    *http.Client
	logs      logs
}

// logs are what the services log.
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

// keysFile is the file of a keyring.
func keysFile(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys.json")
	data, err := json.Marshal(map[string]any{"current": "k1", "secrets": map[string]string{"k1": base64.StdEncoding.EncodeToString([]byte(secret))}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// Account is the service account of a name.
func Account(name string) string { return name + "@acme.example" }

// Start starts the services, for as long as the test takes.
func Start(t *testing.T, o Options) *Cluster {
	t.Helper()
	c := &Cluster{
		T: t, Store: memblob.New(memblob.Options{}), URL: map[string]string{}, instances: map[string][]string{}, metrics: map[string]string{},
		Keys: keyring(Secret), WorkerKeys: keyring(WorkerSecret), Issuer: identitytest.New(t, clock.System{}.Now),
	}
	c.client = &http.Client{Transport: c.as("dispatcher").Transport(http.DefaultTransport)}
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
		if name == "dispatcher" { // its own queue calls it
			s.callers = append(s.callers, "queue="+Account("dispatcher"))
		}
		for _, address := range c.instances[name] {
			p := service.Process{
				Args: append([]string{
					"--store", "mem", "--listen", address, "--metrics-listen", c.metrics[address], "--callers", strings.Join(s.callers, ","), "--audience", c.URL[name],
					"--issuer", c.Issuer.URL, "--issuer-keys", c.Issuer.KeysURL(), "--identity", service.GoogleIdentity,
					"--log-level", cmp.Or(o.LogLevel, "debug"), "--traces", o.Traces,
				}, slices.Concat(s.args, o.Flags[name])...),
				Getenv: func(string) string { return "" }, Stderr: &c.logs, Clock: clock.System{}, Tokens: c.as(name), Instance: address,
				OpenStore:  func(context.Context, string) (blob.Store, io.Closer, error) { return c.Store, io.NopCloser(nil), nil },
				OpenQueue:  binding.Queues(func(string) string { return "" }),
				OpenTraces: otlp.Open,
			}
			if o.Queue != nil {
				p.OpenQueue = func(context.Context, service.QueueOptions) (queue.Queue, func(context.Context) error, error) {
					return o.Queue, nil, nil
				}
			}
			running.Go(func() {
				if code := s.run(ctx, p); code != 0 {
					t.Errorf("%s ended with %d: %s", name, code, c.Logs())
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

// inTurn is where the instances of a service are reached as one.
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

// get is the answer to a request, with a line break at least; "" if it is not 200.
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

// Metrics are the lines that all instances of a service give of a metric.
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

// Eventually waits until something holds.
func (c *Cluster) Eventually(what string, holds func() bool) {
	c.T.Helper()
	const within, every = time.Minute, 10 * time.Millisecond
	require.Eventually(c.T, holds, within, every, what)
}

// Logs is all that the services have logged.
func (c *Cluster) Logs() string {
	c.logs.mu.Lock()
	defer c.logs.mu.Unlock()
	return c.logs.text.String()
}

// as is the identity of a service.
func (c *Cluster) as(name string) identity.Source {
	return func(_ context.Context, audience string) (string, error) {
		return c.Issuer.Token(Account(name), audience)
	}
}

// Token is a good one of an account, for a service.
func (c *Cluster) Token(account, service string) string {
	token, err := c.Issuer.Token(Account(account), c.URL[service])
	require.NoError(c.T, err)
	return token
}

// Reader reads the published states of a domain.
func (c *Cluster) Reader(d ids.Domain) *snapshot.Reader { return c.Parts(d).Reader() }

// Parts are what works on a domain.
func (c *Cluster) Parts(d ids.Domain) *embedded.Parts {
	return embedded.PartsOf(embedded.Options{Domain: d, Clock: clock.System{}}, c.Store, io.NopCloser(nil))
}

// Engine is what a user of a domain works with.
func (c *Cluster) Engine(d ids.Domain) *engine.Engine { return c.TracedEngine(d, nil) }

// TracedEngine is one whose triggers are traced.
func (c *Cluster) TracedEngine(d ids.Domain, traces *trace.Tracer) *engine.Engine {
	parts := c.Parts(d)
	return engine.New(engine.Config{
		Domain: d, Store: c.Store, Snapshots: parts.Reader(), IDs: parts.IDs, Clock: clock.System{}, Actor: "user:test",
		Appender:  ledger.NewAppender(ledger.Config{Domain: d, Store: c.Store, IDs: parts.IDs, Clock: clock.System{}}),
		Compactor: &compactor.Client{Domain: d, URL: c.URL["compactor"], HTTP: traces.Client(c.client)},
		Traces:    traces,
	})
}
