package service

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/sweeper"
)

// sweep runs the sweeper service: POST /v1/sweep, and periodic sweeps if configured.
func sweep(ctx context.Context, p Process, cfg config, logger *slog.Logger) error {
	s, err := listen(ctx, sweeperName, cfg, p, logger)
	if err != nil {
		return err
	}
	store, closeStore, err := p.open(ctx, cfg, s)
	if err != nil {
		return err
	}
	defer closeStore()
	client, err := p.client(cfg)
	if err != nil {
		return errors.Join(err, s.endpoint.Close())
	}
	defer client.CloseIdleConnections()
	client = p.traces.Client(client)
	swept := sweeper.New(sweeper.Config{
		Store: store, Clock: p.Clock, Logger: logger,
		Domains: func(ctx context.Context) ([]ids.Domain, error) { return Domains(ctx, store) },
		Compact: func(ctx context.Context, d ids.Domain, r compactor.Request) (compactor.Result, error) {
			return (&remote.Client{Domain: d, URL: cfg.CompactorURL, HTTP: client}).Compact(ctx, r)
		},
		Repair: func(ctx context.Context, d ids.Domain, revision int64) error {
			return (&dispatcher.Client{Domain: d, URL: cfg.DispatcherURL, HTTP: client}).HandOver(ctx, revision, true)
		},
		OnSwept: s.countSweep,
	})
	sweeper.Register(s.mux, swept)
	s.timeouts = map[string]time.Duration{sweeper.Pattern: sweepTimeout}
	if cfg.Every > 0 {
		s.background = append(s.background,
			func(ctx context.Context) error { return sweepEvery(ctx, p, cfg, swept, logger) },
			func(ctx context.Context) error { return sweepFully(ctx, p, cfg, swept, logger) })
	}
	return s.serve(ctx)
}

// sweepTimeout limits the duration of a request for a sweep. The sweep itself has a shorter limit.
const sweepTimeout = 30 * time.Minute

// sweepEvery sweeps the due domains periodically.
func sweepEvery(ctx context.Context, p Process, cfg config, swept *sweeper.Sweeper, logger *slog.Logger) error {
	for p.Clock.Sleep(ctx, cfg.Every) == nil {
		if _, err := swept.Sweep(ctx, false); err != nil && ctx.Err() == nil {
			logger.WarnContext(ctx, "sweep incomplete; the next one continues", slog.Any("error", err))
		}
	}
	return nil
}

// fullAgain is the number by which the interval between full sweeps is divided after an incomplete one.
const fullAgain = 24

// sweepFully sweeps all domains after the first interval cfg.Every, and then periodically. It runs beside sweepEvery,
// because a full sweep can take long.
func sweepFully(ctx context.Context, p Process, cfg config, swept *sweeper.Sweeper, logger *slog.Logger) error {
	if cfg.FullEvery == 0 {
		return nil
	}
	for wait := cfg.Every; p.Clock.Sleep(ctx, wait) == nil; {
		began := p.Clock.Now()
		next := began.Add(cfg.FullEvery)
		if _, err := swept.Sweep(ctx, true); err != nil && ctx.Err() == nil {
			logger.WarnContext(ctx, "full sweep incomplete: the next one visits the domains in another order", slog.Any("error", err))
			next = began.Add(cfg.FullEvery / fullAgain)
		}
		wait = max(cfg.Every, next.Sub(p.Clock.Now()))
	}
	return nil
}

// lateWakeup is how long a wakeup must be overdue to count as late. Normally, a sweep runs every minute.
const lateWakeup = 10 * time.Minute

// countSweep counts and logs a sweep. Alerts read the log: nobody can scrape the metrics of a
// process that has a CPU only during requests.
func (s *server) countSweep(r sweeper.Result, err error) {
	result, kind := resultOf(err), kindDue
	if r.Full {
		kind = kindFull
	}
	s.metrics.Add(sweeps, 1, kind, result)
	s.metrics.Add(sweptDomains, float64(r.Domains-r.Missed), kind)
	s.metrics.Add(sweptGroups, float64(r.Folded))
	if r.Late >= lateWakeup {
		s.metrics.Add(lateSweeps, 1)
	}
	if kind == kindDue && err == nil && r.Domains == 0 {
		return // nothing was due
	}
	s.logger.Info("swept", slog.String("kind", kind), slog.String("result", result), slog.Int("domains", r.Domains),
		slog.Int("failed", r.Failed), slog.Int("missed", r.Missed), slog.Int("groups", r.Folded), slog.Int64("late_seconds", int64(r.Late/time.Second)))
}
