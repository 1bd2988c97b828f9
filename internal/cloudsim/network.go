package cloudsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/servo-orchestration/servo/internal/latency"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/service"
)

// errRefused is the error of a request to a host without instances.
var errRefused = errors.New("connection refused")

// network connects hosts by name. A request calls the handler of the host in the goroutine of
// the client, between the two halves of the network latency.
type network struct {
	http   latency.Dist
	clock  clock.Clock
	random *latency.Source

	mu    sync.Mutex
	hosts map[string]*host
}

// host is a service, with instances that serve its requests in turn.
type host struct {
	serving   chan struct{} // closed when the first instance serves
	instances []*instance
	next      int
}

type instance struct {
	handler http.Handler
	work    context.Context //nolint:containedctx // the instance's requests end with this context
}

func newNetwork(d latency.Dist, c clock.Clock, random *latency.Source) *network {
	return &network{http: d, clock: c, random: random, hosts: map[string]*host{}}
}

func urlOf(host string) string { return "http://" + host }

// host returns the host of a name and adds it if it is new. The caller holds the lock.
func (n *network) host(name string) *host {
	h := n.hosts[name]
	if h == nil {
		h = &host{serving: make(chan struct{})}
		n.hosts[name] = h
	}
	return h
}

// serving returns a channel that is closed when a host begins to serve.
func (n *network) serving(name string) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.host(name).serving
}

// serve adds an instance of a host. The requests of the instance end with its context, the parameter work.
func (n *network) serve(name string, handler http.Handler, work context.Context) *instance { //nolint:revive // the instance's context, not the call's
	n.mu.Lock()
	defer n.mu.Unlock()
	h, i := n.host(name), &instance{handler, work}
	if h.instances = append(h.instances, i); h.next == 0 && len(h.instances) == 1 {
		close(h.serving)
	}
	return i
}

// unserve removes an instance of a host.
func (n *network) unserve(name string, i *instance) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.host(name)
	h.instances = slices.DeleteFunc(h.instances, func(o *instance) bool { return o == i })
}

// route returns the host's next instance, or nil if it has none.
func (n *network) route(name string) *instance {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.host(name)
	if len(h.instances) == 0 {
		return nil
	}
	h.next++
	return h.instances[h.next%len(h.instances)]
}

// client returns a client whose requests take the latency d in addition to the handler's time.
func (n *network) client(d latency.Dist) *http.Client {
	return &http.Client{
		Transport:     transport{n, d},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type transport struct {
	network *network
	dist    latency.Dist
}

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer r.Body.Close()
	n := t.network
	half := n.random.Draw(t.dist) / 2 //nolint:mnd // half of the latency passes before the request, half after it
	if err := n.clock.Sleep(r.Context(), half); err != nil {
		return nil, err
	}
	to := n.route(r.URL.Hostname())
	if to == nil {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL, errRefused)
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(to.work, cancel)()
	answer := &recorder{header: http.Header{}, status: http.StatusOK}
	to.handler.ServeHTTP(answer, r.Clone(ctx))
	if err := n.clock.Sleep(r.Context(), half); err != nil {
		return nil, err
	}
	return answer.response(r), nil
}

// recorder records a response.
type recorder struct {
	header http.Header
	status int
	begun  bool
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) {
	if !r.begun {
		r.status, r.begun = status, true
	}
}

// Write implements [http.ResponseWriter].
func (r *recorder) Write(p []byte) (int, error) {
	r.begun = true
	return r.body.Write(p)
}

func (r *recorder) response(to *http.Request) *http.Response {
	return &http.Response{
		Status: http.StatusText(r.status), StatusCode: r.status, Header: r.header, Request: to,
		Body: io.NopCloser(&r.body), ContentLength: int64(r.body.Len()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// member is a host's view of the network.
type member struct {
	network *network
	name    string
}

var _ service.Network = member{}

// Listen implements [service.Network].
func (m member) Listen(context.Context, string, *slog.Logger) (service.Endpoint, error) {
	return endpoint(m), nil
}

// Client implements [service.Network].
func (m member) Client() *http.Client { return m.network.client(m.network.http) }

type endpoint struct {
	network *network
	name    string
}

// URL implements [service.Endpoint].
func (e endpoint) URL() string { return urlOf(e.name) }

// Close implements [service.Endpoint].
func (endpoint) Close() error { return nil }

// Serve implements [service.Endpoint]. It returns without waiting for running requests.
func (e endpoint) Serve(ctx, work context.Context, h http.Handler) error {
	i := e.network.serve(e.name, h, work)
	<-ctx.Done()
	e.network.unserve(e.name, i)
	return nil
}
