package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/internal/bench"
	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// A process of a measurement prints its address on standard output. For each line on standard input it prints its usage
// of the store so far. It ends when standard input ends.

// process is a running process of a measurement.
type process struct {
	logger *slog.Logger
	meter  *cloudblob.Store
	end    context.CancelFunc
}

// wrap returns a store that counts the operations on the given store.
func (p *process) wrap(inner blob.Store) blob.Store {
	p.meter = cloudblob.New(inner, cloudblob.Config{})
	return p.meter
}

// serving prints the address of the process, and then answers questions about its usage.
func (p *process) serving(url string) {
	fmt.Fprintln(os.Stdout, url)
	go p.answer() // ends when the parent process ends, which closes stdin
}

func (p *process) answer() {
	defer p.end()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		usage, err := json.Marshal(p.meter.Usage())
		if err != nil {
			panic(fmt.Sprintf("servo-bench: encode a usage: %v", err)) // cannot happen: a usage has only numbers
		}
		fmt.Fprintf(os.Stdout, "%s\n", usage)
	}
}

// processCommand returns the hidden command that runs a process of a measurement.
func (s *settings) processCommand(use string, run func(context.Context, *process) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := s.log()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			return run(ctx, &process{logger: logger, end: cancel})
		},
	}
}

// workerCommand runs a worker whose tasks do nothing.
func (s *settings) workerCommand() *cobra.Command {
	var dir string
	var concurrency int
	cmd := s.processCommand("worker", func(ctx context.Context, p *process) error { return p.work(ctx, dir, concurrency) })
	cmd.Flags().StringVar(&dir, "store", "", "folder of the objects")
	cmd.Flags().IntVar(&concurrency, "concurrency", defaultConcurrency, "number of concurrent tasks")
	return cmd
}

func (p *process) work(ctx context.Context, dir string, concurrency int) (err error) {
	keys, err := embedded.LoadKeys(dir)
	if err != nil {
		return err
	}
	system := clock.System{}
	store, err := fileblob.Open(dir, fileblob.Options{Now: system.Now})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	w, err := worker.Open(worker.Config{
		Store: p.wrap(store), Clock: system, Nonce: ids.NewSource(system.Now, nil).New, Keyring: keys, WorkerID: "bench",
		ScratchDir: filepath.Join(dir, "scratch"), Logger: p.logger, MaxConcurrent: concurrency,
		Executor: func(context.Context, worker.Execution) error { return nil },
	})
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(fmt.Errorf("serve a worker: %w", err), w.Close(ctx))
	}
	p.serving("http://" + listener.Addr().String())
	return w.Serve(ctx, listener)
}

// serverCommand owns a state folder and serves it, like servo dev without a project.
func (s *settings) serverCommand() *cobra.Command {
	var dir string
	cmd := s.processCommand("server", func(ctx context.Context, p *process) error { return p.serve(ctx, dir) })
	cmd.Flags().StringVar(&dir, "store", "", "state folder")
	return cmd
}

// errNoProject says why no run can start.
var errNoProject = errors.New("servo-bench started this server without a project")

func (p *process) serve(ctx context.Context, dir string) error {
	stack, err := embedded.Start(ctx, embedded.Options{
		Dir: dir, Domain: bench.Domain(), Clock: clock.System{}, Logger: p.logger, Actor: "bench", Wrap: p.wrap,
		Routes: func(mux *http.ServeMux, e *engine.Engine, _ *worker.Worker) {
			api.Register(mux, api.Config{Engine: e, Project: func() (*api.Project, error) { return nil, errNoProject }, User: func(http.Header) string { return "bench" }})
		},
	})
	if err != nil {
		return err
	}
	p.serving(stack.URL)
	<-ctx.Done()
	return stack.Close()
}

// startProcess starts a process of a measurement.
func startProcess(ctx context.Context, program string, args ...string) (bench.Process, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // this program
	cmd.Stderr = os.Stderr
	stdin, inErr := cmd.StdinPipe()
	stdout, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return bench.Process{}, fmt.Errorf("start a %s: %w", args[0], err)
	}
	if err := cmd.Start(); err != nil {
		return bench.Process{}, fmt.Errorf("start a %s: %w", args[0], err)
	}
	lines := bufio.NewReader(stdout)
	stop := func() error { return errors.Join(stdin.Close(), cmd.Wait()) }
	url, err := lines.ReadString('\n')
	if err != nil {
		return bench.Process{}, fmt.Errorf("start a %s: it reported no address: %w", args[0], errors.Join(err, stop()))
	}
	return bench.Process{
		URL: strings.TrimSpace(url), PID: strconv.Itoa(cmd.Process.Pid), Stop: stop,
		Usage: func() (usage cloudblob.Usage, err error) {
			if _, err := io.WriteString(stdin, "usage\n"); err != nil {
				return nil, fmt.Errorf("query the usage of the %s: %w", args[0], err)
			}
			line, err := lines.ReadBytes('\n')
			if err == nil {
				err = json.Unmarshal(line, &usage)
			}
			if err != nil {
				return nil, fmt.Errorf("read the usage of the %s: %w", args[0], err)
			}
			return usage, nil
		},
	}, nil
}
