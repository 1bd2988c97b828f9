// Package bench measures Servo on defined workloads, so that its figures can be compared with other
// systems and with earlier versions.
//
// Tasks do nothing, so that only orchestration is measured. Everything else works as in production, on one of two
// stores:
//
//   - a folder: a new state folder for each sample, with durable writes, commit markers and Parquet. Tasks are pushed
//     over HTTP to a worker in another process, which reports with callbacks;
//   - a simulated cloud: the services on a store, a queue and a network with the latencies of a
//     cloud, and with a bill (package cloudsim).
package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/internal/cloudsim"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// Config holds the settings and dependencies of a benchmark.
type Config struct {
	// Dir is the parent of all state folders. It should be on the disk whose speed is to be measured. The folders are
	// not removed.
	Dir string
	// Samples is the number of measurements of each workload.
	Samples int
	// Concurrency is the number of tasks that may execute at once.
	Concurrency int
	// Size is the length of W1's chain, the number of parallel tasks in W2, and the number of runs in W3; 0: the size in
	// the workload's description.
	Size int
	// Outputs makes each task commit an output without files, which adds a durable write.
	Outputs bool
	// If Deployed is set, measurements of W1, W2 and W3 on a folder first deploy a project, and run the release of this
	// project. The project has the workload's assets, as many other assets as the constant deployedAssets says, and
	// schedules that are not due.
	Deployed bool
	release  *release.Compiled // the deployed project
	graph    *plan.Graph       // graph of its assets
	// Cloud is the cloud to simulate; nil: the store is a folder. Seed seeds the random numbers of the cloud.
	Cloud *cloudsim.Model
	Seed  uint64
	// IdleRuns is the number of finished runs in W4's store. IdleFor is how long W4 observes the
	// idle process.
	IdleRuns int
	IdleFor  time.Duration
	// History lists the numbers of finished tasks in W5's stores.
	History []int

	// StartWorker starts a worker process for a state folder. The worker's tasks do nothing.
	StartWorker func(ctx context.Context, stateDir string) (Process, error)
	// StartServer starts a process that owns a state folder and serves the API.
	StartServer func(ctx context.Context, stateDir string) (Process, error)

	Clock  clock.Clock
	Logger *slog.Logger
	// Stderr receives the error log of the simulated cloud's services.
	Stderr io.Writer

	codec *snapshot.Codec // codec of the simulated cloud; nil: Parquet. Tests in virtual time must set it, because Parquet needs real time
}

// Values of Result.Store.
const (
	FileStore = "file"
	CloudSim  = "gcs-sim"
)

func (cfg Config) store() string {
	if cfg.Cloud != nil {
		return CloudSim
	}
	return FileStore
}

// Run measures a workload. It returns several results if the workload is measured under several
// conditions.
func Run(ctx context.Context, cfg Config, w Workload) ([]Result, error) {
	results, err := w.measure(ctx, cfg, w)
	if err != nil {
		return nil, fmt.Errorf("measure %s: %w", w.Name, err)
	}
	return results, nil
}

// sampled measures a workload on a new stack for each sample.
func sampled(ctx context.Context, cfg Config, w Workload) ([]Result, error) {
	var samples []sample
	for i := range cfg.Samples {
		s, err := cfg.sample(ctx, w, uint64(i)) //nolint:gosec // not negative
		if err != nil {
			return nil, err
		}
		samples = append(samples, s)
	}
	return []Result{cfg.result(w, samples)}, nil
}

// sample is one measurement.
type sample struct {
	tasks          int
	took           time.Duration
	hops           []float64 // milliseconds
	usage          cloudsim.Usage
	objects, bytes int64
	// peak and workerPeak are the peak resident memory of this process and of the worker, in bytes.
	peak, workerPeak int64
}

// sample measures a workload once, on a new stack.
func (cfg Config) sample(ctx context.Context, w Workload, n uint64) (s sample, err error) {
	err = cfg.inFolder(func(dir string) error {
		s, err = measured(func(s *sample) error {
			if cfg.Cloud != nil {
				return cfg.onCloud(ctx, dir, w, n, s)
			}
			return cfg.onFolder(ctx, dir, w, s)
		})
		return err
	})
	return s, err
}

// measured calls the function do and records the peak of memory during the call.
func measured(do func(*sample) error) (s sample, err error) {
	resetPeakRSS()
	err = do(&s)
	s.peak = PeakRSS("self")
	return s, err
}

// percentile returns the smallest value that is at least as large as the given percentage of all values. The values
// must be sorted, and there must be at least one.
func percentile(sorted []float64, percent int) float64 {
	return sorted[max((len(sorted)*percent+99)/100, 1)-1]
}

func median(values []float64) float64 { return percentile(slices.Sorted(slices.Values(values)), 50) }
