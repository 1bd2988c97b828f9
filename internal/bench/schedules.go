package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/cloudsim"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/table"
	"github.com/servo-orchestration/servo/pkg/table/parquetfile"
)

// The constants minutely and stormy are the numbers of schedules in W8 and W9. Each schedule of W9 runs one of
// stormAssets assets.
const (
	minutely    = 60
	stormy      = 10_000
	stormAssets = 100
	// settling is how long the benchmark waits after a deployment until the store counts as idle. In this time,
	// retention deletes old revisions.
	settling = 45 * time.Second
	// lookEvery is the time between two reads of the state.
	lookEvery = 2 * time.Second
)

// ticking measures the time from each tick to the start of its task. Jitter spreads the ticks over the
// minute.
func ticking(ctx context.Context, cfg Config, w Workload) ([]Result, error) {
	var samples []sample
	for range cfg.Samples {
		s, err := cfg.scheduled(ctx, nil, func(ctx context.Context, stack *scheduledStack, s *sample) error {
			n := or(cfg.Size, minutely)
			schedules := make([]event.Schedule, n)
			for i := range schedules {
				schedules[i] = schedule(i, i)
				schedules[i].EverySec, schedules[i].JitterSec = 60, 59
			}
			began := cfg.Clock.Now()
			if err := stack.deploy(ctx, n, schedules); err != nil {
				return err
			}
			if err := stack.watch(ctx, n); err != nil {
				return err
			}
			s.took, s.tasks = cfg.Clock.Now().Sub(began), len(stack.starts)
			s.hops = stack.delays()
			return nil
		})
		if err != nil {
			return nil, err
		}
		samples = append(samples, s)
	}
	return []Result{cfg.result(w, samples)}, nil
}

// storm measures many schedules that tick in the same minute of the day: first while no schedule is due, then when all
// are due.
func storm(ctx context.Context, cfg Config, w Workload) ([]Result, error) {
	n := or(cfg.Size, stormy)
	var idle Idle
	s, err := cfg.scheduled(ctx, &idle, func(ctx context.Context, stack *scheduledStack, s *sample) error {
		due := cfg.Clock.Now().Add(settling + time.Minute + cfg.IdleFor).Truncate(time.Minute).UTC().Add(time.Minute)
		if err := compressOnEachCore(); err != nil {
			return err
		}
		before := liveHeap()
		if err := stack.deploy(ctx, stormAssets, daily(n, due)); err != nil {
			return err
		}
		idle.Heap = liveHeap() - before
		if err := cfg.Clock.Sleep(ctx, settling); err != nil {
			return err
		}
		used, cpu, at := operations(stack.meter.Usage()), cpuTime("self"), cfg.Clock.Now()
		if err := cfg.Clock.Sleep(ctx, due.Add(-time.Second).Sub(at)); err != nil {
			return err
		}
		idle.Seconds, idle.Operations = cfg.Clock.Now().Sub(at).Seconds(), operations(stack.meter.Usage())-used
		idle.CPU = 100 * (cpuTime("self") - cpu).Seconds() / idle.Seconds //nolint:mnd // percent
		if err := stack.watch(ctx, n); err != nil {
			return err
		}
		s.tasks, s.took = n, stack.lastRun.Sub(event.At(due))
		s.hops = stack.delays()
		return nil
	})
	if err != nil {
		return nil, err
	}
	r := cfg.result(w, []sample{s})
	r.Idle = &idle
	return []Result{r}, nil
}

// compressOnEachCore compresses files on each core before the measurement, so that the process allocates its buffers
// for compression now: 16 MiB for each core. The process keeps these buffers.
func compressOnEachCore() error {
	rows := make([]*state.RunKey, 20_000)
	for i := range rows {
		rows[i] = &state.RunKey{RunKey: fmt.Sprintf("%016x", i*i)}
	}
	for range 2 * runtime.GOMAXPROCS(0) { // two files for each core, because successive files use different encoders
		if _, err := table.Of[state.RunKey]("run_keys").Encode(&parquetfile.Format{}, rows); err != nil {
			return fmt.Errorf("encode rows: %w", err)
		}
	}
	return nil
}

// liveHeap returns the bytes of the live objects.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below
}

// daily returns n schedules that tick once a day, at the same time.
func daily(n int, at time.Time) []event.Schedule {
	schedules := make([]event.Schedule, n)
	for i := range schedules {
		schedules[i] = schedule(i, i%stormAssets)
		schedules[i].Cron = fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour())
	}
	return schedules
}

func schedule(n, ofAsset int) event.Schedule {
	return event.Schedule{
		Name: fmt.Sprintf("s%05d", n), Overlap: event.OverlapAllowAll,
		Run: event.RunSpec{Assets: []string{key(ofAsset).String()}},
	}
}

// scheduledStack is a stack that runs schedules, with the observed times of their ticks.
type scheduledStack struct {
	*embedded.Stack
	cfg   Config
	meter *cloudblob.Store

	due     map[string]event.Time // when the tick is due, by schedule and instant
	starts  map[string]event.Time // when the task of the tick started, by schedule and instant
	lastRun event.Time            // when the newest run was created
}

// scheduled measures a new stack with a worker of its own.
func (cfg Config) scheduled(ctx context.Context, idle *Idle, do func(context.Context, *scheduledStack, *sample) error) (s sample, err error) {
	err = cfg.inFolder(func(dir string) error {
		s, err = measured(func(s *sample) (err error) {
			worker, err := cfg.StartWorker(ctx, dir)
			if err != nil {
				return err
			}
			defer func() {
				s.workerPeak = PeakRSS(worker.PID)
				err = errors.Join(err, worker.Stop())
			}()
			stack := &scheduledStack{cfg: cfg, due: map[string]event.Time{}, starts: map[string]event.Time{}}
			stack.Stack, err = embedded.Start(ctx, embedded.Options{
				Dir: dir, Root: dir, Domain: Domain(), Concurrency: cfg.Concurrency, WorkerURL: worker.URL,
				Clock: cfg.Clock, Logger: cfg.Logger, Actor: "bench",
				Wrap: func(inner blob.Store) blob.Store {
					stack.meter = cloudblob.New(inner, cloudblob.Config{})
					return stack.meter
				},
			})
			if err != nil {
				return err
			}
			err = do(ctx, stack, s)
			if idle != nil {
				idle.PSS, idle.RSS = residentMemory("self", "Pss:"), residentMemory("self", "Rss:")
			}
			s.usage = cloudsim.Usage{Store: stack.meter.Usage()}
			return errors.Join(err, stack.Close())
		})
		return err
	})
	return s, err
}

// deploy deploys assets and schedules, and waits until all schedules that are not paused have a next tick.
func (s *scheduledStack) deploy(ctx context.Context, assets int, schedules []event.Schedule) error {
	list := make([]plan.Asset, assets)
	for i := range list {
		list[i] = asset(i)
	}
	_, err := deploy(ctx, s.Stack, list, schedules)
	return err
}

// deploy deploys a project, and returns its release when all schedules that are not paused have a next tick.
func deploy(ctx context.Context, stack *embedded.Stack, assets []plan.Asset, schedules []event.Schedule) (*release.Compiled, error) {
	in := release.Input{Settings: release.Settings{Project: "bench", Schedules: schedules}, Assets: assets}
	release.SetCodes(in.Assets)
	compiled, err := release.Compile(in, nil, nil)
	if err != nil {
		return nil, err
	}
	if err := stack.SaveRelease(ctx, compiled, nil); err != nil {
		return nil, err
	}
	_, err = stack.Deploy(ctx, engine.DeployRequest{Release: compiled.SHA, Force: true, Kind: event.DeployRelease, Schedules: schedules})
	if err != nil {
		return nil, err
	}
	for after := int64(0); ; {
		snap, err := stack.Await(ctx, after)
		if err != nil {
			return nil, err
		}
		known := 0
		for row := range snap.State.Schedules.All {
			if (row.NextAt != 0 || row.Paused) && row.RemovedAt == 0 {
				known++
			}
		}
		if known == len(schedules) {
			return compiled, nil
		}
		after = snap.Revision
	}
}

// watch reads the state repeatedly until the tasks of n ticks have started, and records when ticks are due and when
// their tasks start.
func (s *scheduledStack) watch(ctx context.Context, n int) error {
	for {
		snap, err := s.Current(ctx)
		if err != nil {
			return err
		}
		for row := range snap.State.Schedules.All {
			s.due[tick(row.ScheduleID, row.Next)] = row.NextAt
		}
		for run := range snap.State.Runs.All {
			request := snap.State.Requests.Get(run.RequestID)
			if request == nil {
				continue
			}
			s.lastRun = max(s.lastRun, run.CreatedAt)
			snap.State.Attempts.Ascend(state.AttemptKey{RunID: run.RunID}, func(a *state.Attempt) bool {
				if a.RunID == run.RunID && a.StartedAt != 0 {
					s.starts[tick(run.ScheduleID, request.Logical)] = a.StartedAt
				}
				return a.RunID == run.RunID && a.StartedAt == 0
			})
		}
		if len(s.starts) >= n {
			return nil
		}
		if err := s.cfg.Clock.Sleep(ctx, lookEvery); err != nil {
			return err
		}
	}
}

func tick(schedule string, logical event.Time) string { return schedule + " " + logical.String() }

// delays returns the milliseconds from each tick to the start of its task.
func (s *scheduledStack) delays() (all []float64) {
	for tick, started := range s.starts {
		if due, ok := s.due[tick]; ok {
			all = append(all, float64(started.Sub(due))/float64(time.Millisecond))
		}
	}
	return all
}

// scheduleWorkloads returns the workloads with schedules.
func scheduleWorkloads() []Workload {
	return []Workload{
		{
			Name: "W8", Description: "60 schedules that tick once a minute, each at its own second: the time from a tick to the start of its task",
			OnRequest: true, measure: ticking, unit: "ms",
			value: func(s sample) float64 { return median(s.hops) },
		},
		{
			Name: "W9", Description: "10,000 schedules, idle for --idle-for, then due in the same minute: the time until the run of the last tick exists",
			OnRequest: true, measure: storm, unit: "s",
			value: func(s sample) float64 { return s.took.Seconds() },
		},
	}
}
