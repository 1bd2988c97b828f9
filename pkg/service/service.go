// Package service runs Servo's services: the compactor, the dispatcher and the sweeper, each as one
// process that serves HTTP. A process keeps no state that must survive it: everything is in the object store, where
// the next process finds it. This package is not a stable API.
//
// A service receives its bindings (object store, queue, clock), flags and environment, and reports all problems with
// these at once. It opens a domain when a request names it, and keeps it open. On shutdown it stops accepting requests,
// finishes the running requests, and then ends its background work.
package service

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/metrics"
	"github.com/servo-orchestration/servo/pkg/trace"
)

const (
	headerTimeout = 10 * time.Second
	readTimeout   = time.Minute
	idleTimeout   = 2 * time.Minute
	// requestTimeout limits how long the service works on a request. A writer's request waits for a fold, which is
	// retried while the store is unavailable. After this time, writers no longer wait for a response.
	requestTimeout = 2 * time.Minute
	// drainTimeout bounds how long running requests may continue at shutdown. After that, the dispatcher writes buffered
	// events, for at most the time in the constant linger. The sum of drainTimeout, linger and flushTimeout is less than
	// the 10 seconds that Cloud Run allows.
	drainTimeout = 7 * time.Second
	// maxRequest is the maximum size of the body of a request, in bytes.
	maxRequest = 1 << 20
)

// server is a running service.
type server struct {
	name     string
	endpoint Endpoint
	mux      *http.ServeMux
	metrics  metrics.Recorder
	ready    func() error
	callers  *callers // nil: no authentication
	traces   *trace.Tracer
	clock    clock.Clock
	logger   *slog.Logger
	// timeouts holds the timeouts of routes that may take longer than requestTimeout.
	timeouts map[string]time.Duration
	warnings *warnings
	// metricsAt is the endpoint of metrics. nil: not served.
	metricsAt Endpoint
	// background holds the background work of the service. It ends after the last request, which may need it.
	background []func(context.Context) error
}

// listen returns a server that listens on the configured address.
func listen(ctx context.Context, name string, cfg config, p Process, logger *slog.Logger) (*server, error) {
	endpoint, err := p.Network.Listen(ctx, cfg.Listen, logger)
	if err != nil {
		return nil, err
	}
	var metricsAt Endpoint
	if cfg.MetricsListen != "" {
		if metricsAt, err = p.Network.Listen(ctx, cfg.MetricsListen, logger); err != nil {
			return nil, errors.Join(err, endpoint.Close())
		}
	}
	s := &server{
		warnings: &warnings{clock: p.Clock, logger: logger}, metricsAt: metricsAt,
		name: name, endpoint: endpoint, mux: http.NewServeMux(), metrics: p.recorder(name), clock: p.Clock, logger: logger,
		ready: func() error { return nil }, callers: cfg.verifier(ctx, p, logger), traces: p.traces,
	}
	begin(s.metrics, name)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			httpx.Refuse(w, http.StatusServiceUnavailable, err.Error())
		}
	})
	if cfg.Subscription != "" {
		s.background = append(s.background, s.pull(p.Pull, cfg.Subscription))
	}
	return s, nil
}

// url returns the URL of the server on this machine.
func (s *server) url() string { return s.endpoint.URL() }

// serve serves until ctx is done or background work fails.
func (s *server) serve(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(work)
	for _, run := range s.background {
		g.Go(func() error { return run(gctx) })
	}
	g.Go(func() error {
		defer stop() // only after both endpoints have ended: stop also cancels their requests
		return s.serveEndpoints(ctx, gctx)
	})
	return g.Wait()
}

// serveEndpoints serves the endpoints of the service and of its metrics until ctx is done, and then until their
// requests have ended. If one endpoint fails, the other ends, too.
func (s *server) serveEndpoints(ctx, work context.Context) error {
	g, work := errgroup.WithContext(work)
	g.Go(func() error { return s.endpoint.Serve(ctx, work, s.handler()) })
	if s.metricsAt != nil {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", s.metrics)
		s.logger.InfoContext(ctx, "serving metrics", slog.String("url", s.metricsAt.URL()+"/metrics"))
		g.Go(func() error { return s.metricsAt.Serve(ctx, work, mux) })
	}
	s.logger.InfoContext(ctx, "serving", slog.String("url", s.url()))
	return g.Wait()
}
