package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/internal/bench"
	"github.com/servo-orchestration/servo/internal/cloudqueue"
	"github.com/servo-orchestration/servo/internal/cloudsim"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// benchFlags are the flags of servo bench.
type benchFlags struct {
	store       string
	dir         string
	benchstat   string
	samples     int
	concurrency int
	size        int
	outputs     bool
	seed        uint64
	idleRuns    int
	idleFor     time.Duration
	history     []int
}

const (
	benchSamples     = 5
	benchConcurrency = 64
	benchIdleRuns    = 10_000
	benchIdleFor     = 30 * time.Second
	benchHistory     = 100_000
	// maxBenchRows limits the rows generated before a measurement.
	maxBenchRows = 10_000_000
)

func (a *app) benchCommand() *cobra.Command {
	var f benchFlags
	var names []string
	help := &strings.Builder{}
	for _, w := range bench.Workloads() {
		names = append(names, w.Name)
		fmt.Fprintf(help, "  %s  %s", w.Name, w.Description)
		if w.OnRequest {
			help.WriteString(" (takes minutes: runs only if named)")
		}
		help.WriteString("\n")
	}
	cmd := &cobra.Command{
		Use:   "bench [WORKLOAD…]",
		Short: "Measure the cost of orchestration on this machine or on a simulated cloud",
		Long: "Run workloads of empty tasks and measure them. Each sample has its own state folder and its own worker\n" +
			"process, and every write is durable. With --store gcs-sim, the services run on a simulated store, queue\n" +
			"and network with the latencies and prices of a cloud.\n\n" + help.String(),
		Example:   "  servo bench\n  servo bench W1 --samples 10 -o json\n  servo bench W2 --store gcs-sim\n  servo bench W5 --history 0,100000,1000000",
		Args:      takes("[WORKLOAD…]"),
		ValidArgs: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.store == bench.CloudSim && !cmd.Flags().Changed("concurrency") {
				f.concurrency = cloudqueue.MaxConcurrent
			}
			return a.bench(cmd.Context(), f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.store, "store", bench.FileStore, "file: a state folder on this machine; gcs-sim: a simulated cloud")
	flags.StringVar(&f.dir, "dir", "", "folder for the samples, on the disk to measure (default: the folder of temporary files)")
	flags.IntVar(&f.samples, "samples", benchSamples, "number of samples of each workload")
	flags.IntVar(&f.concurrency, "concurrency", benchConcurrency,
		fmt.Sprintf("number of concurrent tasks (default with --store gcs-sim: %d)", cloudqueue.MaxConcurrent))
	flags.IntVar(&f.size, "size", 0, "size of the workload: the length of W1's chain, the width of W2, W5 and W7, the number of W3's runs")
	flags.BoolVar(&f.outputs, "outputs", false, "commit an output for each task, which adds one durable write")
	flags.Uint64Var(&f.seed, "seed", 1, "seed of the latencies of gcs-sim")
	flags.IntVar(&f.idleRuns, "idle-runs", benchIdleRuns, "number of finished runs in the store of W4")
	flags.DurationVar(&f.idleFor, "idle-for", benchIdleFor, "how long W4 observes the idle process")
	flags.IntSliceVar(&f.history, "history", []int{0, benchHistory}, "numbers of finished tasks in the stores of W5; a million takes three minutes and 2 GB in --dir")
	flags.StringVar(&f.benchstat, "benchstat", "", "also write the samples to this file, in the format of benchstat")
	cmd.AddCommand(a.benchWorkerCommand(), a.benchServerCommand())
	return cmd
}

// check validates the flags.
func (f benchFlags) check() error {
	switch {
	case f.samples < 1 || f.concurrency < 1:
		return usagef("--samples and --concurrency must be 1 or more")
	case f.size < 0 || f.idleRuns < 0 || f.idleFor <= 0:
		return usagef("--size and --idle-runs must not be negative, and --idle-for must be positive")
	case f.store != bench.FileStore && f.store != bench.CloudSim:
		return usagef("invalid --store %q: choose %s or %s", f.store, bench.FileStore, bench.CloudSim)
	case f.idleRuns > maxBenchRows:
		return usagef("--idle-runs is %d; the maximum is %d", f.idleRuns, maxBenchRows)
	case len(f.history) == 0:
		return usagef("--history needs at least one number of tasks")
	}
	for _, n := range f.history {
		if n < 0 {
			return usagef("--history must not be negative")
		}
		if n > maxBenchRows {
			return usagef("--history is %d; the maximum is %d", n, maxBenchRows)
		}
	}
	return nil
}

// checkSize returns an error if the size is too large for a workload.
func checkSize(size int, chosen []bench.Workload) error {
	for _, w := range chosen {
		if most := w.MaxSize(); most > 0 && size > most {
			return usagef("--size is %d; the maximum for %s is %d, because a run has at most %d tasks", size, w.Name, most, plan.MaxTasks)
		}
	}
	return nil
}

func (a *app) bench(ctx context.Context, f benchFlags, names []string) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	chosen, err := chooseWorkloads(f.store, names)
	if err != nil {
		return err
	}
	if err := checkSize(f.size, chosen); err != nil {
		return err
	}
	cfg := bench.Config{
		Samples: f.samples, Concurrency: f.concurrency, Size: f.size, Outputs: f.outputs, Seed: f.seed,
		IdleRuns: f.idleRuns, IdleFor: f.idleFor, History: f.history,
		Clock: a.Clock, Logger: a.logger, Stderr: a.Stderr,
		StartWorker: func(ctx context.Context, dir string) (bench.Process, error) {
			return a.startBenchProcess(ctx, "worker", "--store", dir, "--concurrency", strconv.Itoa(f.concurrency))
		},
		StartServer: func(ctx context.Context, dir string) (bench.Process, error) {
			server, err := a.startBenchProcess(ctx, "server", "--store", dir)
			if err != nil {
				return server, err
			}
			owner, err := embedded.ReadOwner(dir)
			if err != nil {
				return server, errors.Join(err, server.Stop())
			}
			server.Client = owner.Client()
			return server, nil
		},
	}
	where := ""
	if f.dir != "" {
		where = a.abs(f.dir)
	}
	if cfg.Dir, err = os.MkdirTemp(where, "servo-bench-"); err != nil {
		return fmt.Errorf("create a folder for the samples: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cfg.Dir)) }()
	bench.Spread(cfg.Dir)
	if f.store == bench.CloudSim {
		model := cloudsim.GCP()
		cfg.Cloud = &model
		a.note("gcs-sim: %s", model)
	}
	save, err := samplesFile(f.benchstat, a.abs)
	if err != nil {
		return err
	}
	var results []bench.Result
	for _, w := range chosen {
		a.note("%s: %s, %s", w.Name, w.Description, plural(f.samples, "sample"))
		measured, err := bench.Run(ctx, cfg, w)
		if err != nil {
			return errors.Join(err, save(results))
		}
		results = append(results, measured...)
	}
	return errors.Join(save(results), a.benchResults(results))
}

// samplesFile opens the file for the samples before the measurement. An empty path means no
// file.
func samplesFile(path string, abs func(string) string) (save func([]bench.Result) error, err error) {
	if path == "" {
		return func([]bench.Result) error { return nil }, nil
	}
	file, err := os.Create(abs(path))
	if err != nil {
		return nil, fmt.Errorf("write samples: %w", err)
	}
	return func(results []bench.Result) error {
		if err := errors.Join(bench.WriteBenchmarks(file, results), file.Close()); err != nil {
			return fmt.Errorf("write samples to %s: %w", path, err)
		}
		return nil
	}, nil
}

// chooseWorkloads returns the named workloads, or all that can be measured on the store.
func chooseWorkloads(store string, names []string) ([]bench.Workload, error) {
	var chosen []bench.Workload
	all := bench.Workloads()
	for _, w := range all {
		if len(names) == 0 && !w.OnRequest && (w.OnCloud || store == bench.FileStore) {
			chosen = append(chosen, w)
		}
	}
	for _, name := range names {
		found := len(chosen)
		for _, w := range all {
			if strings.EqualFold(w.Name, name) {
				chosen = append(chosen, w)
			}
		}
		switch {
		case found == len(chosen):
			return nil, usagef("unknown workload %q; list the workloads with `servo bench --help`", name)
		case store == bench.CloudSim && !chosen[found].OnCloud:
			return nil, usagef("%s is not measured on %s", chosen[found].Name, store)
		}
	}
	return chosen, nil
}

func (a *app) benchResults(results []bench.Result) error {
	if a.format == render.JSON || a.format == render.YAML {
		return a.document(results, nil)
	}
	operations := func(get func(*bench.Operations) float64) func(bench.Result) (float64, bool) {
		return func(r bench.Result) (float64, bool) {
			if r.Operations == nil {
				return 0, false
			}
			return get(r.Operations), true
		}
	}
	idle := func(get func(*bench.Idle) float64) func(bench.Result) (float64, bool) {
		return func(r bench.Result) (float64, bool) {
			if r.Idle == nil {
				return 0, false
			}
			return get(r.Idle), true
		}
	}
	columns := []column[bench.Result]{
		{name: "workload", value: func(r bench.Result) any { return r.Workload }},
		{name: "store", value: func(r bench.Result) any { return r.Store }},
		{name: "tasks", value: func(r bench.Result) any { return r.Tasks }},
		figure("median", func(r bench.Result) (float64, bool) { return r.Median, true }),
		{name: "unit", value: func(r bench.Result) any { return r.Unit }},
		figure("min", func(r bench.Result) (float64, bool) { return r.Min, true }),
		figure("max", func(r bench.Result) (float64, bool) { return r.Max, true }),
		figure("makespan_s", known(func(r bench.Result) float64 { return r.Makespan })),
		figure("hop_p50_ms", known(func(r bench.Result) float64 { return r.HopP50 })),
		figure("hop_p99_ms", known(func(r bench.Result) float64 { return r.HopP99 })),
		figure("history_tasks", func(r bench.Result) (float64, bool) {
			if r.History == nil {
				return 0, false
			}
			return float64(*r.History), true
		}),
		figure("ratio", known(func(r bench.Result) float64 { return r.Ratio })),
		figure("class_a_per_task", operations(func(o *bench.Operations) float64 { return o.ClassA })),
		figure("class_b_per_task", operations(func(o *bench.Operations) float64 { return o.ClassB })),
		figure("bytes_in_per_task", operations(func(o *bench.Operations) float64 { return o.BytesIn })),
		figure("write_amplification", operations(func(o *bench.Operations) float64 { return o.Amplification })),
		figure("queue_per_task", known(func(r bench.Result) float64 {
			if r.Operations == nil {
				return 0
			}
			return r.Operations.Queue
		})),
		figure("dollars_per_million", known(func(r bench.Result) float64 {
			if r.Dollars == nil {
				return 0
			}
			return r.Dollars.Total
		})),
		figure("objects_per_task", known(func(r bench.Result) float64 { return r.Objects })),
		figure("idle_pss_mib", idle(func(i *bench.Idle) float64 { return mebibytes(i.PSS) })),
		figure("idle_cpu_percent", idle(func(i *bench.Idle) float64 { return i.CPU })),
		figure("idle_operations", idle(func(i *bench.Idle) float64 { return float64(i.Operations) })),
		figure("peak_rss_mib", known(func(r bench.Result) float64 { return mebibytes(r.PeakRSS) })),
		figure("worker_peak_rss_mib", known(func(r bench.Result) float64 { return mebibytes(r.WorkerPeakRSS) })),
	}
	if a.format == render.Table {
		columns = slices.DeleteFunc(columns, func(c column[bench.Result]) bool {
			return !slices.ContainsFunc(results, func(r bench.Result) bool { return c.value(r) != nil })
		})
	}
	return list(a, columns, results)
}

// figure returns a column of numbers. Tables show three digits. get returns false if there is
// no value.
func figure(name string, get func(bench.Result) (float64, bool)) column[bench.Result] {
	return column[bench.Result]{
		name: name,
		value: func(r bench.Result) any {
			if v, ok := get(r); ok {
				return v
			}
			return nil
		},
		text: func(r bench.Result) any {
			v, ok := get(r)
			switch {
			case !ok:
				return nil
			case v >= 1000: //nolint:mnd // more than three digits
				return strconv.FormatFloat(v, 'f', 0, 64)
			}
			return strconv.FormatFloat(v, 'g', 3, 64)
		},
	}
}

// known returns a figure whose zero value means that there is none.
func known(get func(bench.Result) float64) func(bench.Result) (float64, bool) {
	return func(r bench.Result) (float64, bool) {
		v := get(r)
		return v, v != 0
	}
}

func mebibytes(n int64) float64 { return float64(n >> 20) } //nolint:mnd // mebibytes
