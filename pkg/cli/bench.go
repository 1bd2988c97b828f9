package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/bench"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// benchFlags are the flags of servo bench.
type benchFlags struct {
	dir         string
	samples     int
	concurrency int
}

const (
	benchSamples     = 5
	benchConcurrency = 64
)

func (a *app) benchCommand() *cobra.Command {
	var f benchFlags
	var names []string
	help := &strings.Builder{}
	for _, w := range bench.Workloads() {
		names = append(names, w.Name)
		fmt.Fprintf(help, "  %s  %s\n", w.Name, w.Description)
	}
	cmd := &cobra.Command{
		Use:   "bench [WORKLOAD…]",
		Short: "Measure what orchestration costs on this machine",
		Long: "Bench runs workloads of tasks that do nothing, and measures. Each sample has a state folder of its own\n" +
			"and a worker in a process of its own, and every write is as durable as ever.\n\n" + help.String(),
		Example:   "  servo bench\n  servo bench W1 --samples 10 -o json\n  servo bench --dir /mnt/disk",
		Args:      takes("[WORKLOAD…]"),
		ValidArgs: names,
		RunE:      func(cmd *cobra.Command, args []string) error { return a.bench(cmd.Context(), f, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.dir, "dir", "", "where to make state folders: on the disk to be measured (default: that of temporary files)")
	flags.IntVar(&f.samples, "samples", benchSamples, "how often each workload is measured")
	flags.IntVar(&f.concurrency, "concurrency", benchConcurrency, "tasks at once")
	cmd.AddCommand(a.benchWorkerCommand())
	return cmd
}

func (a *app) bench(ctx context.Context, f benchFlags, names []string) error {
	if f.samples < 1 || f.concurrency < 1 {
		return usagef("--samples and --concurrency must be 1 or more")
	}
	chosen, err := chooseWorkloads(names)
	if err != nil {
		return err
	}
	cfg := bench.Config{
		Samples: f.samples, Concurrency: f.concurrency, Clock: a.Clock, Logger: a.logger,
		StartWorker: func(ctx context.Context, dir string) (string, func() (int64, error), error) {
			return a.startBenchWorker(ctx, dir, f.concurrency)
		},
	}
	if f.dir != "" {
		cfg.Dir = a.abs(f.dir)
	}
	results := make([]bench.Result, 0, len(chosen))
	for _, w := range chosen {
		a.note("%s: %s, %d samples", w.Name, w.Description, f.samples)
		result, err := bench.Run(ctx, cfg, w)
		if err != nil {
			return err
		}
		results = append(results, result)
	}
	return a.benchResults(results)
}

func chooseWorkloads(names []string) ([]bench.Workload, error) {
	all := bench.Workloads()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []bench.Workload
	for _, name := range names {
		found := len(chosen)
		for _, w := range all {
			if strings.EqualFold(w.Name, name) {
				chosen = append(chosen, w)
			}
		}
		if found == len(chosen) {
			return nil, usagef("there is no workload %q; `servo bench --help` lists them", name)
		}
	}
	return chosen, nil
}

func (a *app) benchResults(results []bench.Result) error {
	if a.format == render.JSON || a.format == render.YAML {
		return a.document(results, nil)
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
	mib := func(bytes int64) any {
		if bytes == 0 {
			return nil
		}
		return bytes >> 20 //nolint:mnd // mebibytes
	}
	return list(a, []column[bench.Result]{
		{name: "workload", value: func(r bench.Result) any { return r.Workload }},
		{name: "tasks", value: func(r bench.Result) any { return r.Tasks }},
		{name: "median", value: func(r bench.Result) any { return r.Median }, text: func(r bench.Result) any { return number(r.Median) }},
		{name: "unit", value: func(r bench.Result) any { return r.Unit }},
		{name: "min", value: func(r bench.Result) any { return r.Min }, text: func(r bench.Result) any { return number(r.Min) }},
		{name: "max", value: func(r bench.Result) any { return r.Max }, text: func(r bench.Result) any { return number(r.Max) }},
		{name: "hop_p50_ms", value: func(r bench.Result) any { return zeroNil(r.HopP50) }, text: func(r bench.Result) any {
			if r.HopP50 == 0 {
				return nil
			}
			return number(r.HopP50)
		}},
		{name: "hop_p99_ms", value: func(r bench.Result) any { return zeroNil(r.HopP99) }, text: func(r bench.Result) any {
			if r.HopP99 == 0 {
				return nil
			}
			return number(r.HopP99)
		}},
		{name: "objects_per_task", value: func(r bench.Result) any { return r.Objects }, text: func(r bench.Result) any { return number(r.Objects) }},
		{name: "bytes_per_task", value: func(r bench.Result) any { return int64(r.Bytes) }},
		{name: "peak_rss_mib", value: func(r bench.Result) any { return mib(r.PeakRSS) }},
		{name: "worker_peak_rss_mib", value: func(r bench.Result) any { return mib(r.WorkerPeakRSS) }},
	}, results)
}

// zeroNil is nil for a figure that there is none of.
func zeroNil(v float64) any {
	if v == 0 {
		return nil
	}
	return v
}

// benchWorkerCommand serves as the worker of a bench until its standard input ends.
func (a *app) benchWorkerCommand() *cobra.Command {
	var f workerFlags
	cmd := &cobra.Command{
		Use: "worker", Hidden: true, Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go func() {
				_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // it ends when who started this does
				cancel()
			}()
			f.executor = func(context.Context, worker.Execution) error { return nil }
			f.serving = func(url string) { fmt.Fprintln(a.Stdout, url) }
			return a.serveWorker(ctx, f)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.store, "store", "", "the folder of objects")
	flags.IntVar(&f.concurrency, "concurrency", benchConcurrency, "tasks at once")
	f.listen, f.name = "127.0.0.1:0", "bench"
	return cmd
}

// startBenchWorker starts a worker in a process of its own.
func (a *app) startBenchWorker(ctx context.Context, dir string, concurrency int) (url string, stop func() (int64, error), err error) {
	cmd := exec.CommandContext(ctx, a.Program, "bench", "worker", "--store", dir, "--concurrency", strconv.Itoa(concurrency)) //nolint:gosec // this program
	cmd.Stderr, cmd.Env = a.Stderr, a.Environ
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return "", nil, fmt.Errorf("start a worker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start a worker: %w", err)
	}
	stop = func() (int64, error) {
		peak := bench.PeakRSS(strconv.Itoa(cmd.Process.Pid))
		return peak, errors.Join(stdin.Close(), cmd.Wait())
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_, stopErr := stop()
		return "", nil, fmt.Errorf("start a worker: it has not said where it serves: %w", errors.Join(err, stopErr))
	}
	return strings.TrimSpace(line), stop, nil
}
