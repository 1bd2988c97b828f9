// Command servo-bench measures what orchestration costs on this machine or on a simulated cloud:
// see `servo-bench --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/servo-orchestration/servo/cmd/internal/memory"
	"github.com/servo-orchestration/servo/internal/bench"
	"github.com/servo-orchestration/servo/internal/cloudqueue"
	"github.com/servo-orchestration/servo/internal/cloudsim"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// Exit codes, the same as those of servo.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

const (
	defaultSamples     = 5
	defaultConcurrency = 64
	defaultIdleRuns    = 10_000
	defaultIdleFor     = 30 * time.Second
	defaultHistory     = 100_000
	// maxRows limits the rows generated before a measurement.
	maxRows = 10_000_000
)

func main() {
	memory.TuneGarbage()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	stop()
	os.Exit(report(err, interrupted))
}

// report prints the error, if any, and returns the exit code.
func report(err error, interrupted bool) int {
	usage, wrong := errors.AsType[*usageError](err)
	switch {
	case err == nil:
		return 0
	case interrupted:
		fmt.Fprintln(os.Stderr, "servo-bench: interrupted")
		return exitInterrupted
	case errors.Is(err, syscall.EPIPE):
		return exitFailed // the reader has closed the pipe
	case wrong:
		fmt.Fprintln(os.Stderr, "servo-bench:", usage)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "servo-bench:", err)
	return exitFailed
}

// usageError is the error of a wrong command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// settings are the flags.
type settings struct {
	store       string
	dir         string
	benchstat   string
	samples     int
	concurrency int
	size        int
	outputs     bool
	deployed    bool
	seed        uint64
	idleRuns    int
	idleFor     time.Duration
	history     []int
	output      string
	logLevel    string
}

// newCommand returns the program's command. Its hidden subcommands run the other processes of a measurement.
func newCommand() *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "servo-bench [WORKLOAD…]",
		Short: "Measure the cost of orchestration on this machine or on a simulated cloud",
		Long: "Run workloads of empty tasks and measure them. Each sample has its own state folder and its own worker\n" +
			"process, and every write is durable. With --store gcs-sim, the services run on a simulated store, queue\n" +
			"and network with the latencies and prices of a cloud.\n\n" + workloadsHelp(),
		Example:       "  servo-bench\n  servo-bench W1 --samples 10 -o json\n  servo-bench W2 --store gcs-sim\n  servo-bench W5 --history 0,100000,1000000",
		Args:          cobra.ArbitraryArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.store == bench.CloudSim && !cmd.Flags().Changed("concurrency") {
				s.concurrency = cloudqueue.MaxConcurrent
			}
			return s.run(cmd.Context(), args)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usagef("%w; see `servo-bench --help`", err) })
	s.define(cmd)
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetHelpCommand(&cobra.Command{Use: "no-help", Hidden: true}) // no help command: --help is enough
	cmd.AddCommand(s.workerCommand(), s.serverCommand(), s.apiCommand())
	return cmd
}

func workloadsHelp() string {
	help := &strings.Builder{}
	for _, w := range bench.Workloads() {
		fmt.Fprintf(help, "  %s  %s", w.Name, w.Description)
		if w.OnRequest {
			help.WriteString(" (takes minutes: runs only if named)")
		}
		help.WriteString("\n")
	}
	return help.String()
}

// define adds the flags to a command.
func (s *settings) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.store, "store", bench.FileStore, "file: a state folder on this machine; gcs-sim: a simulated cloud")
	flags.StringVar(&s.dir, "dir", "", "folder for the samples, on the disk to measure (default: the folder of temporary files)")
	flags.IntVar(&s.samples, "samples", defaultSamples, "number of samples of each workload")
	flags.IntVar(&s.concurrency, "concurrency", defaultConcurrency,
		fmt.Sprintf("number of concurrent tasks (default with --store gcs-sim: %d)", cloudqueue.MaxConcurrent))
	flags.IntVar(&s.size, "size", 0, "size of the workload: length of the chain (W1), width (W2, W5, W7), number of runs (W3), number of schedules (W8, W9)")
	flags.BoolVar(&s.deployed, "deployed", false, "deploy a project first, with the assets that run, 1,000 other assets and 100 schedules (W1 to W3)")
	flags.BoolVar(&s.outputs, "outputs", false, "commit an output for each task, which adds one durable write")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the latencies of gcs-sim")
	flags.IntVar(&s.idleRuns, "idle-runs", defaultIdleRuns, "number of finished runs in the store of W4")
	flags.DurationVar(&s.idleFor, "idle-for", defaultIdleFor, "how long W4 observes the idle process")
	flags.IntSliceVar(&s.history, "history", []int{0, defaultHistory}, "numbers of finished tasks in the stores of W5; a million takes three minutes and 2 GB in --dir")
	flags.StringVar(&s.benchstat, "benchstat", "", "also write the samples to this file, in the format of benchstat")
	flags.StringVarP(&s.output, "output", "o", "table", "output format: table, json, yaml or csv")
	cmd.PersistentFlags().StringVar(&s.logLevel, "log-level", "warn", "log level on standard error: debug, info, warn or error")
}

// check validates the flags.
func (s *settings) check() error {
	switch {
	case s.samples < 1 || s.concurrency < 1:
		return usagef("--samples and --concurrency must be 1 or more")
	case s.size < 0 || s.idleRuns < 0 || s.idleFor <= 0:
		return usagef("--size and --idle-runs must not be negative, and --idle-for must be positive")
	case s.store != bench.FileStore && s.store != bench.CloudSim:
		return usagef("invalid --store %q: choose %s or %s", s.store, bench.FileStore, bench.CloudSim)
	case s.idleRuns > maxRows:
		return usagef("--idle-runs is %d; the maximum is %d", s.idleRuns, maxRows)
	case len(s.history) == 0:
		return usagef("--history needs at least one number of tasks")
	}
	for _, n := range s.history {
		if n < 0 {
			return usagef("--history must not be negative")
		}
		if n > maxRows {
			return usagef("--history is %d; the maximum is %d", n, maxRows)
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

// log returns the logger that the flags describe.
func (s *settings) log() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return nil, usagef("unknown log level %q: choose one of debug, info, warn, error", s.logLevel)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})), nil
}

// run measures the named workloads, and writes the results.
func (s *settings) run(ctx context.Context, names []string) (err error) {
	format, err := render.ParseFormat(s.output)
	if err != nil {
		return &usageError{err}
	}
	if err := s.check(); err != nil {
		return err
	}
	chosen, err := chooseWorkloads(s.store, names)
	if err != nil {
		return err
	}
	if err := checkSize(s.size, chosen); err != nil {
		return err
	}
	cfg, err := s.config()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cfg.Dir)) }()
	bench.Spread(cfg.Dir)
	if cfg.Cloud != nil {
		note("gcs-sim: %s", cfg.Cloud)
	}
	save, err := samplesFile(s.benchstat)
	if err != nil {
		return err
	}
	var results []bench.Result
	for _, w := range chosen {
		note("%s: %s, %s", w.Name, w.Description, counted(s.samples))
		measured, err := bench.Run(ctx, cfg, w)
		if err != nil {
			return errors.Join(err, save(results))
		}
		results = append(results, measured...)
	}
	width, _, _ := term.GetSize(int(os.Stdout.Fd())) // 0: not a terminal
	return errors.Join(save(results), write(os.Stdout, format, width, results))
}

// config returns the settings of the benchmark. It creates the folder of the samples, cfg.Dir, which
// the caller must remove.
func (s *settings) config() (cfg bench.Config, err error) {
	program, err := os.Executable()
	if err != nil {
		return cfg, fmt.Errorf("find this program: %w", err)
	}
	cfg = bench.Config{
		Samples: s.samples, Concurrency: s.concurrency, Size: s.size, Outputs: s.outputs, Deployed: s.deployed, Seed: s.seed,
		IdleRuns: s.idleRuns, IdleFor: s.idleFor, History: s.history, Clock: clock.System{}, Stderr: os.Stderr,
		StartWorker: func(ctx context.Context, dir string) (bench.Process, error) {
			return startProcess(ctx, program, "worker", "--store", dir, "--concurrency", strconv.Itoa(s.concurrency), "--log-level", s.logLevel)
		},
		StartServer: func(ctx context.Context, dir string) (bench.Process, error) {
			server, err := startProcess(ctx, program, "server", "--store", dir, "--log-level", s.logLevel)
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
	if cfg.Logger, err = s.log(); err != nil {
		return cfg, err
	}
	if s.store == bench.CloudSim {
		model := cloudsim.GCP()
		cfg.Cloud = &model
	}
	parent := s.dir
	if parent != "" {
		if parent, err = filepath.Abs(parent); err != nil {
			return cfg, err
		}
	}
	if cfg.Dir, err = os.MkdirTemp(parent, "servo-bench-"); err != nil {
		return cfg, fmt.Errorf("create a folder for the samples: %w", err)
	}
	return cfg, nil
}

// note prints a message to standard error, because it is not a result.
func note(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func counted(samples int) string {
	if samples == 1 {
		return "1 sample"
	}
	return fmt.Sprintf("%d samples", samples)
}

// samplesFile opens the file for the samples before the measurement. An empty path means no
// file.
func samplesFile(path string) (save func([]bench.Result) error, err error) {
	if path == "" {
		return func([]bench.Result) error { return nil }, nil
	}
	var file io.WriteCloser
	if file, err = os.Create(path); err != nil { //nolint:gosec // the user chose this path
		return nil, fmt.Errorf("write samples: %w", err)
	}
	return func(results []bench.Result) error {
		if err := errors.Join(bench.WriteBenchmarks(file, results), file.Close()); err != nil {
			return fmt.Errorf("write samples to %s: %w", path, err)
		}
		return nil
	}, nil
}

// chooseWorkloads returns the named workloads. Without names, it returns all workloads that can be measured on the
// store, except those that run only on request.
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
			return nil, usagef("unknown workload %q; list the workloads with `servo-bench --help`", name)
		case store == bench.CloudSim && !chosen[found].OnCloud:
			return nil, usagef("%s is not measured on %s", chosen[found].Name, store)
		}
	}
	return chosen, nil
}
