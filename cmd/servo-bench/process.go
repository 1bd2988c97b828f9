package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/servo-orchestration/servo/internal/bench"
	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// A process of a benchmark prints its address on standard output. For each line on standard
// input it prints its use of the store. It ends when standard input ends.

// benchProcess returns the command of a benchmark process. run gets a function to report the
// address and one to wrap the store.
func (a *app) benchProcess(use string, run func(ctx context.Context, serving func(url string), wrap func(blob.Store) blob.Store) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Hidden: true, Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			var meter *cloudblob.Store
			serving := func(url string) {
				fmt.Fprintln(a.Stdout, url)
				go a.answerUsage(cmd.InOrStdin(), meter, cancel) // ends with the parent process
			}
			return run(ctx, serving, func(inner blob.Store) blob.Store {
				meter = cloudblob.New(inner, cloudblob.Config{})
				return meter
			})
		},
	}
}

func (a *app) answerUsage(in io.Reader, meter *cloudblob.Store, end func()) {
	defer end()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		usage, err := json.Marshal(meter.Usage())
		if err != nil {
			panic(fmt.Sprintf("cli: encode a usage: %v", err)) // it has only numbers
		}
		fmt.Fprintf(a.Stdout, "%s\n", usage)
	}
}

// benchWorkerCommand runs the worker of a benchmark.
func (a *app) benchWorkerCommand() *cobra.Command {
	var f workerFlags
	cmd := a.benchProcess("worker", func(ctx context.Context, serving func(string), wrap func(blob.Store) blob.Store) error {
		f.executor = func(context.Context, worker.Execution) error { return nil }
		f.serving, f.wrap = serving, wrap
		return a.serveWorker(ctx, f)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.store, "store", "", "folder of the objects")
	flags.IntVar(&f.concurrency, "concurrency", benchConcurrency, "number of concurrent tasks")
	f.listen, f.name = "127.0.0.1:0", "bench"
	return cmd
}

// benchServerCommand owns a state folder and serves it, like servo dev without a project.
func (a *app) benchServerCommand() *cobra.Command {
	var dir string
	cmd := a.benchProcess("server", func(ctx context.Context, serving func(string), wrap func(blob.Store) blob.Store) error {
		stack, err := embedded.Start(ctx, embedded.Options{
			Dir: a.abs(dir), Domain: bench.Domain(), Clock: a.Clock, Logger: a.logger, Environ: a.Environ, Program: a.Program,
			Actor: "bench", Wrap: wrap,
			Routes: func(mux *http.ServeMux, e *engine.Engine) {
				api.Register(mux, api.Config{Engine: e, Project: func() (*api.Project, error) { return nil, errNoProject }, User: a.User})
			},
		})
		if err != nil {
			return err
		}
		serving(stack.URL)
		<-ctx.Done()
		return stack.Close()
	})
	cmd.Flags().StringVar(&dir, "store", "", "state folder")
	return cmd
}

// startBenchProcess starts a benchmark process.
func (a *app) startBenchProcess(ctx context.Context, args ...string) (bench.Process, error) {
	cmd := exec.CommandContext(ctx, a.Program, append([]string{"bench"}, args...)...) //nolint:gosec // this program
	cmd.Stderr, cmd.Env = a.Stderr, a.Environ
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
