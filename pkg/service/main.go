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
	"github.com/servo-orchestration/servo/pkg/metrics"
	"github.com/servo-orchestration/servo/pkg/notify"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Process is the environment of a service, provided by its main function.
type Process struct {
	// Args are the arguments, without the program's name.
	Args   []string
	Getenv func(string) string
	Stderr io.Writer
	Clock  clock.Clock
	// Instance distinguishes this process from other processes of its service: manifests contain it in the name of their
	// writer, and spans contain it as an attribute. "": the process id.
	Instance string
	// Network connects the services. nil: TCP.
	Network Network
	// Tokens are the identity tokens for calls to other services. nil: none.
	Tokens identity.Source
	// OpenTraces connects to the receiver of spans that --traces names. nil: not supported.
	OpenTraces OpenTraces
	// Metrics creates the recorder of the process's metrics. nil: nothing is measured.
	Metrics metrics.New
	// Entropy is the randomness of ids. nil: the operating system's.
	Entropy io.Reader
	// Codec encodes states. nil: as Parquet.
	Codec *snapshot.Codec
	// Compactor configures compactors.
	Compactor compactor.Options
	// OpenStore opens the object store that --store names.
	OpenStore func(ctx context.Context, name string) (blob.Store, io.Closer, error)
	// OpenQueue opens the task queue, for services that have one. A queue with a run function runs in this process,
	// and is empty at its start.
	OpenQueue func(context.Context, QueueOptions) (q queue.Queue, run func(context.Context) error, err error)
	// Pull pulls the messages of the subscription that --subscription names.
	Pull Pull
	// Secrets returns the secrets of channels that --channel-secrets allows, and Publish publishes alerts to Pub/Sub.
	// Both may be nil. Send sends alerts. If Send is nil, a [notify.Sender] sends them, and uses Secrets and Publish;
	// otherwise, neither is used.
	Secrets func(ctx context.Context, reference string) (string, error)
	Publish func(ctx context.Context, topic string, data []byte, attributes map[string]string) error
	Send    func(ctx context.Context, c *release.Channel, m *notify.Message) error

	traces *trace.Tracer
}

// LocalQueue is the name of the queue in this process.
const LocalQueue = "local"

// QueueOptions configures a queue.
type QueueOptions struct {
	// Name is LocalQueue or projects/PROJECT/locations/LOCATION.
	Name string
	// Prefix is the prefix of queue names. Deliveries carry tokens of Account for Audience. LocalQueue ignores these
	// three fields.
	Prefix, Account, Audience string

	Clock  clock.Clock
	Logger *slog.Logger
	Client *http.Client
	// Concurrency returns how many tasks of a queue are delivered at once.
	Concurrency func(queue string) int
}

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// RunCompactor runs the compactor service until ctx is done, and returns the exit code.
func RunCompactor(ctx context.Context, p Process) int { return p.run(ctx, compactorKind, compact) }

// RunDispatcher runs the dispatcher service until ctx is done, and returns the exit code.
func RunDispatcher(ctx context.Context, p Process) int { return p.run(ctx, dispatcherKind, dispatch) }

// RunSweeper runs the sweeper service until ctx is done, and returns the exit code.
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
		fmt.Fprintf(p.Stderr, "%s: invalid configuration:\n  %s\n", k.Name, strings.ReplaceAll(err.Error(), "\n", "\n  "))
		return exitUsage
	}
	level := new(slog.LevelVar)
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		fmt.Fprintf(p.Stderr, "%s: %v\n", k.Name, err)
		return exitUsage
	}
	logger := NewLogger(p.Stderr, level, cfg.inCloud(), cfg.Traces.Project).With(slog.String("service", k.Name))
	if cfg.Subscription != "" && p.Pull == nil {
		fmt.Fprintf(p.Stderr, "%s: --subscription %s: this program cannot pull messages: remove the setting\n", k.Name, cfg.Subscription)
		return exitUsage
	}
	if cfg.MetricsListen != "" && p.Metrics == nil {
		fmt.Fprintf(p.Stderr, "%s: --metrics-listen %s: this program cannot serve metrics: remove the setting\n", k.Name, cfg.MetricsListen)
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

// open opens the object store of a service and counts its requests. If that fails, it closes the
// server's listener.
func (p Process) open(ctx context.Context, cfg config, s *server) (store blob.Store, closeStore func(), err error) {
	opened, closer, err := p.OpenStore(ctx, cfg.Store)
	if err != nil {
		return nil, nil, errors.Join(err, s.endpoint.Close())
	}
	return &countedStore{opened, s.metrics, s.clock}, func() {
		if err := closer.Close(); err != nil {
			s.logger.WarnContext(ctx, "object store not closed", slog.Any("error", err))
		}
	}, nil
}

func (s *server) countHandOver(err error) {
	s.metrics.Add(handovers, 1, resultOf(err))
}

func resultOf(err error) string {
	if err != nil {
		return resultError
	}
	return resultOK
}

// recorder returns the recorder of a service's metrics.
func (p Process) recorder(service string) metrics.Recorder {
	if p.Metrics == nil {
		return metrics.None{}
	}
	return p.Metrics(catalogOf(service))
}
