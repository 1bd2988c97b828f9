// Package service is what Servo's small services have in common, and what each
// of them adds: the compactor, the dispatcher and the sweeper, each as one
// process that serves HTTP and holds nothing that matters. What is lost with a
// process is in the object store, and the next one finds it there.
//
// A service is handed its bindings (object store, queue, clock), flags and
// environment, and says everything that is wrong with those at once. It opens
// what it needs of a domain when a request names it, and keeps that. When it is
// told to end it first stops taking requests, then finishes those it has, and
// then ends its background work.
package service

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/trace"
)

const (
	headerTimeout = 10 * time.Second
	readTimeout   = time.Minute
	idleTimeout   = 2 * time.Minute
	// requestTimeout bounds the work on a request. Writers wait for a fold, which
	// is tried again while the store is away: the answer would come too late then.
	requestTimeout = 2 * time.Minute
	// drainTimeout is how long requests may take to end when the service is to end. With
	// flushTimeout it fits into the 10 seconds that Cloud Run gives.
	drainTimeout = 8 * time.Second
	// maxRequest bounds the body of a request, in bytes, and maxHeader its header.
	maxRequest = 1 << 20
	maxHeader  = 32 << 10
)

// server is a service as it is served.
type server struct {
	name     string
	endpoint Endpoint
	mux      *http.ServeMux
	metrics  *metrics
	ready    func() error
	callers  *callers // nil: nobody is asked who calls
	traces   *trace.Tracer
	clock    clock.Clock
	logger   *slog.Logger
	// timeouts are those of routes that take longer than requestTimeout.
	timeouts map[string]time.Duration
	warnings *warnings
	// metricsAt is where metrics are served; nil: nowhere.
	metricsAt Endpoint
	// background are what the service does beside its requests, and for them. They
	// outlive the last request.
	background []func(context.Context) error
}

// listen makes a server on the address of a configuration.
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
		name: name, endpoint: endpoint, mux: http.NewServeMux(), metrics: newMetrics(), clock: p.Clock, logger: logger,
		ready: func() error { return nil }, callers: cfg.verifier(ctx, p, logger), traces: p.traces,
	}
	s.metrics.begin(name)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			writeProblem(w, http.StatusServiceUnavailable, err.Error())
		}
	})
	if cfg.Subscription != "" {
		s.background = append(s.background, s.pull(p.Pull, cfg.Subscription))
	}
	return s, nil
}

// url is where the server is reached from this machine.
func (s *server) url() string { return s.endpoint.URL() }

// serve serves until ctx is done or something that the service needs has ended.
func (s *server) serve(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(work)
	for _, run := range s.background {
		g.Go(func() error { return run(gctx) })
	}
	g.Go(func() error {
		defer stop()
		return s.endpoint.Serve(ctx, gctx, s.handler())
	})
	if s.metricsAt != nil {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", s.metrics)
		s.logger.InfoContext(ctx, "serving metrics", slog.String("url", s.metricsAt.URL()+"/metrics"))
		g.Go(func() error { return s.metricsAt.Serve(ctx, gctx, mux) })
	}
	s.logger.InfoContext(ctx, "serving", slog.String("url", s.url()))
	return g.Wait()
}
