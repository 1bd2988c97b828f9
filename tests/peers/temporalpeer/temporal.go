// Package temporalpeer executes workloads on a Temporal server. A run is a workflow, and a task is
// an activity that a worker in this process fetches from the server.
package temporalpeer

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

const queue = "bench"

type request struct {
	Workload string
	Run      int
	Task     int
}

type engine struct {
	book   work.Book
	client client.Client
	worker worker.Worker
}

// Open implements work.Open. Settings: "activities" is the number of concurrent tasks, "pollers"
// the number of concurrent polls for workflow tasks and for activities.
func Open(ctx context.Context, job work.Job, book work.Book) (work.Engine, error) {
	activities, err := job.Setting("activities")
	if err != nil {
		return nil, err
	}
	pollers, err := job.Setting("pollers")
	if err != nil {
		return nil, err
	}
	logger := log.NewStructuredLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	e := &engine{book: book}
	if e.client, err = client.DialContext(ctx, client.Options{HostPort: job.Server, Logger: logger}); err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	e.worker = worker.New(e.client, queue, worker.Options{
		MaxConcurrentActivityExecutionSize:     activities,
		MaxConcurrentWorkflowTaskExecutionSize: activities,
		MaxConcurrentActivityTaskPollers:       pollers,
		MaxConcurrentWorkflowTaskPollers:       pollers,
	})
	e.worker.RegisterWorkflow(e.Run)
	e.worker.RegisterActivity(e.Task)
	return e, e.worker.Start()
}

func (e *engine) Close() error {
	e.worker.Stop()
	e.client.Close()
	return nil
}

// Do implements work.Engine.
func (e *engine) Do(ctx context.Context, entry *work.Entry) error {
	return entry.Each(func(run int) error {
		began, err := e.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: queue}, e.Run,
			request{Workload: entry.Workload, Run: run})
		if err != nil {
			return err
		}
		return began.Get(ctx, nil)
	})
}

// Run is the workflow. It executes one stage after another, and all tasks of a stage at once.
func (e *engine) Run(ctx workflow.Context, of request) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
	for _, level := range e.book[of.Workload].Levels {
		ends := make([]workflow.Future, len(level))
		for i, task := range level {
			of.Task = task
			ends[i] = workflow.ExecuteActivity(ctx, e.Task, of)
		}
		for _, end := range ends {
			if err := end.Get(ctx, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// Task is the activity that executes a task.
func (e *engine) Task(_ context.Context, of request) error {
	e.book[of.Workload].Execute(of.Run, of.Task)
	return nil
}
