// Command servo-dispatcher runs the dispatcher as a service: see `servo-dispatcher --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/servo-orchestration/servo/cmd/internal/memory"
	"github.com/servo-orchestration/servo/pkg/binding"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/metrics/prom"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/trace/otlp"
)

func main() { os.Exit(run()) }

func run() int {
	memory.Limit()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return service.RunDispatcher(ctx, service.Process{
		Args: os.Args[1:], Getenv: os.Getenv, Stderr: os.Stderr, Clock: clock.System{},
		OpenStore: binding.OpenStore, Tokens: binding.Tokens(), Pull: binding.Pull, OpenTraces: otlp.Open, Metrics: prom.New,
		OpenQueue: binding.Queues(os.Getenv), Secrets: binding.Secrets(os.LookupEnv), Publish: binding.Publisher(),
	})
}
