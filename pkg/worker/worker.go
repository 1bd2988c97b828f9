// Package worker executes tasks: an HTTP server that a task queue pushes
// envelopes to, the executors of queries and commands, and the commit of what
// they make.
//
// A worker holds nothing that matters. Execution is at least once, in one
// process or several, at once or one after the other; the effects are exactly
// once, because every execution writes to a directory of its own and the commit
// marker, created if absent, names the one that counts. The marker decides the
// bytes; whether the output becomes visible is decided where the report goes.
//
// What a worker answers decides whether the queue delivers again: see
// docs/worker-contract.md, which says it for workers in any language.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// Limits and times of a worker.
const (
	// defaultHold is well below the 30 minutes after which task queues give up a
	// delivery at the latest, and deliver again.
	defaultHold = 25 * time.Minute
	// killGrace is how long a process may take to end after SIGTERM. With drainTime
	// and a report it fits into the 10 seconds that Cloud Run gives a worker.
	killGrace = 5 * time.Second
	// maxJobs is how many attempts may run and wait for a slot.
	maxJobs = 10_000

	planBudget   = 256 << 20 // bytes of decoded plans in memory, about
	markerBudget = 32 << 20  // bytes of markers in memory, about
)

// Config is what a worker is made of.
type Config struct {
	// Store is where plans and inputs are, and outputs and logs go.
	Store blob.Store
	Clock clock.Clock
	// Nonce makes a text of [A-Za-z0-9_-] that no execution has had: a ULID.
	Nonce func() string
	// Keyring verifies envelopes.
	Keyring contract.Keyring
	// HTTPClient makes the callbacks; nil: one of the worker's own.
	HTTPClient *http.Client
	// WorkerID tells workers apart in reports.
	WorkerID string
	// ScratchDir is a folder for working files. Workers may share it.
	ScratchDir string
	Logger     *slog.Logger
	// Project is the folder of the project on this machine; "": where the plan says that
	// it is.
	Project string
	// Environ is the environment of commands, "NAME=value" each; their PATH is
	// where programs are looked for. What is the worker's alone they do not inherit:
	// see [plan.WorkersOwn].
	Environ []string
	// Secrets gives the value that a reference to a secret stands for, in memory only. An error that is
	// [secret.ErrRefused] ends the task; others may pass. It may be nil: there are no secrets.
	Secrets func(ctx context.Context, reference string) (string, error)
	// Redactor hides secrets in what the process logs. The worker adds the values of the
	// variables that projects take secrets from, and hides them in the logs of all tasks. It
	// may be nil.
	Redactor *secret.Redactor
	// ServoBin is the servo program, which commands find as SERVO_BIN.
	ServoBin string
	// MaxConcurrent is how many tasks run at once; 0: as many as there are CPUs.
	MaxConcurrent int
	// HeartbeatEvery is the time between heartbeats; 0: 10 seconds. A task with
	// a short heartbeat time-out gets three beats in it.
	HeartbeatEvery time.Duration
	// HoldFor is how long a delivery waits for its task's end; 0: 25 minutes. A task
	// whose time-out is longer is not waited for at all, once its start is taken.
	HoldFor time.Duration
	// DuckDB bounds each query.
	DuckDB DuckDB
	// Executor does the work of all tasks; nil: DuckDB and commands do.
	Executor Executor
	// Traces make spans of attempts; nil: there are none.
	Traces *trace.Tracer
}

// DuckDB bounds what one query may use.
type DuckDB struct {
	// MemoryLimit is in DuckDB's words, "2GB"; "": half of the machine's or container's memory, divided by
	// MaxConcurrent.
	MemoryLimit string
	// Threads of one query; 0: the cores divided by the tasks that run when it starts, at least 1.
	Threads int
}

// Worker is a worker server. It is safe for concurrent use.
type Worker struct {
	cfg     Config
	scratch *scratch
	starter *starter
	// commands are those that run.
	commands commands
	slots    chan struct{}
	machine  machine

	plans   *cache[*loadedPlan]
	markers *cache[*contract.Marker]
	files   *filecheck.Cache // input files on this machine that were found whole
	loading singleflight.Group

	// ctx ends when Close gives up waiting.
	ctx  context.Context //nolint:containedctx // the life of the server, which outlives each request
	kill context.CancelFunc

	drain   chan struct{} // closed when the worker takes no more
	running sync.WaitGroup

	mu      sync.Mutex
	closing bool
	jobs    map[string]*job // by attempt id
	// sources are the variables that the plans of this worker take secrets from.
	sources map[string]bool
}

// Open makes a worker and its scratch folder, and removes what dead workers
// have left in that.
func Open(cfg Config) (*Worker, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("open worker: %w", err)
	}
	dir, err := openScratch(cfg.ScratchDir, cfg.Nonce())
	if err != nil {
		return nil, fmt.Errorf("open worker: %w", err)
	}
	ctx, kill := context.WithCancel(context.Background())
	return &Worker{
		cfg: cfg, scratch: dir, starter: newStarter(), slots: make(chan struct{}, cfg.MaxConcurrent), machine: thisMachine(),
		plans: newCache[*loadedPlan](planBudget), markers: newCache[*contract.Marker](markerBudget), files: filecheck.New(),
		ctx: ctx, kill: kill, drain: make(chan struct{}), jobs: map[string]*job{}, sources: map[string]bool{},
	}, nil
}

// complete fills in defaults and reports what is missing.
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
	if c.HoldFor <= 0 {
		c.HoldFor = defaultHold
	}
	if c.HTTPClient == nil {
		transport, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			transport = &http.Transport{}
		}
		transport = transport.Clone()
		// One connection for each task that runs: the default of two would open
		// and close one for nearly every callback.
		transport.MaxIdleConnsPerHost = 2 * c.MaxConcurrent
		transport.MaxIdleConns = 0
		c.HTTPClient = &http.Client{Transport: transport}
	}
	return nil
}

// Close stops taking tasks, ends those that run, and waits until they are
// reported as interrupted, to be retried elsewhere. When ctx is done it stops
// waiting, and kills what is left.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	first := !w.closing
	w.closing = true
	if first {
		close(w.drain)
		for _, j := range w.jobs {
			j.stop(errInterrupted)
		}
	}
	w.mu.Unlock()

	done := make(chan struct{})
	go func() {
		w.running.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("close worker: tasks were still running: %w", ctx.Err())
	}
	w.kill()
	<-done
	if !first {
		return err
	}
	w.starter.close()
	w.cfg.HTTPClient.CloseIdleConnections()
	if removeErr := w.scratch.close(); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("close worker: %w", removeErr))
	}
	return err
}

// background runs f beside its caller until f returns or stop is called, which
// waits for it.
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

// removeAll removes a folder that may hold folders without write permission.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	makeWritable(dir)
	return os.RemoveAll(dir)
}
