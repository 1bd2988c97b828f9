// Package restatepeer executes workloads on Restate, in two ways. A run is a call of a handler in this process; the
// server pushes the call. The tasks of a run are either run blocks of that handler, or calls of another handler,
// which the server also pushes.
package restatepeer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"

	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/ingress"
	"github.com/restatedev/sdk-go/server"

	"github.com/servo-orchestration/servo/tests/peers/work"
)

type request struct {
	Workload string `json:"workload"`
	Run      int    `json:"run"`
	Task     int    `json:"task"`
}

type engine struct {
	book   work.Book
	calls  bool
	http   *http.Server
	served chan error
	client *ingress.Client
}

// Blocks executes tasks as run blocks. It implements work.Open.
func Blocks(ctx context.Context, job work.Job, book work.Book) (work.Engine, error) {
	return open(ctx, job, &engine{book: book})
}

// Calls executes tasks as calls. It implements work.Open.
func Calls(ctx context.Context, job work.Job, book work.Book) (work.Engine, error) {
	return open(ctx, job, &engine{book: book, calls: true})
}

func open(ctx context.Context, job work.Job, e *engine) (work.Engine, error) {
	handler, err := server.NewRestate().
		WithLogger(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}), true).
		Bind(restate.NewService("flow").Handler("run", restate.NewServiceHandler(e.run))).
		Bind(restate.NewService("work").Handler("task", restate.NewServiceHandler(e.task))).
		Handler()
	if err != nil {
		return nil, err
	}
	var listening net.ListenConfig
	l, err := listening.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e.http = &http.Server{Handler: handler, Protocols: new(http.Protocols)} //nolint:gosec // on loopback
	e.http.Protocols.SetHTTP1(true)
	e.http.Protocols.SetUnencryptedHTTP2(true)
	e.served = make(chan error, 1)
	go func() { e.served <- e.http.Serve(l) }()
	// Keep one connection for each concurrent run. The default is two.
	transport := &http.Transport{MaxIdleConns: job.AtOnce, MaxIdleConnsPerHost: job.AtOnce}
	e.client = ingress.NewClient(job.Server, ingress.WithHttpClient(&http.Client{Transport: transport}))
	return e, register(ctx, job.Admin, "http://"+l.Addr().String())
}

// register registers the handlers with the server.
func register(ctx context.Context, admin, uri string) error {
	body, err := json.Marshal(map[string]string{"uri": uri})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, admin+"/deployments", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("register the handlers: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("register the handlers: %s: %s", resp.Status, said)
	}
	return nil
}

func (e *engine) Close() error {
	err := e.http.Close() // the Restate server keeps its connections open
	<-e.served
	return err
}

// Do implements work.Engine.
func (e *engine) Do(ctx context.Context, entry *work.Entry) error {
	flow := ingress.Service[request, int](e.client, "flow", "run")
	return entry.Each(func(run int) error {
		_, err := flow.Request(ctx, request{Workload: entry.Workload, Run: run})
		return err
	})
}

// run is the handler of a run. It executes one stage after another, and all tasks of a stage at
// once.
func (e *engine) run(ctx restate.Context, of request) (int, error) {
	stage := e.blocks
	if e.calls {
		stage = called
	}
	for _, level := range e.book[of.Workload].Levels {
		if err := stage(ctx, of, level); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// blocks executes tasks as run blocks of the handler.
func (e *engine) blocks(ctx restate.Context, of request, tasks []int) error {
	ends := make([]restate.RunAsyncFuture[int], len(tasks))
	for i, task := range tasks {
		ends[i] = restate.RunAsync(ctx, func(restate.RunContext) (int, error) {
			e.book[of.Workload].Execute(of.Run, task)
			return task, nil
		})
	}
	for _, end := range ends {
		if _, err := end.Result(); err != nil {
			return err
		}
	}
	return nil
}

// called executes tasks as calls of the handler "task".
func called(ctx restate.Context, of request, tasks []int) error {
	ends := make([]restate.ResponseFuture[int], len(tasks))
	for i, task := range tasks {
		of.Task = task
		ends[i] = restate.Service[int](ctx, "work", "task").RequestFuture(of)
	}
	for _, end := range ends {
		if _, err := end.Response(); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) task(_ restate.Context, of request) (int, error) {
	e.book[of.Workload].Execute(of.Run, of.Task)
	return of.Task, nil
}
