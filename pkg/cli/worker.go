package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// workerFlags are the flags of servo worker.
type workerFlags struct {
	listen, store, name, memory string
	keys, scratch, project      string
	concurrency, threads        int
	traces                      service.Traces
}

func (a *app) workerCommand() *cobra.Command {
	var f workerFlags
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Run a worker as its own process, for queues that push tasks to it",
		Long: "Serve POST /execute, /healthz and /readyz. Execute only tasks whose envelopes are signed\n" +
			"with one of the keys in --keys. A worker has no state: you can stop it at any time.",
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkTraces(&f.traces); err != nil {
				return err
			}
			return a.serveWorker(cmd.Context(), f)
		},
	}
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8081", "address to listen on")
	flags.StringVar(&f.store, "store", "", "object store: a folder, or gs://BUCKET with servo-cloud (default: the project's state folder)")
	flags.StringVar(&f.keys, "keys", "", "file of signing keys (default: "+service.KeysFile+" in the store's folder, created if absent)")
	flags.StringVar(&f.project, "project", "", "folder of the project on this machine (default: its path when the run started)")
	flags.StringVar(&f.scratch, "scratch", "", "working folder of tasks (default: a folder in the store's folder, or a temporary one)")
	flags.StringVar(&f.name, "name", fmt.Sprintf("%s-%d", host, os.Getpid()), "name of the worker in reports")
	flags.IntVar(&f.concurrency, "concurrency", 0, "number of concurrent tasks (default: the number of cores)")
	flags.StringVar(&f.memory, "memory-limit", "", "DuckDB's memory for each task, for example 2GB")
	flags.IntVar(&f.threads, "threads", 0, "DuckDB's threads for each task")
	flags.StringVar(&f.traces.URL, "traces", "", service.TracesUsage)
	flags.Float64Var(&f.traces.Ratio, "trace-ratio", 1, service.TraceRatioUsage)
	flags.StringVar(&f.traces.Project, "trace-project", "", service.TraceProjectUsage)
	a.hideTraces(flags)
	return cmd
}

func (a *app) serveWorker(ctx context.Context, f workerFlags) (err error) {
	if f.concurrency < 0 || f.threads < 0 {
		return usagef("--concurrency and --threads must not be negative")
	}
	if _, err := project.ParseMemory(f.memory); f.memory != "" && err != nil {
		return usagef("--memory-limit %q: %w", f.memory, err)
	}
	if err := a.checkSecrets(); err != nil {
		return err
	}
	name, keys, err := a.workerStore(&f)
	if err != nil {
		return err
	}
	if f.project != "" {
		f.project = a.abs(f.project)
	}
	objects, opened, err := a.openStore(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	logger := a.workerLogger(name, f.traces.Project)
	traces, err := f.traces.Open(ctx, a.OpenTraces, "servo-worker", f.name, logger)
	if err != nil {
		return err
	}
	defer service.Flush(ctx, traces, logger)
	w, err := worker.Open(worker.Config{
		Store: objects, Clock: a.Clock, Nonce: ids.NewSource(a.Clock.Now, nil).New, Keyring: keys, WorkerID: f.name,
		ScratchDir: f.scratch, Logger: logger, Traces: traces, Environ: a.Environ, Secrets: a.secretSources().Resolve, Redactor: &a.redactor,
		ServoBin:      a.Program,
		MaxConcurrent: f.concurrency, DuckDB: worker.DuckDB{MemoryLimit: f.memory, Threads: f.threads},
		Project: f.project,
	})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", f.listen)
	if err != nil {
		return errors.Join(fmt.Errorf("listen on %s: %w; choose another address with --listen", f.listen, err), w.Close(ctx))
	}
	a.note("worker %s serves on http://%s", f.name, listener.Addr())
	return w.Serve(ctx, listener)
}

// workerLogger returns the log of a worker. For a bucket it is machine-readable, like the logs
// of the services.
func (a *app) workerLogger(store, project string) *slog.Logger {
	if !inCloud(store) {
		return slog.New(trace.Log(a.logger.Handler(), project))
	}
	level := new(slog.LevelVar)
	_ = level.UnmarshalText([]byte(a.logLevel)) // setup has validated the level
	return service.NewLogger(a.redactor.Writer(a.Stderr), level, true, project).With(slog.String("service", "servo-worker"))
}

// workerStore returns the name of a worker's store, and the signing keys. It also sets the
// default of the scratch folder.
func (a *app) workerStore(f *workerFlags) (name string, keys contract.Keyring, err error) {
	switch name = f.store; {
	case name == "":
		p, err := a.settings()
		if err != nil {
			return "", keys, err
		}
		name = a.options(p).Dir
	case !inCloud(name):
		name = a.abs(name)
	}
	if !inCloud(name) {
		f.scratch = cmp.Or(f.scratch, filepath.Join(name, "scratch"))
	}
	f.scratch = cmp.Or(f.scratch, filepath.Join(os.TempDir(), "servo-"+f.name))
	switch {
	case f.keys != "":
		keys, err = service.ReadKeys(a.abs(f.keys))
	case inCloud(name):
		err = usagef("missing flag --keys: a bucket holds no signing keys; name a file, for example one mounted from a secret")
	default:
		keys, err = embedded.LoadKeys(name)
	}
	return name, keys, err
}
