// Package bench measures Servo on workloads that are stated, so that its figures
// can be held against those of others and against its own of yesterday.
//
// Tasks do nothing, so that orchestration is what is measured; all else is as in
// use: a state folder of its own for each sample, every write as durable as ever,
// a worker in another process to which tasks are pushed over HTTP and which
// reports over HTTP, commit markers, Parquet.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Config is what a bench works with.
type Config struct {
	// Dir is where state folders are made, and removed again. It should be on the
	// disk that is to be measured.
	Dir string
	// Samples is how often each workload is measured.
	Samples int
	// Concurrency is how many tasks may be executed at once.
	Concurrency int
	// StartWorker starts a worker process for a state folder, which does nothing for
	// each task. Stop ends it and gives its peak memory in bytes, 0 if unknown.
	StartWorker func(ctx context.Context, stateDir string) (url string, stop func() (peak int64, err error), err error)
	Clock       clock.Clock
	Logger      *slog.Logger
}

// Result is what became of a workload.
type Result struct {
	Workload    string `json:"workload"`
	Description string `json:"description"`
	Tasks       int    `json:"tasks"`
	// Samples are what was measured, a value a sample, in Unit.
	Samples []float64 `json:"samples"`
	Unit    string    `json:"unit"`
	Median  float64   `json:"median"`
	Min     float64   `json:"min"`
	Max     float64   `json:"max"`
	// HopP50 and HopP99 are milliseconds from the end of a task to that of the one
	// that waited for it, over all samples; chains only.
	HopP50 float64 `json:"hop_p50_ms,omitempty"`
	HopP99 float64 `json:"hop_p99_ms,omitempty"`
	// Objects and Bytes are what a sample left in its state folder, a task.
	Objects float64 `json:"objects_per_task"`
	Bytes   float64 `json:"bytes_per_task"`
	// Peaks of resident memory, in bytes, of the process that orchestrates since it
	// started and of the worker in its largest sample. 0: unknown.
	PeakRSS       int64 `json:"peak_rss_bytes,omitempty"`
	WorkerPeakRSS int64 `json:"worker_peak_rss_bytes,omitempty"`
}

// Run measures a workload.
func Run(ctx context.Context, cfg Config, w Workload) (Result, error) {
	r := Result{Workload: w.Name, Description: w.Description, Unit: w.unit}
	var hops []float64
	for range cfg.Samples {
		s, err := cfg.sample(ctx, w)
		if err != nil {
			return r, fmt.Errorf("measure %s: %w", w.Name, err)
		}
		r.Tasks = s.tasks
		r.Samples = append(r.Samples, w.value(s))
		r.Objects, r.Bytes = float64(s.objects)/float64(s.tasks), float64(s.bytes)/float64(s.tasks)
		r.WorkerPeakRSS = max(r.WorkerPeakRSS, s.workerPeak)
		if w.chain {
			hops = append(hops, s.hops...)
		}
	}
	sorted := slices.Sorted(slices.Values(r.Samples))
	r.Median, r.Min, r.Max = percentile(sorted, 50), sorted[0], sorted[len(sorted)-1]
	if w.chain {
		slices.Sort(hops)
		r.HopP50, r.HopP99 = percentile(hops, 50), percentile(hops, 99)
	}
	r.PeakRSS = PeakRSS("self")
	return r, nil
}

// percentile is of sorted values, of which there is at least one: the smallest
// value that so many percent do not exceed.
func percentile(sorted []float64, percent int) float64 {
	return sorted[max((len(sorted)*percent+99)/100, 1)-1]
}

// sample is one measurement.
type sample struct {
	tasks          int
	took           time.Duration
	hops           []float64 // milliseconds
	objects, bytes int64
	workerPeak     int64
}

// sample measures a workload once, on a state folder of its own.
func (cfg Config) sample(ctx context.Context, w Workload) (s sample, err error) {
	dir, err := os.MkdirTemp(cfg.Dir, "servo-bench-")
	if err != nil {
		return s, fmt.Errorf("make a state folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	url, stop, err := cfg.StartWorker(ctx, dir)
	if err != nil {
		return s, err
	}
	defer func() {
		peak, stopErr := stop()
		s.workerPeak, err = peak, errors.Join(err, stopErr)
	}()
	stack, err := embedded.Start(ctx, embedded.Options{
		Dir: dir, Domain: ids.Domain{Tenant: "bench", Workspace: "main"}, Concurrency: cfg.Concurrency, WorkerURL: url,
		Clock: cfg.Clock, Logger: cfg.Logger, Actor: "bench",
	})
	if err != nil {
		return s, err
	}
	if err := errors.Join(cfg.measure(ctx, stack.Engine, w, &s), stack.Close()); err != nil {
		return s, err
	}
	s.objects, s.bytes, err = stored(dir)
	return s, err
}

// measure triggers the workload's runs and waits for the end of all.
func (cfg Config) measure(ctx context.Context, e *engine.Engine, w Workload, s *sample) error {
	assets := w.assets()
	began := cfg.Clock.Now()
	runs := map[string]bool{}
	for range w.runs {
		ticket, err := e.Run(ctx, engine.RunRequest{
			Plan: plan.Request{Assets: assets, All: true}, Trigger: event.Trigger{Type: "manual"},
		})
		if err != nil {
			return err
		}
		runs[ticket.RunID] = true
	}
	var end *snapshot.Snapshot
	for after := int64(0); ; after = end.Revision {
		var err error
		if end, err = e.Snapshots.Await(ctx, after); err != nil {
			return err
		}
		if end.State.Runs.Len() == w.runs && end.State.LiveRuns() == 0 {
			break
		}
	}
	s.took = cfg.Clock.Now().Sub(began)
	s.tasks = w.runs * len(assets)
	var ends []event.Time
	for t := range end.State.Tasks.All {
		if t.State != state.TaskSucceeded {
			return fmt.Errorf("task %s of run %s is %s: %s", t.TaskKey, t.RunID, t.State, t.ErrorMessage)
		}
		ends = append(ends, t.CompletedAt)
	}
	slices.SortFunc(ends, func(a, b event.Time) int { return cmp.Compare(a, b) })
	for i := 1; i < len(ends); i++ {
		s.hops = append(s.hops, float64(ends[i].Sub(ends[i-1]))/float64(time.Millisecond))
	}
	return nil
}

// stored counts the files below a folder, and their bytes.
func stored(dir string) (objects, bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		objects, bytes = objects+1, bytes+info.Size()
		return nil
	})
	return objects, bytes, err
}
