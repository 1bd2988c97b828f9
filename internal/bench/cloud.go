package bench

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/servo-orchestration/servo/internal/cloudsim"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// onCloud measures a workload once on a simulated cloud.
func (cfg Config) onCloud(ctx context.Context, dir string, w Workload, n uint64, s *sample) error {
	left := atomic.Int64{}
	left.Store(int64(w.runs(cfg.Size) * len(w.assets(cfg.Size))))
	executed := make(chan struct{})
	cloud, err := cloudsim.Start(ctx, cloudsim.Options{
		Model: *cfg.Cloud, Seed: cfg.Seed + n, Dir: dir, Domain: Domain(), Concurrency: cfg.Concurrency,
		Executor: func(context.Context, worker.Execution) error {
			if left.Add(-1) == 0 {
				close(executed)
			}
			return nil
		},
		Clock: cfg.Clock, Logger: cfg.Logger, Stderr: cfg.Stderr, Codec: cfg.codec, Actor: "bench",
	})
	if err != nil {
		return err
	}
	err = cfg.measure(ctx, cloud.Engine, patientAwaiter{cloud.Watch, executed}, w, s)
	s.usage = cloud.Usage()
	return errors.Join(err, cloud.Close())
}
