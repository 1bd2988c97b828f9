// Package bench measures Servo on workloads that are stated, so that its figures
// can be held against those of others and against its own of yesterday.
//
// Tasks do nothing, so that orchestration is what is measured; all else is as in
// use, on one of two stores:
//
//   - a folder: a state folder of its own for each sample, every write as durable
//     as ever, a worker in another process to which tasks are pushed over HTTP and
//     which reports over HTTP, commit markers, Parquet;
//   - a simulated cloud: the services on a store, a queue and a network with a
//     cloud's latencies, and with a bill (package cloudsim).
package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/cloudsim"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// Config is what a bench works with.
type Config struct {
	// Dir is where state folders are made. They are left there. It should be on the
	// disk that is to be measured.
	Dir string
	// Samples is how often each workload is measured.
	Samples int
	// Concurrency is how many tasks may be executed at once.
	Concurrency int
	// Size is how long W1's chain is, how many tasks W2 has side by side, and how many
	// runs W3 has; 0: as described.
	Size int
	// Outputs has each task commit an output, without files: a durable write more.
	Outputs bool
	// Cloud is the cloud to simulate; nil: the store is a folder. Seed decides what is
	// drawn in it.
	Cloud *cloudsim.Model
	Seed  uint64
	// IdleRuns are how many finished runs W4 has in its store, and IdleFor is how long
	// it looks on.
	IdleRuns int
	IdleFor  time.Duration
	// History is how many finished tasks W5 has in its stores, one after the other.
	History []int

	// StartWorker starts a worker process for a state folder, which does nothing for
	// each task.
	StartWorker func(ctx context.Context, stateDir string) (Process, error)
	// StartServer starts a process that owns a state folder and serves the API.
	StartServer func(ctx context.Context, stateDir string) (Process, error)

	Clock  clock.Clock
	Logger *slog.Logger
	// Stderr is where the services of a cloud log what fails.
	Stderr io.Writer

	codec *snapshot.Codec // of the cloud; nil: Parquet, whose goroutines no test in virtual time can have
}

// Stores, as results name them.
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

// Run measures a workload. It gives several results where the workload is one
// measured under several conditions.
func Run(ctx context.Context, cfg Config, w Workload) ([]Result, error) {
	results, err := w.measure(ctx, cfg, w)
	if err != nil {
		return nil, fmt.Errorf("measure %s: %w", w.Name, err)
	}
	return results, nil
}

// sampled measures a workload on a stack of its own each time.
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
	// Peaks of resident memory of this process and of the worker's.
	peak, workerPeak int64
}

// sample measures a workload once, on a stack of its own.
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

// measured makes a sample whose peak of memory is its own.
func measured(do func(*sample) error) (s sample, err error) {
	resetPeakRSS()
	err = do(&s)
	s.peak = PeakRSS("self")
	return s, err
}

// percentile is of sorted values, of which there is at least one: the smallest
// value that so many percent do not exceed.
func percentile(sorted []float64, percent int) float64 {
	return sorted[max((len(sorted)*percent+99)/100, 1)-1]
}

func median(values []float64) float64 { return percentile(slices.Sorted(slices.Values(values)), 50) }
