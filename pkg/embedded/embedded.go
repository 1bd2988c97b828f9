// Package embedded runs all of Servo in one process on one machine: a folder as the object store, an in-process
// queue, the compactor, the dispatcher and a worker. They communicate over the same HTTP routes as in a cloud. This
// package is not a stable API.
//
// One process at a time owns a state folder. It holds a lock on the folder until it ends. Any other process attaches to
// the owner: it appends to the ledger itself, and the owner folds. When the owner ends, another process can take over,
// because all state is in the folder.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/automator"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/gc"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/notifier"
	"github.com/servo-orchestration/servo/pkg/notify"
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
	// Listen is the address to serve on. It must be an address that only this machine can reach. "" is 127.0.0.1 and a
	// free port.
	Listen string
	// Concurrency is the number of tasks that execute at once. 0 is twice the number of cores.
	Concurrency int
	// DuckDB limits the resources of each query.
	DuckDB worker.DuckDB
	Clock  clock.Clock
	Logger *slog.Logger
	// Environ is the environment that commands inherit.
	Environ []string
	// Environment is the environment of the project; "": its base.
	Environment string
	// Secrets resolves a reference to a secret: see [worker.Config].
	Secrets func(ctx context.Context, reference string) (string, error)
	// Redactor hides secrets in the logs of this process. Nil: the worker creates its own redactor.
	Redactor *secret.Redactor
	// Program is the path of the servo program. Commands find it as SERVO_BIN.
	Program string
	// WorkerURL is the address of the worker that executes the tasks. "": a worker in this
	// process.
	WorkerURL string
	// Root is the folder of the project. Tasks execute in it if their release has no archive of the project's files.
	Root string
	// Home is the folder of the project that contains the state folder. Tasks fail if their run was planned in another
	// folder, because they would read its files. "": tasks execute in the folders of their runs.
	Home string
	// Actor is the principal that starts runs: "user:jane".
	Actor string
	// Routes adds routes to the stack's HTTP server. It may be nil. It is called with a nil worker if another process
	// executes the tasks.
	Routes func(*http.ServeMux, *engine.Engine, *worker.Worker)
	// Page serves the web page below /w/ and /assets/. Nil: none is served, and no browser can log in.
	Page http.Handler
	// Wrap wraps the folder's store, for example to count requests. The worker still uses the unwrapped store. It may
	// be nil.
	Wrap func(blob.Store) blob.Store
	// Read opens the folder for reading only, so the folder need not be writable.
	Read bool
	// Traces records spans of all work of this process. Nil: none are recorded.
	Traces *trace.Tracer
	// Keep returns the rule that says which outputs and logs to keep. It is called before each pass of the collector. If
	// Keep or the rule is nil, everything is kept.
	Keep func(context.Context) (gc.Rule, error)
	// Compactor holds the settings of the compactor. Its retention of manifests is ignored: the stack uses the retention
	// for a single machine.
	Compactor compactor.Options
	// Publish lists the outputs to publish, and the places where they are published. Nil: nothing is
	// published.
	Publish Publishing
}

// Stack is a running stack.
type Stack struct {
	*engine.Engine
	// URL is the address at which the stack serves.
	URL string

	opts      Options
	workspace *Workspace
	lock      *lock
	front     front

	compactor *compactor.Compactor
	appender  *ledger.Appender
	dispatch  *dispatcher.Dispatcher
	automator *automator.Automator
	notifier  *notifier.Notifier
	queue     *localqueue.Queue
	client    *http.Client // the queue's
	worker    *worker.Worker

	group *errgroup.Group
	stop  context.CancelFunc

	appending, folding trouble

	collection   passes // of the collector; due if a revision was published since the last pass
	publication  passes // of the publisher; due if outputs may have changed since the last pass began
	publishError string // the error of the last pass of the publisher, or ""
}

// front is what HTTP clients reach.
type front struct {
	listener net.Listener
	server   *http.Server
	token    string // see [requireToken]
	browsers *browsers
}

// passes makes sure that at most one pass of some repeated work runs at a time.
type passes struct {
	mu  sync.Mutex    // locked while a pass runs
	due chan struct{} // capacity 1; full if another pass is due
}

func newPasses() passes { return passes{due: make(chan struct{}, 1)} }

// request requests a pass and returns immediately.
func (p *passes) request() {
	select {
	case p.due <- struct{}{}:
	default:
	}
}

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
		return nil, fmt.Errorf("%s is not a local folder: services in the cloud own it and execute its runs", opts.Dir)
	}
	if err := MakeFolder(opts.Dir); err != nil {
		return nil, err
	}
	owned, err := acquire(opts.Dir)
	if err != nil {
		return nil, err
	}
	s := &Stack{opts: opts, lock: owned, front: front{token: newToken()}, collection: newPasses(), publication: newPasses()}
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
	if s.front.listener, s.URL, err = listen(ctx, s.opts.Listen); err != nil {
		return err
	}
	p := s.workspace
	options := s.opts.Compactor
	options.Retention = manifest.OneMachine()
	s.compactor, err = compactor.Open(ctx, compactor.Config{
		Handle: p.Handle,
		Writer: fmt.Sprintf("servo/%d", os.Getpid()),
		Traces: s.opts.Traces,
		OnPublish: func(published compactor.Published) {
			s.dispatch.React(published)
			s.automator.React(published.Snapshot.State)
			s.notifier.React(published.Snapshot.State)
			s.collection.request()
			if visible(published) {
				s.publication.request()
			}
		},
		OnFailure:  s.folding.note,
		OnRecovery: func() { s.folding.note(nil, time.Time{}) },
		Options:    options,
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
		Handle: p.Handle, Appender: appender, Compactor: s.compactor, Snapshots: snapshots, Traces: s.opts.Traces, Root: s.opts.Root,
	}).As(s.opts.Actor)
	s.automator = automator.New(automator.Config{Engine: s.Engine, Clock: p.Clock, Logger: p.Logger, Root: s.opts.Root})
	sender := &notify.Sender{Clock: p.Clock, Secrets: s.opts.Secrets, Redactor: s.opts.Redactor, Root: s.opts.Root}
	s.notifier = notifier.New(notifier.Config{Engine: s.Engine, Clock: p.Clock, Logger: p.Logger, Send: sender.Send})
	s.appender = appender
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
		OnState:        func(*state.State, bool) { s.automator.Nudge(); s.notifier.Nudge() },
		Traces:         s.opts.Traces,
	})
	if s.opts.WorkerURL == "" {
		if err := s.buildWorker(keys); err != nil {
			return err
		}
	}
	s.buildServer(keys)
	return nil
}

func (s *Stack) buildWorker(keys contract.Keyring) (err error) {
	p := s.workspace
	s.worker, err = worker.Open(worker.Config{
		Store: p.Folder, Clock: p.Clock, Nonce: p.IDs.New, Keyring: keys, HTTPClient: newClient(),
		WorkerID:   fmt.Sprintf("local-%d", os.Getpid()),
		ScratchDir: filepath.Join(s.opts.Dir, scratchDir),
		Logger:     p.Logger, Traces: s.opts.Traces, Environ: s.opts.Environ, Secrets: s.opts.Secrets, Redactor: s.opts.Redactor,
		ServoBin: s.opts.Program, State: s.opts.Dir, Environment: s.opts.Environment, Home: s.opts.Home,
		HeartbeatEvery: heartbeatEvery, MaxConcurrent: s.concurrency(""),
		DuckDB: s.opts.DuckDB,
	})
	return err
}

func (s *Stack) buildServer(keys contract.Keyring) {
	p := s.workspace
	mux := http.NewServeMux()
	find := func(_ context.Context, d ids.Domain) (*dispatcher.Dispatcher, error) {
		if d != p.Domain {
			return nil, nil //nolint:nilnil // nil means that this process does not serve the domain
		}
		return s.dispatch, nil
	}
	dispatcher.Register(mux, find, keys, p.Clock)
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
		s.opts.Routes(mux, s.Engine, s.worker)
	}
	if s.opts.Page != nil {
		s.front.browsers = newBrowsers(keys, p.Clock.Now)
		s.front.browsers.registerPage(mux, s.opts.Page, s.opts.Domain, s.URL)
	}
	handleUnknown(mux)
	s.front.server = newServer(mux, s.front.token, s.front.browsers)
}

// newServer returns a server that rejects requests with neither the token nor the cookie of a browser session: see
// [requireToken].
func newServer(mux *http.ServeMux, token string, sessions *browsers) *http.Server {
	server := &http.Server{
		Handler: localOnly(requireToken(mux, token, sessions)), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: contract.MaxHeaderBytes,
		ConnContext: withPeer, Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true) // for gRPC
	return server
}

// owner returns the record that other processes read about this process.
func (s *Stack) owner() Owner {
	return Owner{PID: os.Getpid(), URL: s.URL, Domain: s.opts.Domain.String(), Token: s.front.token}
}

const (
	// heartbeatEvery is the time between two heartbeats of a local worker. With each heartbeat, the worker also asks
	// whether it must stop the task. Few heartbeats become ledger events.
	heartbeatEvery = time.Second
	headerTimeout  = 10 * time.Second
	// linger is how long the start of a task may wait to be appended. A task that takes less time reports its start and
	// end in one entry. If no other event arrives during the wait, the start becomes an entry of its own.
	linger = 250 * time.Millisecond
)

// run starts all goroutines except the queue's. They end when Close cancels the returned context.
func (s *Stack) run(ctx context.Context) context.Context {
	ctx, s.stop = context.WithCancel(ctx)
	s.group, ctx = errgroup.WithContext(ctx)
	s.group.Go(func() error { return s.appender.Run(ctx) })
	s.group.Go(func() error { return s.compactor.Run(ctx) })
	s.group.Go(func() error { return s.dispatch.Run(ctx) })
	s.group.Go(func() error { return s.automator.Run(ctx) })
	s.group.Go(func() error { return s.notifier.Run(ctx) })
	s.group.Go(func() error { return s.maintain(ctx) })
	s.group.Go(func() error { return s.freeMemory(ctx) })
	s.group.Go(func() error { return s.collectAll(ctx) })
	s.group.Go(func() error { return s.publishAll(ctx) })
	s.front.server.BaseContext = func(net.Listener) context.Context { return ctx }
	s.group.Go(func() error {
		if err := s.front.server.Serve(s.front.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", s.URL, err)
		}
		return nil
	})
	s.group.Go(func() error {
		<-ctx.Done()
		return s.front.server.Close()
	})
	return ctx
}

// fold appends events in groups and returns the first snapshot that contains all of them.
func (s *Stack) fold(ctx context.Context, events []*event.Envelope) (*snapshot.Snapshot, error) {
	var request compactor.Request
	for group := range slices.Chunk(events, maxHeartbeats) {
		appended, err := s.appender.Append(ctx, group)
		if err != nil {
			return nil, err
		}
		request.Entries = append(request.Entries, compactor.Entry{ID: appended.Entry})
	}
	result, err := s.compactor.Compact(ctx, request)
	if err != nil {
		return nil, err
	}
	return s.Await(ctx, result.Revision-1)
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

// answerWithin is how long a closing stack still answers the requests of a worker in another process. Without this
// time, a report might not be answered. The worker would send it again, but no process would receive it.
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
		s.opts.Logger.Debug("old revisions are not deleted; the next start deletes them", slog.Any("error", err))
	}
}

// notifyWithin is how long a closing stack continues to send alerts: the next process may start only days later.
const notifyWithin = 10 * time.Second

func (s *Stack) notifyRest() {
	ctx, cancel := context.WithTimeout(context.Background(), notifyWithin)
	defer cancel()
	if err := s.notifier.Drain(ctx); err != nil {
		s.opts.Logger.Warn("some alerts were not sent; the next start sends them")
	}
}

// Close stops the stack. Executions are killed and not reported. The next process that opens the
// folder executes their attempts again.
func (s *Stack) Close() error {
	var err error
	if s.stop != nil {
		if s.worker == nil {
			answering, cancel := context.WithTimeout(context.Background(), answerWithin)
			_ = s.front.server.Shutdown(answering) // s.stop below cuts off slower requests
			cancel()
		}
		s.notifyRest()
		s.flush()
		s.publishRest()
		s.collect(context.Background(), closingWithin)
		s.stop()
		err = s.group.Wait()
		s.client.CloseIdleConnections() // a closing worker would wait for idle connections, even unused ones
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
	if s.front.listener != nil {
		_ = s.front.listener.Close() // already closed if the stack has run
	}
	if s.workspace != nil {
		_ = s.workspace.Close()
	}
	s.lock.release(s.opts.Dir)
}
