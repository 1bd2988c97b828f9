package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/cloudsim"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Process is a process that was started for a benchmark.
type Process struct {
	URL string
	PID string
	// Client sends authenticated requests to the process; nil: [http.DefaultClient].
	Client *http.Client
	// Usage returns the number of operations on its store so far.
	Usage func() (cloudblob.Usage, error)
	// Stop stops the process.
	Stop func() error
}

// Domain returns the domain that benchmarks use.
func Domain() ids.Domain { return ids.Domain{Tenant: "bench", Workspace: "main"} }

// inFolder calls the function do with a new folder. It does not remove the folder, because that would distort the
// next sample: on some file systems (ext4), creating files is several times slower for some minutes after many files
// were removed.
func (cfg Config) inFolder(do func(dir string) error) error {
	dir, err := os.MkdirTemp(cfg.Dir, "servo-bench-")
	if err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	return do(dir)
}

// onFolder measures a workload once on a state folder.
func (cfg Config) onFolder(ctx context.Context, dir string, w Workload, s *sample) (err error) {
	worker, err := cfg.StartWorker(ctx, dir)
	if err != nil {
		return err
	}
	defer func() {
		s.workerPeak = PeakRSS(worker.PID)
		used, usageErr := worker.Usage()
		s.usage = s.usage.Add(cloudsim.Usage{Store: used})
		err = errors.Join(err, usageErr, worker.Stop())
	}()
	var meter *cloudblob.Store
	stack, err := embedded.Start(ctx, embedded.Options{
		Dir: dir, Domain: Domain(), Concurrency: cfg.Concurrency, WorkerURL: worker.URL,
		Clock: cfg.Clock, Logger: cfg.Logger, Actor: "bench",
		Wrap: func(inner blob.Store) blob.Store {
			meter = cloudblob.New(inner, cloudblob.Config{})
			return meter
		},
	})
	if err != nil {
		return err
	}
	err = cfg.withProject(ctx, stack, w, s)
	if err := errors.Join(err, stack.Close()); err != nil {
		return err
	}
	s.usage = cloudsim.Usage{Store: meter.Usage()}
	s.objects, s.bytes, err = stored(dir)
	return err
}

// If Config.Deployed is set, the project has these numbers of assets and schedules, in addition to the assets of the
// workload.
const (
	deployedAssets    = 1_000
	deployedSchedules = 100
)

// withProject measures a workload. If Config.Deployed is set, it deploys a project first.
func (cfg Config) withProject(ctx context.Context, stack *embedded.Stack, w Workload, s *sample) error {
	if !cfg.Deployed {
		return cfg.measure(ctx, stack.Engine, stack.Snapshots, w, s)
	}
	assets := w.assets(cfg.Size)
	for n := len(assets); len(assets) < n+deployedAssets; {
		assets = append(assets, asset(len(assets)))
	}
	due := cfg.Clock.Now().UTC().Add(5 * time.Hour) //nolint:mnd // long after the end of the measurement
	compiled, err := deploy(ctx, stack, assets, daily(deployedSchedules, due))
	if err != nil {
		return err
	}
	cfg.release = compiled
	if cfg.graph, err = plan.NewGraph(compiled.Code.Assets); err != nil {
		return err
	}
	return cfg.measure(ctx, stack.Engine, stack.Snapshots, w, s)
}

// stored returns the number of files below a folder, and their total size.
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
