package service

import (
	"context"
	"errors"
	"log/slog"

	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/sweeper"
)

// sweep is the sweeper service: POST /v1/sweep, and a sweep every so often if
// it is configured to.
func sweep(ctx context.Context, p Process, cfg config, logger *slog.Logger) error {
	s, err := listen(ctx, "servo-sweeper", cfg, p, logger)
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
	sweeps := sweeper.New(sweeper.Config{
		Domains: func(ctx context.Context) ([]ids.Domain, error) { return Domains(ctx, store) },
		Compact: func(ctx context.Context, d ids.Domain, r compactor.Request) (compactor.Result, error) {
			return (&compactor.Client{Domain: d, URL: cfg.CompactorURL, HTTP: client}).Compact(ctx, r)
		},
		Repair: func(ctx context.Context, d ids.Domain, revision int64) error {
			return (&dispatcher.Client{Domain: d, URL: cfg.DispatcherURL, HTTP: client}).HandOver(ctx, revision, true)
		},
		OnSwept: func(r sweeper.Result, err error) {
			result := "ok"
			if err != nil {
				result = "error"
			}
			s.metrics.Add("servo_sweeps_total", 1, "result", result)
			s.metrics.Add("servo_swept_groups_total", float64(r.Folded))
		},
		Logger: logger,
	})
	sweeper.Register(s.mux, sweeps)
	if cfg.Every > 0 {
		s.background = append(s.background, func(ctx context.Context) error {
			for p.Clock.Sleep(ctx, cfg.Every) == nil {
				if _, err := sweeps.Sweep(ctx); err != nil && ctx.Err() == nil {
					logger.WarnContext(ctx, "sweep incomplete; the next one goes on", slog.Any("error", err))
				}
			}
			return nil
		})
	}
	return s.serve(ctx)
}
