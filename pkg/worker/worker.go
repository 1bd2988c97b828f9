// Package worker executes tasks. It contains an HTTP server, executors for queries and commands, and the code that
// commits outputs. A task queue pushes envelopes to the server. This package is not a stable API.
//
// A worker keeps no durable state, except for a record in its scratch folder of the attempts that died with a worker.
// Execution is at least once: workers may execute an attempt several times, in one process or in several. The effect is
// exactly once. Each execution writes to its own directory. The commit marker, which is created only if it does not
// exist, names the directory that counts. The marker decides which bytes are the output. The receiver of the report
// decides whether that output becomes visible.
//
// The response to a delivery decides whether the queue redelivers it. docs/worker-contract.md
// states these rules for workers in any language.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/merged"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/source"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Limits and durations of a worker.
const (
	// defaultHold is how long a delivery waits for its task to end. It is well below 30 minutes, after which a task
	// queue redelivers.
	defaultHold = 25 * time.Minute
	// killGrace is the time from SIGTERM to SIGKILL. Cloud Run gives a worker 10 seconds to stop. In this time, the
	// worker must wait for killGrace and for drainTime, and must send a report.
	killGrace = 5 * time.Second
	// maxJobs is how many attempts may run or wait for a slot at once.
	maxJobs = 10_000

	planBudget   = 256 << 20 // approximate size of the cached plans, in bytes
	markerBudget = 32 << 20  // approximate size of the cached markers, in bytes
	mergedBudget = 16 << 20  // approximate size of the cached descriptions of merged files, in bytes
)

// Config holds the dependencies and settings of a worker.
type Config struct {
	// Store holds plans, inputs, outputs and logs.
	Store blob.Store
	Clock clock.Clock
	// Nonce returns a string of [A-Za-z0-9_-] that no other execution has, such as a ULID.
	Nonce func() string
	// Keyring verifies envelopes.
	Keyring contract.Keyring
	// HTTPClient makes the callbacks. Nil: the worker creates one.
	HTTPClient *http.Client
	// WorkerID identifies the worker in reports.
	WorkerID string
	// ScratchDir is a folder for temporary files. Workers may share it.
	ScratchDir string
	Logger     *slog.Logger
	// Project is the project's folder on this machine. If it is empty, the worker uses the archive of
	// the project's files that the plan names. If the plan names no archive, the worker uses the
	// folder that the plan names.
	Project string
	// Home is the folder of the project that contains the state. If a plan names another folder, its tasks fail: the
	// state was copied or moved, and the tasks would read the files of another project. "": any folder may be named.
	Home string
	// Environ is the environment of commands, as "NAME=value". The worker searches the PATH in it for programs. Commands
	// do not inherit the variables that [plan.WorkersOwn] reports.
	Environ []string
	// Secrets resolves a reference to a secret. The value stays in memory. An error that wraps [secret.ErrRefused] fails
	// the task permanently. The worker retries after other errors. Nil: the worker has no secrets.
	Secrets func(ctx context.Context, reference string) (string, error)
	// Redactor masks secrets in the process's log. The worker adds the values of the environment variables that projects
	// use as secrets. The logs of all tasks mask these values, too. Redactor may be nil.
	Redactor *secret.Redactor
	// ServoBin is the path of the servo program, passed to commands as SERVO_BIN.
	ServoBin string
	// State and Environment are passed to commands as SERVO_STATE and SERVO_ENV, so that a command that calls servo reads
	// the state of its own run. Empty values are not passed.
	State, Environment string
	// MaxConcurrent is the number of tasks that run at once; 0: the number of CPUs.
	MaxConcurrent int
	// HeartbeatEvery is the time between heartbeats; 0: 10 seconds. For tasks with a short heartbeat timeout, the worker
	// uses a shorter time: see heartbeatInterval.
	HeartbeatEvery time.Duration
	// HoldFor is how long a delivery waits for its task to end; 0: 25 minutes. A delivery of a task
	// with a longer timeout is answered as soon as the task's start is accepted.
	HoldFor time.Duration
	// DuckDB limits the resources of each query.
	DuckDB DuckDB
	// Executor executes all tasks. Nil: DuckDB executes queries, and processes execute commands.
	Executor Executor
	// Checker executes all checks. Nil: DuckDB and processes execute checks.
	Checker Checker
	// Merging says how the worker merges small outputs. The zero value has the usual settings.
	Merging MergeSettings
	// Traces records spans of attempts. Nil: no spans.
	Traces *trace.Tracer
}

// DuckDB limits the resources of one query.
type DuckDB struct {
	// MemoryLimit is a memory limit in DuckDB's syntax, such as "2GB". Empty: half the memory of the machine or
	// container, divided by MaxConcurrent.
	MemoryLimit string
	// Threads is the number of threads of one query. 0: the number of cores, divided by the number of tasks that run
	// when the query starts, but at least 1.
	Threads int
}

// Worker is a worker server. It is safe for concurrent use.
type Worker struct {
	cfg     Config
	scratch *scratch
	// executing records on disk which attempts are running, so that the next worker knows them if this process dies.
	executing *executing
	starter   *starter
	// commands lists the running commands.
	commands commands
	slots    chan struct{}
	machine  machine
	memory   memory
	caches   caches
	life     lifetime

	mu      sync.Mutex
	closing bool
	jobs    map[string]*job // jobs by attempt id
	// secretVars are the environment variables that the loaded plans use as secrets.
	secretVars map[string]bool
	// mergeAfter contains the zero time for each asset whose outputs this process is merging, and the time of the next
	// try for each asset whose last merge failed.
	mergeAfter map[domainAsset]time.Time
}

// caches hold what a worker keeps for later tasks. The worker can read or compute these values again.
type caches struct {
	plans   *cache[*loadedPlan]
	loading singleflight.Group // of plans
	markers *cache[*contract.CommitMarker]
	merged  *cache[*merged.File] // the descriptions of merged files, by key
	sources *source.Cache        // the unpacked archives of projects
	// codeTexts caches the texts of files that are part of the code, for project folders that are not unpacked
	// archives.
	codeTexts source.Texts
	files     *filecheck.Cache // local input files whose checksums were verified
	// builtin are the functions of DuckDB without extensions. Nil: the worker has not listed them yet.
	builtin atomic.Pointer[map[string]bool]
}

// lifetime holds what is needed to end the work of a worker.
type lifetime struct {
	// ctx ends when Close stops waiting for tasks.
	ctx     context.Context //nolint:containedctx // the context of the server, which outlives each request
	kill    context.CancelFunc
	drain   chan struct{} // closed when the worker stops accepting tasks
	running sync.WaitGroup
}

// Open creates a worker and its scratch folder, and removes the scratch folders of dead workers.
func Open(cfg Config) (*Worker, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("open worker: %w", err)
	}
	dir, err := openScratch(cfg.ScratchDir, cfg.Nonce())
	if err != nil {
		return nil, fmt.Errorf("open worker: %w", err)
	}
	if err := forgetLost(cfg.ScratchDir, cfg.Clock.Now()); err != nil {
		return nil, errors.Join(fmt.Errorf("open worker: %w", err), dir.close())
	}
	record, err := openExecuting(dir.dir, cfg.MaxConcurrent)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open worker: %w", err), dir.close())
	}
	ctx, kill := context.WithCancel(context.Background())
	machine := thisMachine()
	return &Worker{
		cfg: cfg, scratch: dir, executing: record, starter: newStarter(), slots: make(chan struct{}, cfg.MaxConcurrent),
		machine: machine, memory: memory{capacity: machine.memory},
		caches: caches{
			plans: newCache[*loadedPlan](planBudget), markers: newCache[*contract.CommitMarker](markerBudget),
			merged: newCache[*merged.File](mergedBudget), files: filecheck.New(),
			sources: source.NewCache(filepath.Join(cfg.ScratchDir, "source"), cfg.Clock.Now),
		},
		life: lifetime{ctx: ctx, kill: kill, drain: make(chan struct{})},
		jobs: map[string]*job{}, secretVars: map[string]bool{}, mergeAfter: map[domainAsset]time.Time{},
	}, nil
}

// complete fills in defaults, and returns an error if a required field is missing.
func (c *Config) complete() error {
	switch {
	case c.Store == nil, c.Clock == nil, c.Nonce == nil, c.Logger == nil:
		return errors.New("a worker needs a Store, a Clock, a Nonce and a Logger")
	case c.WorkerID == "":
		return errors.New("a worker needs a WorkerID")
	case c.ScratchDir == "":
		return errors.New("a worker needs a ScratchDir")
	}
	if err := c.Keyring.Validate(); err != nil {
		return err
	}
	if c.Redactor == nil {
		c.Redactor = &secret.Redactor{}
	}
	if c.MaxConcurrent <= 0 {
		c.MaxConcurrent = runtime.NumCPU()
	}
	if c.HeartbeatEvery <= 0 {
		c.HeartbeatEvery = 10 * time.Second
	}
	c.Merging.complete(c.Clock)
	if c.HoldFor <= 0 {
		c.HoldFor = defaultHold
	}
	if c.HTTPClient == nil {
		transport, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			transport = &http.Transport{}
		}
		transport = transport.Clone()
		// Each running task needs a connection. By default, a transport keeps only two idle connections, so nearly
		// every callback would open and close a connection.
		transport.MaxIdleConnsPerHost = 2 * c.MaxConcurrent
		transport.MaxIdleConns = 0
		c.HTTPClient = &http.Client{Transport: transport}
	}
	return nil
}

// Close stops accepting tasks and interrupts the running tasks. It waits until these tasks have reported
// WORKER_INTERRUPTED, so that they are retried on another worker. When ctx is done, Close stops waiting and kills the
// remaining tasks.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	first := !w.closing
	w.closing = true
	if first {
		close(w.life.drain)
		for _, j := range w.jobs {
			j.stop(errInterrupted)
		}
	}
	w.mu.Unlock()

	done := make(chan struct{})
	go func() {
		w.life.running.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close worker: tasks were still running: %w", ctx.Err())
	}
	w.life.kill()
	<-done
	if !first {
		return err
	}
	w.starter.close()
	w.cfg.HTTPClient.CloseIdleConnections()
	if removeErr := errors.Join(w.executing.file.Close(), w.scratch.close()); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("close worker: %w", removeErr))
	}
	return err
}

// background runs f in a goroutine. stop cancels f's context and waits until f has returned.
func background(ctx context.Context, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// removeAll removes a folder, including subfolders without write permission.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	makeWritable(dir)
	return os.RemoveAll(dir)
}
