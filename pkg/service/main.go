package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/identity"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Process is the world that a service runs in: its main function's to give.
type Process struct {
	// Args are the arguments, without the program's name.
	Args   []string
	Getenv func(string) string
	Stderr io.Writer
	Clock  clock.Clock
	// Instance tells processes of a service apart, in what they write; "": the
	// process id.
	Instance string
	// Network joins the service to the others; nil: TCP.
	Network Network
	// Tokens tell other services who calls; nil: there are none.
	Tokens identity.Source
	// OpenTraces opens what sends spans to where --traces says; nil: nothing does.
	OpenTraces OpenTraces
	// Entropy is the randomness of ids; nil: the operating system's.
	Entropy io.Reader
	// Codec encodes states; nil: as Parquet.
	Codec *snapshot.Codec
	// Compactor is how compactors do what they do in their own way.
	Compactor compactor.Options
	// OpenStore opens the object store that --store names.
	OpenStore func(ctx context.Context, name string) (blob.Store, io.Closer, error)
	// OpenQueue makes the task queue, for services that have one. A queue with a
	// run function lives and dies with the process, and is empty at its start.
	OpenQueue func(context.Context, QueueOptions) (q queue.Queue, run func(context.Context) error, err error)
	// Pull has the messages of the subscription that --subscription names.
	Pull Pull

	traces *trace.Tracer
}

// LocalQueue is the name of the queue that is in the process.
const LocalQueue = "local"

// QueueOptions are what a queue works with.
type QueueOptions struct {
	// Name says which: LocalQueue, or projects/PROJECT/locations/LOCATION.
	Name string
	// Prefix is put before the names of queues; Account is as whom deliveries are
	// made, and Audience for whom: of queues that are not in the process.
	Prefix, Account, Audience string

	Clock  clock.Clock
	Logger *slog.Logger
	Client *http.Client
	// Concurrency is how many deliveries of a queue may be under way at once.
	Concurrency func(queue string) int
}

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// RunCompactor runs the compactor service until ctx is done, and gives the exit code.
func RunCompactor(ctx context.Context, p Process) int { return p.run(ctx, compactorKind, compact) }

// RunDispatcher runs the dispatcher service until ctx is done, and gives the exit code.
func RunDispatcher(ctx context.Context, p Process) int { return p.run(ctx, dispatcherKind, dispatch) }

// RunSweeper runs the sweeper service until ctx is done, and gives the exit code.
func RunSweeper(ctx context.Context, p Process) int { return p.run(ctx, sweeperKind, sweep) }

func (p Process) run(ctx context.Context, k kind, serve func(context.Context, Process, config, *slog.Logger) error) int {
	if p.Instance == "" {
		p.Instance = strconv.Itoa(os.Getpid())
	}
	if p.Codec == nil {
		p.Codec = snapshot.NewCodec()
	}
	if p.Network == nil {
		p.Network = tcp{}
	}
	cfg, err := parse(k, p.Args, p.Getenv, p.Stderr)
	switch {
	case errors.Is(err, errHelp):
		return exitDone
	case err != nil:
		fmt.Fprintf(p.Stderr, "%s: the configuration is not usable:\n  %s\n", k.Name, strings.ReplaceAll(err.Error(), "\n", "\n  "))
		return exitUsage
	}
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		fmt.Fprintf(p.Stderr, "%s: %v\n", k.Name, err)
		return exitUsage
	}
	logger := NewLogger(p.Stderr, level, cfg.inCloud(), cfg.Traces.Project).With(slog.String("service", k.Name))
	if cfg.Subscription != "" && p.Pull == nil {
		fmt.Fprintf(p.Stderr, "%s: --subscription %s: this program has no way to pull\n", k.Name, cfg.Subscription)
		return exitUsage
	}
	if p.traces, err = cfg.Traces.Open(ctx, p.OpenTraces, k.Name, p.Instance, logger); err != nil {
		logger.ErrorContext(ctx, "the service failed", slog.Any("error", err))
		return exitFailed
	}
	defer Flush(ctx, p.traces, logger)
	if err := serve(ctx, p, cfg, logger); err != nil {
		logger.ErrorContext(ctx, "the service failed", slog.Any("error", err))
		return exitFailed
	}
	return exitDone
}

// open opens the object store of a service, with its requests counted. Where it
// fails the server's listener is closed, too.
func (p Process) open(ctx context.Context, cfg config, s *server) (store blob.Store, closeStore func(), err error) {
	opened, closer, err := p.OpenStore(ctx, cfg.Store)
	if err != nil {
		return nil, nil, errors.Join(err, s.endpoint.Close())
	}
	return &countedStore{opened, s.metrics}, func() {
		if err := closer.Close(); err != nil {
			s.logger.WarnContext(ctx, "object store not closed", slog.Any("error", err))
		}
	}, nil
}

func (s *server) countHandOver(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	s.metrics.Add("servo_handovers_total", 1, "result", result)
}
