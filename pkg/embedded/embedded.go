// Package embedded is all of Servo in one process on one machine: a folder as
// the object store, an in-process queue, the compactor, the dispatcher and a
// worker, joined by the same HTTP that joins them in a cloud.
//
// One process at a time owns a state folder, by a lock that ends with the
// process. A second one talks to the first: it appends to the ledger itself and
// has the owner fold. When the owner goes away, whoever still wants something
// takes over; everything is in the folder.
package embedded

import (
	"cmp"
	"context"
	"crypto/rand"
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

// Options are what a stack runs with.
type Options struct {
	// Dir is the state folder, ".servo" beside servo.yaml. It is made if absent.
	Dir    string
	Domain ids.Domain
	// Listen is the address to serve on, one of this machine only; "" is 127.0.0.1 and a
	// free port.
	Listen string
	// Concurrency is how many tasks are executed at once; 0: twice the cores.
	Concurrency int
	// DuckDB bounds each query.
	DuckDB worker.DuckDB
	Clock  clock.Clock
	Logger *slog.Logger
	// Environ is the environment that commands inherit.
	Environ []string
	// Secrets gives the value that a reference to a secret stands for: see [worker.Config].
	Secrets func(ctx context.Context, reference string) (string, error)
	// Redactor hides secrets in what this process logs; nil: one of the worker's own.
	Redactor *secret.Redactor
	// Program is the path of the servo program, which commands find as SERVO_BIN.
	Program string
	// WorkerURL is where a worker serves that executes the tasks; "": one in this
	// process does.
	WorkerURL string
	// Actor is who asks: "user:jane".
	Actor string
	// Routes adds routes to the stack's HTTP server. It may be nil.
	Routes func(*http.ServeMux, *engine.Engine)
	// Wrap gives the store that all but the worker use, around that of the folder: to
	// count what is asked of it. It may be nil.
	Wrap func(blob.Store) blob.Store
	// Read is of who opens parts only to read: the folder need not be writable.
	Read bool
	// Traces make spans of all that this process does; nil: there are none.
	Traces *trace.Tracer
	// Keep reads, before each pass of the collector, which outputs and logs are kept. If it is nil, or returns a nil
	// rule, all of them are kept.
	Keep func(context.Context) (gc.Rule, error)
}

// Stack is a running stack.
type Stack struct {
	*engine.Engine
	// URL is where the stack serves.
	URL string

	opts      Options
	parts     *Parts
	lock      *lock
	token     string // that requests must carry
	compactor *compactor.Compactor
	dispatch  *dispatcher.Dispatcher
	queue     *localqueue.Queue
	client    *http.Client // of the queue
	worker    *worker.Worker
	listener  net.Listener
	server    *http.Server

	group *errgroup.Group
	stop  context.CancelFunc

	appending, folding trouble

	collecting sync.Mutex    // while a pass of the collector runs
	published  chan struct{} // has room for one: a revision was published since the last pass
}

// Parts are what every process needs that works on a state folder.
type Parts struct {
	Domain ids.Domain
	// Store is the folder, nil for a store that is none; Objects is that, or what was
	// put around it.
	Store     *fileblob.Store
	Objects   blob.Store
	Closer    io.Closer
	Manifests *manifest.Store
	Codec     *snapshot.Codec
	IDs       *ids.Source
	Clock     clock.Clock
	Logger    *slog.Logger
}

// OpenParts opens a state folder, which it makes if it is absent. A folder has no clock
// but the machine's. That may have been ahead and be right now: [Parts.Follow] has
// everything continue from the time that is recorded.
func OpenParts(opts Options) (*Parts, error) {
	opts.Clock = clock.NewForward(opts.Clock)
	store, err := fileblob.Open(opts.Dir, fileblob.Options{Now: opts.Clock.Now, Read: opts.Read})
	if err != nil {
		return nil, fmt.Errorf("open state folder %s: %w", opts.Dir, err)
	}
	objects := blob.Store(store)
	if opts.Wrap != nil {
		objects = opts.Wrap(store)
	}
	p := PartsOf(opts, objects, store)
	p.Store = store
	return p, nil
}

// PartsOf are those over a store that is open.
func PartsOf(opts Options, objects blob.Store, closer io.Closer) *Parts {
	source := ids.NewSource(opts.Clock.Now, rand.Reader)
	return &Parts{
		Domain: opts.Domain, Objects: objects, Closer: closer, IDs: source, Clock: opts.Clock, Logger: opts.Logger,
		Codec:     snapshot.NewCodec(),
		Manifests: manifest.New(manifest.Config{Domain: opts.Domain, Store: objects, IDs: source, Clock: opts.Clock, Logger: opts.Logger}),
	}
}

// Follow makes the clock of a folder continue from the latest time that its newest
// revision records, if the machine's clock is behind that, and says so. Without this,
// what is new would be older than what is folded: no listing would find it, and
// nothing would be collected before the recorded time comes.
func (p *Parts) Follow(m *manifest.Manifest) {
	forward, ok := p.Clock.(*clock.Forward)
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
		p.Logger.Warn("the state is ahead of this machine's clock, which was wrong at one time. Servo continues from the time of the state: "+
			"times of new runs are ahead by as much, until the clock catches up",
			slog.String("state", event.At(recorded).String()), slog.Duration("ahead", lead.Round(time.Second)))
	}
}

// follow is Follow of the newest revision, if there is one that can be read.
func (p *Parts) follow(ctx context.Context) error {
	m, err := p.Manifests.Load(ctx)
	if err == nil {
		p.Follow(m)
	}
	return ctx.Err() // opening the state says what is wrong with it
}

// Close closes the store.
func (p *Parts) Close() error { return p.Closer.Close() }

// Reader follows the folder's published states from outside the owner.
func (p *Parts) Reader() *snapshot.Reader {
	return snapshot.NewReader(p.Domain, p.Codec, p.Manifests, p.Clock)
}

// Start takes the state folder, brings its state up to date, fills the queue with
// what the state says is under way, and serves. If another process owns the
// folder the error is a [*LockedError].
func Start(ctx context.Context, opts Options) (_ *Stack, err error) {
	if err := opts.Domain.Validate(); err != nil {
		return nil, err
	}
	if err := CheckListen(opts.Listen); err != nil {
		return nil, err
	}
	if strings.Contains(opts.Dir, "://") {
		return nil, fmt.Errorf("%s is no folder: its services own it, and this cannot be done here", opts.Dir)
	}
	if err := MakeFolder(opts.Dir); err != nil {
		return nil, err
	}
	held, err := acquire(opts.Dir)
	if err != nil {
		return nil, err
	}
	s := &Stack{opts: opts, lock: held, token: newToken(), published: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if s.parts, err = OpenParts(opts); err != nil {
		return nil, err
	}
	s.opts.Clock = s.parts.Clock
	if err := s.parts.follow(ctx); err != nil {
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

// build makes the services and joins them.
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
	p := s.parts
	s.compactor, err = compactor.Open(ctx, compactor.Config{
		Domain: p.Domain, Store: p.Objects, Manifests: p.Manifests, Codec: p.Codec, IDs: p.IDs, Clock: p.Clock,
		Writer: fmt.Sprintf("servo/%d", os.Getpid()), Logger: p.Logger, Traces: s.opts.Traces,
		OnPublish: func(published compactor.Published) {
			s.dispatch.React(published)
			s.collectLater()
		},
		OnTrouble:     s.folding.note,
		OnTroubleOver: func() { s.folding.note(nil, time.Time{}) },
		Options:       compactor.Options{Retention: manifest.OneMachine()},
	})
	if err != nil {
		return err
	}
	appender := ledger.NewAppender(ledger.Config{
		Domain: p.Domain, Store: watched{p.Objects, p.Clock, &s.appending}, IDs: p.IDs, Clock: p.Clock, Logger: p.Logger,
		Company: company,
		OnDurable: func(e ledger.Entry) {
			s.compactor.Announce(compactor.Request{
				Entries: []compactor.Entry{{ID: e.Name, Data: e.Data, Stored: e.Object.Updated}}, Lazy: !e.Urgent,
			})
		},
	})
	snapshots := inProcess{s.compactor.Latest()}
	s.Engine = engine.New(engine.Config{
		Domain: p.Domain, Store: p.Objects, Appender: appender, Compactor: s.compactor, Snapshots: snapshots,
		IDs: p.IDs, Clock: p.Clock, Actor: s.opts.Actor, Traces: s.opts.Traces,
	})
	s.client = s.owner().Client()
	s.queue = localqueue.New(localqueue.Options{
		Clock: p.Clock, Client: s.client, Logger: p.Logger, Concurrency: s.concurrency,
	})
	s.dispatch = dispatcher.New(dispatcher.Config{
		Domain: p.Domain, Markers: p.Objects, Queue: s.queue, QueueAsks: true, Appender: appender, Compactor: s.compactor, Snapshots: snapshots,
		Keys: keys, WorkerURL: func(string) string { return cmp.Or(s.opts.WorkerURL, s.URL) }, BaseURL: s.URL,
		IDs: p.IDs, Clock: p.Clock, Logger: p.Logger, Traces: s.opts.Traces,
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
	p := s.parts
	s.worker, err = worker.Open(worker.Config{
		Store: p.Store, Clock: p.Clock, Nonce: p.IDs.New, Keyring: keys, HTTPClient: newClient(),
		WorkerID:   fmt.Sprintf("local-%d", os.Getpid()),
		ScratchDir: filepath.Join(s.opts.Dir, scratchDir),
		Logger:     p.Logger, Traces: s.opts.Traces, Environ: s.opts.Environ, Secrets: s.opts.Secrets, Redactor: s.opts.Redactor, ServoBin: s.opts.Program,
		HeartbeatEvery: heartbeatEvery, MaxConcurrent: s.concurrency(""),
		DuckDB: s.opts.DuckDB,
	})
	return err
}

func (s *Stack) buildServer() {
	p := s.parts
	mux := http.NewServeMux()
	find := func(_ context.Context, d ids.Domain) (*dispatcher.Dispatcher, error) {
		if d != p.Domain {
			return nil, nil //nolint:nilnil // a domain that is not served here is no error
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
	handleRest(mux)
	s.server = &http.Server{Handler: localOnly(requireToken(mux, s.token)), ReadHeaderTimeout: headerTimeout, ConnContext: withPeer}
}

// owner is what other processes learn about this one.
func (s *Stack) owner() Owner {
	return Owner{PID: os.Getpid(), URL: s.URL, Domain: s.opts.Domain.String(), Token: s.token}
}

const (
	// heartbeatEvery is how often a local worker asks whether it is to stop; few of
	// these become ledger events.
	heartbeatEvery = time.Second
	headerTimeout  = 10 * time.Second
	// reconcileEvery is how often the projections are looked at while work waits.
	reconcileEvery = 5 * time.Second
	// sweepEvery is how many of those make a sweep.
	sweepEvery = 12
	// company is how long it may take that a start is in the ledger: a task that is
	// shorter is told of in one entry. This process is always there to see to it.
	company = 250 * time.Millisecond
)

// run starts the goroutines, but for the queue's. They end when Close is called,
// with the context that it gives.
func (s *Stack) run(ctx context.Context) context.Context {
	ctx, s.stop = context.WithCancel(ctx)
	s.group, ctx = errgroup.WithContext(ctx)
	s.group.Go(func() error { return s.Appender.Run(ctx) })
	s.group.Go(func() error { return s.compactor.Run(ctx) })
	s.group.Go(func() error { return s.dispatch.Run(ctx) })
	s.group.Go(func() error { return s.maintain(ctx) })
	s.group.Go(func() error { return s.rest(ctx) })
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

// resume folds what the ledger holds beyond the last revision, and fills the
// queue, which is empty in a new process, under the same names as before. The
// queue begins to deliver, tasks and timers, only when the state is as it should
// be for that.
func (s *Stack) resume(ctx, running context.Context) error {
	patient, stop := s.patient(ctx)
	result, err := s.compactor.Compact(patient, compactor.Request{Barrier: true})
	if cause := context.Cause(patient); err != nil && cause != nil {
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
	// adopted bounds the signs of life of one group: a ledger group has 1 MiB at most.
	adopted = 100
	// adoptWithin is how long a disk that cannot be written holds up the start,
	// before it fails.
	adoptWithin = 30 * time.Second
)

// patient is a context that ends, and says why, when the folder has not been
// writable for adoptWithin: what is to be folded may take long, a full disk not.
func (s *Stack) patient(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s.opts.Clock.Sleep(ctx, time.Second) == nil {
			if since, err := s.Trouble(); err != nil && s.opts.Clock.Now().Sub(since) >= adoptWithin {
				cancel(err)
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// adopt gives a sign of life for every attempt that was running when the last
// owner ended: this process is about to execute it again. However long nobody
// owned the folder, silence until now says nothing about an attempt, and the
// liveness timer, long due, must not be let loose on it.
func (s *Stack) adopt(ctx context.Context, snap *snapshot.Snapshot) (*snapshot.Snapshot, error) {
	var beats []*event.Envelope
	now := event.At(s.opts.Clock.Now())
	for row := range snap.State.Heartbeats.All { // attempts that run have one, and no others
		t := snap.State.Tasks.Get(row.Key())
		if t == nil || t.State != state.TaskRunning {
			continue
		}
		beats = append(beats, &event.Envelope{Domain: s.opts.Domain, CorrelationID: t.RunID, Actor: s.opts.Actor, Payload: &event.TaskHeartbeat{
			AttemptRef: event.AttemptRef{
				RunID: t.RunID, TaskKey: t.TaskKey, Attempt: t.Attempt, AttemptID: t.AttemptID, WorkerID: t.WorkerID,
			},
			HeartbeatAt: now, Progress: row.Progress, Message: "executed again: the process that did so has ended",
		}})
	}
	if len(beats) == 0 {
		return snap, nil
	}
	ctx, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	snap, err := s.fold(ctx, beats)
	if err != nil {
		_, cause := s.Trouble()
		return nil, fmt.Errorf("take over what was running: %w", errors.Join(err, cause))
	}
	return snap, nil
}

// fold appends events, in groups, and gives the first snapshot with all of them.
func (s *Stack) fold(ctx context.Context, events []*event.Envelope) (*snapshot.Snapshot, error) {
	var request compactor.Request
	for group := range slices.Chunk(events, adopted) {
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

// maintain is the backup to every hand-over: while anything is live it looks at
// the projections now and then, and it sleeps when nothing is.
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
			s.opts.Logger.WarnContext(ctx, "reconciliation incomplete; it is repeated", slog.Any("error", err))
		}
	}
}

// rest gives the memory back that work has left behind, each time that there has
// been none for a while.
func (s *Stack) rest(ctx context.Context) error {
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

// Sweep runs anti-entropy now.
func (s *Stack) Sweep(ctx context.Context) error {
	result, err := s.compactor.Compact(ctx, compactor.Request{Barrier: true})
	if err != nil {
		return err
	}
	return s.dispatch.Sweep(ctx, result.Revision)
}

// Trouble is why the ledger or the state cannot be written, and since when; nil
// when all is well.
func (s *Stack) Trouble() (since time.Time, err error) {
	if since, err = s.appending.get(); err != nil {
		return since, err
	}
	return s.folding.get()
}

// Done is closed, or rather returns, when the stack has ended by itself; the
// error says why.
func (s *Stack) Done() error { return s.group.Wait() }

// answerWithin is how long a closing stack takes to answer a worker of another
// process: what is not answered is reported again and again, for nobody.
const answerWithin = time.Second

// settleWithin is how long a closing stack may take to publish what it is merging:
// otherwise short runs would begin the same merge again and again, and end none.
const settleWithin = 3 * time.Second

func (s *Stack) settle() {
	settling, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	if _, err := s.compactor.Compact(settling, compactor.Request{Settle: true}); err != nil {
		s.opts.Logger.Debug("what was being merged is left to the next start", slog.Any("error", err))
	}
	if err := s.compactor.Shrink(settling); err != nil {
		s.opts.Logger.Debug("old revisions are left to the next start", slog.Any("error", err))
	}
}

// Close ends the stack: executions are broken off, not reported, and go on where
// the state says they were when the folder is opened again.
func (s *Stack) Close() error {
	var err error
	if s.stop != nil {
		if s.worker == nil {
			answering, cancel := context.WithTimeout(context.Background(), answerWithin)
			_ = s.server.Shutdown(answering) // what takes longer is cut off below
			cancel()
		}
		s.settle()
		s.collect(context.Background(), closingWithin)
		s.stop()
		err = s.group.Wait()
		s.client.CloseIdleConnections() // a worker that is to end waits for those that were never used
	}
	if s.worker != nil {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.worker.Close(gone) // nobody takes reports any more: what runs is killed, not waited for
	}
	s.release()
	return err
}

func (s *Stack) release() {
	if s.listener != nil {
		_ = s.listener.Close() // closed already when the stack had run
	}
	if s.parts != nil {
		_ = s.parts.Store.Close()
	}
	s.lock.release(s.opts.Dir)
}
