package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// Network connects a service to the other services.
type Network interface {
	// Listen binds an address, "host:port". Port 0: a free port.
	Listen(ctx context.Context, address string, logger *slog.Logger) (Endpoint, error)
	// Client returns a client for calls to other services. It follows no redirects.
	Client() *http.Client
}

// Endpoint is a bound address.
type Endpoint interface {
	URL() string
	// Serve serves until ctx is done, and then waits a while for running requests. The parameter work is the context of
	// the requests: when it ends, running requests are cancelled.
	Serve(ctx, work context.Context, h http.Handler) error
	// Close releases an address that was never served.
	Close() error
}

// tcp is the network of the machine.
type tcp struct{}

func (tcp) Listen(ctx context.Context, address string, logger *slog.Logger) (Endpoint, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another address with --listen", address, err)
	}
	return &tcpEndpoint{l, logger}, nil
}

// Client keeps many idle connections, because it calls few services often.
func (tcp) Client() *http.Client {
	const conns = 256
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConns: conns, MaxIdleConnsPerHost: conns, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

type tcpEndpoint struct {
	listener net.Listener
	logger   *slog.Logger
}

func (e *tcpEndpoint) URL() string { return "http://" + e.listener.Addr().String() }

func (e *tcpEndpoint) Close() error { return e.listener.Close() }

func (e *tcpEndpoint) Serve(ctx, work context.Context, h http.Handler) error {
	var g errgroup.Group
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: contract.MaxHeaderBytes,
		ErrorLog:    slog.NewLogLogger(e.logger.Handler(), slog.LevelWarn),
		BaseContext: func(net.Listener) context.Context { return work },
	}
	ended := make(chan struct{})
	g.Go(func() error {
		defer close(ended)
		if err := srv.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", e.URL(), err)
		}
		return nil
	})
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-work.Done():
			return srv.Close()
		case <-ended:
			return nil
		}
		e.logger.InfoContext(work, "shutting down", slog.Duration("drain", drainTimeout))
		drain, cancel := context.WithTimeout(work, drainTimeout)
		defer cancel()
		if err := srv.Shutdown(drain); err != nil {
			return errors.Join(fmt.Errorf("shut down: requests were cut off: %w", err), srv.Close())
		}
		return nil
	})
	return g.Wait()
}
