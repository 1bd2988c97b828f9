// Package embedded runs all of Servo in one process on one machine: a folder as the object store,
// an in-process queue, the compactor, the dispatcher and a worker. They talk over the same HTTP
// routes as in a cloud.
//
// One process at a time owns a state folder. Its lock ends with the process. Any other process
// attaches to the owner: it appends to the ledger itself, and the owner folds. When the owner
// ends, another process can take over, because all state is in the folder.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/secret"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/trace"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// Options configure a stack.
type Options struct {
	// Dir is the state folder, ".servo" beside servo.yaml. It is created if absent.
	Dir    string
	Domain ids.Domain
	// Listen is the address to serve on. Only this machine may reach it. "" is 127.0.0.1 and a
	// free port.
	Listen string
	// Concurrency is the number of tasks that execute at once. 0 is twice the number of cores.
	Concurrency int
	// DuckDB bounds each query.
	DuckDB worker.DuckDB
	Clock  clock.Clock
	Logger *slog.Logger
	// Environ is the environment that commands inherit.
	Environ []string
	// Secrets resolves a reference to a secret: see [worker.Config].
	Secrets func(ctx context.Context, reference string) (string, error)
	// Redactor hides secrets in the logs of this process. Nil: the worker makes its own.
	Redactor *secret.Redactor
	// Program is the path of the servo program. Commands find it as SERVO_BIN.
	Program string
	// WorkerURL is the address of the worker that executes the tasks. "": a worker in this
	// process.
	WorkerURL string
	// Actor is the principal that starts runs: "user:jane".
	Actor string
	// Routes adds routes to the stack's HTTP server. It may be nil.
	Routes func(*http.ServeMux, *engine.Engine)
	// Wrap wraps the folder's store for everything but the worker, for example to count requests.
	// It may be nil.
	Wrap func(blob.Store) blob.Store
	// Read opens parts for reading only. The folder need not be writable.
	Read bool
	// Traces records spans of all work of this process. Nil: none are recorded.
	Traces *trace.Tracer
	// Keep returns the rule for outputs and logs to keep. It is called before each pass of the
	// collector. If Keep or the rule is nil, everything is kept.
	Keep func(context.Context) (gc.Rule, error)
}

// Stack is a running stack.
type Stack struct {
	*engine.Engine
	// URL is the address that the stack serves.
	URL string

	opts      Options
	workspace *Workspace
	lock      *lock
	token     string // required in requests
	compactor *compactor.Compactor
	dispatch  *dispatcher.Dispatcher
	queue     *localqueue.Queue
	client    *http.Client // the queue's
	worker    *worker.Worker
	listener  net.Listener
	server    *http.Server

	group *errgroup.Group
	stop  context.CancelFunc

	appending, folding trouble

	collecting sync.Mutex    // while a pass of the collector runs
	published  chan struct{} // capacity 1: a revision was published since the last pass
}

// Workspace is a domain that a process has opened in a folder or a bucket.
type Workspace struct {
	*domain.Handle
	// Folder is the state folder, or nil if the store is not a folder. The handle's store may be a
	// wrapper of it.
	Folder *fileblob.Store

	closer io.Closer
}

// Open opens a state folder and creates it if it is absent. A folder has no clock but the
// machine's, which may have been ahead earlier: [Workspace.Follow] continues from the recorded time.
func Open(opts Options) (*Workspace, error) {
	opts.Clock = clock.NewForward(opts.Clock)
	store, err := fileblob.Open(opts.Dir, fileblob.Options{Now: opts.Clock.Now, Read: opts.Read})
	if err != nil {
		return nil, fmt.Errorf("open state folder %s: %w", opts.Dir, err)
	}
	objects := blob.Store(store)
	if opts.Wrap != nil {
		objects = opts.Wrap(store)
	}
	w := OpenStore(opts, objects, store)
	w.Folder = store
	return w, nil
}

// OpenStore opens the workspace of a store that is already open. The workspace closes the store.
func OpenStore(opts Options, objects blob.Store, closer io.Closer) *Workspace {
	return &Workspace{
		Handle: domain.Open(domain.Handle{Domain: opts.Domain, Store: objects, Clock: opts.Clock, Logger: opts.Logger}),
		closer: closer,
	}
}

// Follow moves the folder's clock to the latest time that a revision records, and logs a warning,
// if the machine's clock is behind that time. Otherwise new entries would sort before folded ones:
// no listing would find them, and nothing would be collected until the machine's clock caught up.
func (w *Workspace) Follow(m *manifest.Manifest) {
	forward, ok := w.Clock.(*clock.Forward)
	if !ok {
		return
	}
	recorded := m.FoldTime.Time()
	for _, id := range []string{m.Watermarks.EventsProcessedThrough, m.Watermarks.CompleteThrough} {
		if at := ids.Time(id); at.After(recorded) {
			recorded = at
		}
	}
	if lead := forward.Follow(recorded); lead > 0 {
		w.Logger.Warn("the state is ahead of this machine's clock, which was wrong earlier or is wrong now. Servo continues from the time of the state: "+
			"times of new runs are ahead until the clock catches up",
			slog.String("state", event.At(recorded).String()), slog.Duration("ahead", lead.Round(time.Second)))
	}
}

// follow calls Follow with the newest revision, if it can be read.
func (w *Workspace) follow(ctx context.Context) error {
	m, err := w.Manifests.Load(ctx)
	if err == nil {
		w.Follow(m)
	}
	return ctx.Err() // opening the state reports why a manifest cannot be read
}

// Close closes the store.
func (w *Workspace) Close() error { return w.closer.Close() }

// Start locks the state folder, brings its state up to date, fills the queue with pending work and
// serves. If another process owns the folder, it returns a [*LockedError].
func Start(ctx context.Context, opts Options) (_ *Stack, err error) {
	if err := opts.Domain.Validate(); err != nil {
		return nil, err
	}
	if err := CheckListen(opts.Listen); err != nil {
		return nil, err
	}
	if strings.Contains(opts.Dir, "://") {
		return nil, fmt.Errorf("%s is not a local folder: its services own it and execute its runs", opts.Dir)
	}
	if err := MakeFolder(opts.Dir); err != nil {
		return nil, err
	}
	owned, err := acquire(opts.Dir)
	if err != nil {
		return nil, err
	}
	s := &Stack{opts: opts, lock: owned, token: newToken(), published: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if s.workspace, err = Open(opts); err != nil {
		return nil, err
	}
	s.opts.Clock = s.workspace.Clock
	if err := s.workspace.follow(ctx); err != nil {
		return nil, err
	}
	if err := s.build(ctx); err != nil {
		return nil, err
	}
	running := s.run(context.WithoutCancel(ctx))
	if err := s.resume(ctx, running); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// build creates the services and connects them.
func (s *Stack) build(ctx context.Context) error {
	keys, err := service.OpenKeys(filepath.Join(s.opts.Dir, service.KeysFile))
	if err != nil {
		return err
	}
	address := s.opts.Listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	var lc net.ListenConfig
	if s.listener, err = lc.Listen(ctx, "tcp", address); err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	s.URL = "http://" + s.listener.Addr().String()
	p := s.workspace
	s.compactor, err = compactor.Open(ctx, compactor.Config{
		Handle: p.Handle,
		Writer: fmt.Sprintf("servo/%d", os.Getpid()),
		Traces: s.opts.Traces,
		OnPublish: func(published compactor.Published) {
			s.dispatch.React(published)
			s.collectLater()
		},
		OnFailure:  s.folding.note,
		OnRecovery: func() { s.folding.note(nil, time.Time{}) },
		Options:    compactor.Options{Retention: manifest.OneMachine()},
	})
	if err != nil {
		return err
	}
	appender := p.Appender(ledger.Config{
		Store:  watched{p.Store, p.Clock, &s.appending},
		Linger: linger,
		OnStored: func(e ledger.Entry) {
			s.compactor.Announce(compactor.Request{
				Entries: []compactor.Entry{{ID: e.Name, Data: e.Data, Stored: e.Object.Updated}}, Lazy: !e.Urgent,
			})
		},
	})
	snapshots := inProcess{s.compactor.Latest()}
	s.Engine = engine.New(engine.Config{
		Handle:    p.Handle,
		Appender:  appender,
		Compactor: s.compactor,
		Snapshots: snapshots,
		Actor:     s.opts.Actor,
		Traces:    s.opts.Traces,
	})
	s.client = s.owner().Client()
	s.queue = localqueue.New(localqueue.Options{
		Clock: p.Clock, Client: s.client, Logger: p.Logger, Concurrency: s.concurrency,
	})
	s.dispatch = dispatcher.New(dispatcher.Config{
		Handle:         p.Handle,
		Queue:          s.queue,
		InProcessQueue: true,
		Appender:       appender,
		Compactor:      s.compactor,
		Snapshots:      snapshots,
		Keys:           keys,
		WorkerURL:      func(string) string { return cmp.Or(s.opts.WorkerURL, s.URL) },
		BaseURL:        s.URL,
		Traces:         s.opts.Traces,
	})
	if s.opts.WorkerURL == "" {
		if err := s.buildWorker(keys); err != nil {
			return err
		}
	}
	s.buildServer()
	return nil
}

func (s *Stack) buildWorker(keys contract.Keyring) (err error) {
	p := s.workspace
	s.worker, err = worker.Open(worker.Config{
		Store: p.Folder, Clock: p.Clock, Nonce: p.IDs.New, Keyring: keys, HTTPClient: newClient(),
		WorkerID:   fmt.Sprintf("local-%d", os.Getpid()),
		ScratchDir: filepath.Join(s.opts.Dir, scratchDir),
		Logger:     p.Logger, Traces: s.opts.Traces, Environ: s.opts.Environ, Secrets: s.opts.Secrets, Redactor: s.opts.Redactor, ServoBin: s.opts.Program,
		HeartbeatEvery: heartbeatEvery, MaxConcurrent: s.concurrency(""),
		DuckDB: s.opts.DuckDB,
	})
	return err
}

func (s *Stack) buildServer() {
	p := s.workspace
	mux := http.NewServeMux()
	find := func(_ context.Context, d ids.Domain) (*dispatcher.Dispatcher, error) {
		if d != p.Domain {
			return nil, nil //nolint:nilnil // nil stands for a domain that is not served here
		}
		return s.dispatch, nil
	}
	dispatcher.Register(mux, find, s.dispatch.Keys, p.Clock)
	registerCompact(mux, func(_ context.Context, d ids.Domain) (*compactor.Compactor, error) {
		if d != p.Domain {
			return nil, fmt.Errorf("this process serves %s, not %s", p.Domain, d)
		}
		return s.compactor, nil
	})
	if s.worker != nil {
		mux.Handle("POST /execute", s.worker.Handler())
		registerLogs(mux, s.worker, p.Logger)
	}
	if s.opts.Routes != nil {
		s.opts.Routes(mux, s.Engine)
	}
	handleUnknown(mux)
	s.server = &http.Server{
		Handler: localOnly(requireToken(mux, s.token)), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: contract.MaxHeaderBytes,
		ConnContext: withPeer,
	}
}

// owner returns the record that other processes read about this one.
func (s *Stack) owner() Owner {
	return Owner{PID: os.Getpid(), URL: s.URL, Domain: s.opts.Domain.String(), Token: s.token}
}

const (
	// heartbeatEvery is how often a local worker asks whether to stop. Few of these heartbeats
	// become ledger events.
	heartbeatEvery = time.Second
	headerTimeout  = 10 * time.Second
	// reconcileEvery is the time between two reconciliations while runs are live.
	reconcileEvery = 5 * time.Second
	// sweepEvery is the number of reconciliations per sweep.
	sweepEvery = 12
	// linger is how long a start may wait to be appended: a shorter task reports start and end in
	// one entry. It may be long, because this process writes the entry even if no other event
	// arrives.
	linger = 250 * time.Millisecond
)

// run starts all goroutines except the queue's. They end when Close cancels the returned context.
func (s *Stack) run(ctx context.Context) context.Context {
	ctx, s.stop = context.WithCancel(ctx)
	s.group, ctx = errgroup.WithContext(ctx)
	s.group.Go(func() error { return s.Appender.Run(ctx) })
	s.group.Go(func() error { return s.compactor.Run(ctx) })
	s.group.Go(func() error { return s.dispatch.Run(ctx) })
	s.group.Go(func() error { return s.maintain(ctx) })
	s.group.Go(func() error { return s.freeMemory(ctx) })
	s.group.Go(func() error { return s.collectAll(ctx) })
	s.server.BaseContext = func(net.Listener) context.Context { return ctx }
	s.group.Go(func() error {
		if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", s.URL, err)
		}
		return nil
	})
	s.group.Go(func() error {
		<-ctx.Done()
		return s.server.Close()
	})
	return ctx
}

// resume folds the entries beyond the last revision and fills the queue, which is empty in a new
// process, with the same task names as before. The queue delivers tasks and timers only after
// that, so that none of them meets an older state.
func (s *Stack) resume(ctx, running context.Context) error {
	writable, stop := s.whileWritable(ctx)
	result, err := s.compactor.Compact(writable, compactor.Request{Barrier: true})
	if cause := context.Cause(writable); err != nil && cause != nil {
		err = cause
	}
	stop()
	if err != nil {
		return fmt.Errorf("bring the state up to date: %w", err)
	}
	snap, err := s.Snapshots.Await(ctx, result.Revision-1)
	if err != nil {
		return err
	}
	if snap, err = s.adopt(ctx, snap); err != nil {
		return err
	}
	s.group.Go(func() error { return s.queue.Run(running) })
	s.dispatch.Submit(control.Refill(snap.State, event.At(s.opts.Clock.Now())))
	return s.lock.publish(s.opts.Dir, s.owner())
}

const (
	// maxHeartbeats bounds the heartbeats of one group: a ledger group has at most 1 MiB.
	maxHeartbeats = 100
	// adoptWithin is how long the start waits for a disk that cannot be written before it fails.
	adoptWithin = 30 * time.Second
)

// whileWritable returns a context that ends, with the cause, when the folder has not been writable
// for adoptWithin. Folding may take long, but waiting for a full disk may not.
func (s *Stack) whileWritable(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s.opts.Clock.Sleep(ctx, time.Second) == nil {
			if since, err := s.Failure(); err != nil && s.opts.Clock.Now().Sub(since) >= adoptWithin {
				cancel(err)
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// adopt appends a heartbeat for every attempt that was running when the last owner ended, because
// this process will execute it again. The silence since then says nothing about an attempt,
// however long nobody owned the folder. Without the heartbeats the overdue liveness timer would
// fail it.
func (s *Stack) adopt(ctx context.Context, snap *snapshot.Snapshot) (*snapshot.Snapshot, error) {
	var heartbeats []*event.Envelope
	now := event.At(s.opts.Clock.Now())
	for row := range snap.State.Heartbeats.All { // exactly the running attempts have one
		t := snap.State.Tasks.Get(row.Key())
		if t == nil || t.State != state.TaskRunning {
			continue
		}
		heartbeats = append(heartbeats, &event.Envelope{Domain: s.opts.Domain, CorrelationID: t.RunID, Actor: s.opts.Actor, Payload: &event.TaskHeartbeat{
			AttemptRef: event.AttemptRef{
				RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID, WorkerID: t.WorkerID,
			},
			HeartbeatAt: now, Progress: row.Progress, Message: "executed again: the process that executed it has ended",
		}})
	}
	if len(heartbeats) == 0 {
		return snap, nil
	}
	ctx, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	snap, err := s.fold(ctx, heartbeats)
	if err != nil {
		_, cause := s.Failure()
		return nil, fmt.Errorf("take over running tasks: %w", errors.Join(err, cause))
	}
	return snap, nil
}

// fold appends events in groups and returns the first snapshot that contains all of them.
func (s *Stack) fold(ctx context.Context, events []*event.Envelope) (*snapshot.Snapshot, error) {
	var request compactor.Request
	for group := range slices.Chunk(events, maxHeartbeats) {
		appended, err := s.Appender.Append(ctx, group)
		if err != nil {
			return nil, err
		}
		request.Entries = append(request.Entries, compactor.Entry{ID: appended.Entry})
	}
	result, err := s.compactor.Compact(ctx, request)
	if err != nil {
		return nil, err
	}
	return s.Snapshots.Await(ctx, result.Revision-1)
}

// maintain reconciles and sweeps at intervals while any run is live, in case a publish or delivery
// was lost. It sleeps while no run is live.
func (s *Stack) maintain(ctx context.Context) error {
	latest := s.compactor.Latest()
	for round := 1; ; round++ {
		if _, err := latest.Await(ctx, func(snap *snapshot.Snapshot) bool { return snap.State.LiveRuns() > 0 }); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		if err := s.opts.Clock.Sleep(ctx, reconcileEvery); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		err := s.dispatch.Reconcile(ctx)
		if err == nil && round%sweepEvery == 0 {
			err = s.Sweep(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.opts.Logger.WarnContext(ctx, "reconciliation incomplete; it will be repeated", slog.Any("error", err))
		}
	}
}

// freeMemory returns memory to the system each time that no run has been live for a while.
func (s *Stack) freeMemory(ctx context.Context) error {
	latest := s.compactor.Latest()
	live := func(snap *snapshot.Snapshot) bool { return snap.State.LiveRuns() > 0 }
	for {
		if _, err := latest.Await(ctx, func(snap *snapshot.Snapshot) bool { return !live(snap) }); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		if err := s.opts.Clock.Sleep(ctx, reconcileEvery); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
		if snap, _ := latest.Get(); live(snap) {
			continue
		}
		debug.FreeOSMemory()
		if _, err := latest.Await(ctx, live); err != nil {
			return nil //nolint:nilerr // the stack is being closed
		}
	}
}

// Sweep runs one sweep now.
func (s *Stack) Sweep(ctx context.Context) error {
	result, err := s.compactor.Compact(ctx, compactor.Request{Barrier: true})
	if err != nil {
		return err
	}
	return s.dispatch.Sweep(ctx, result.Revision)
}

// Failure returns why the ledger or the state cannot be written, and since when. It returns nil if
// both can be written.
func (s *Stack) Failure() (since time.Time, err error) {
	if since, err = s.appending.get(); err != nil {
		return since, err
	}
	return s.folding.get()
}

// Done waits until the stack ends by itself and returns the reason.
func (s *Stack) Done() error { return s.group.Wait() }

// answerWithin is how long a closing stack takes to answer a worker in another process. A report
// without an answer is repeated, although no process would receive it.
const answerWithin = time.Second

// flushWithin is how long a closing stack waits for running merges. Without this wait, a series of
// short runs would begin the same merge again and again and never finish it.
const flushWithin = 3 * time.Second

func (s *Stack) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	if _, err := s.compactor.Compact(ctx, compactor.Request{Flush: true}); err != nil {
		s.opts.Logger.Debug("a merge is not finished; the next start repeats it", slog.Any("error", err))
	}
	if err := s.compactor.Shrink(ctx); err != nil {
		s.opts.Logger.Debug("old revisions are not deleted; the next start does", slog.Any("error", err))
	}
}

// Close stops the stack. Executions are killed and not reported. The next process that opens the
// folder executes their attempts again.
func (s *Stack) Close() error {
	var err error
	if s.stop != nil {
		if s.worker == nil {
			answering, cancel := context.WithTimeout(context.Background(), answerWithin)
			_ = s.server.Shutdown(answering) // slower requests are cut off below
			cancel()
		}
		s.flush()
		s.collect(context.Background(), closingWithin)
		s.stop()
		err = s.group.Wait()
		s.client.CloseIdleConnections() // a closing worker waits for connections that were never used
	}
	if s.worker != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.worker.Close(ended) // nobody receives reports now: kill executions instead of waiting
	}
	s.release()
	return err
}

func (s *Stack) release() {
	if s.listener != nil {
		_ = s.listener.Close() // already closed if the stack has run
	}
	if s.workspace != nil {
		_ = s.workspace.Close()
	}
	s.lock.release(s.opts.Dir)
}
