// Package cloudsim is Servo as it runs in a cloud, in one process: the compactor,
// the dispatcher and the sweeper as the services that they are, and a worker, on
// an object store, a task queue, notifications and a network that take as long,
// and are billed, as those of a cloud.
//
// What runs is the code of the services, as package service wires it: who appends
// tells the compactor of the entry over HTTP, and the compactor tells the
// dispatcher of the revision; notifications of new ledger entries and manifests
// arrive as well, later, and are the backbone that nothing has to wait for.
//
// Time is real: what the code computes takes its time beside what is modelled. The
// services share the machine's cores, which in a cloud each has to itself.
package cloudsim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/cloudblob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/latency"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/cloudqueue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// Options are what a cloud runs with.
type Options struct {
	Model Model
	// Seed decides what is drawn.
	Seed uint64
	// Dir is a folder for signing keys and the worker's scratch. The caller removes it.
	Dir    string
	Domain ids.Domain
	// Concurrency is how many tasks are executed at once; 0: as many as the queue
	// delivers.
	Concurrency int
	// Compactors is how many instances the compactor has; 0: one.
	Compactors int
	// Executor does the work of all tasks.
	Executor worker.Executor
	// Codec encodes states; nil: as Parquet.
	Codec  *snapshot.Codec
	Clock  clock.Clock
	Logger *slog.Logger
	// Stderr is where services log what fails.
	Stderr io.Writer
	// Actor is who asks: "user:jane".
	Actor string
}

// Cloud is a cloud that runs. Make it with [Start].
type Cloud struct {
	// Engine is that of a client: what it does is billed, too.
	Engine *engine.Engine
	// Watch shows the published states as who stands beside the cloud sees them: at
	// once, and at no cost.
	Watch *snapshot.Reader

	opts    Options
	network *network
	store   *cloudblob.Store
	queue   *cloudqueue.Queue
	push    *pubsub
	worker  *worker.Worker

	stop    context.CancelFunc
	running sync.WaitGroup
	mu      sync.Mutex
	failed  error
}

// Hosts of the network.
const (
	compactorHost  = "compactor"
	dispatcherHost = "dispatcher"
	sweeperHost    = "sweeper"
	workerHost     = "worker"

	sweepEvery = "60s"
	keysFile   = "keys.json"
)

// Start starts a cloud whose store is empty.
func Start(ctx context.Context, opts Options) (*Cloud, error) {
	if opts.Concurrency <= 0 {
		opts.Concurrency = cloudqueue.MaxConcurrent
	}
	if opts.Codec == nil {
		opts.Codec = snapshot.NewCodec()
	}
	random := latency.NewSource(rand.New(rand.NewPCG(opts.Seed, opts.Seed))) //nolint:gosec // waiting times are no secret
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &Cloud{opts: opts, network: newNetwork(opts.Model.HTTP, opts.Clock, random), stop: stop}
	c.push = newPubsub(run, opts, random, c.network.client(latency.Dist{}))
	objects := memblob.New(memblob.Options{Now: opts.Clock.Now})
	c.store = cloudblob.New(objects, cloudblob.Config{
		Model: opts.Model.Store, Clock: opts.Clock, Random: random, Written: c.push.written,
	})
	c.Watch = snapshot.NewReader(opts.Domain, opts.Codec, c.manifests(objects, ids.NewSource(opts.Clock.Now, nil)), opts.Clock)
	c.startQueue(run, random)
	err := c.startWorker()
	if err == nil {
		err = c.startServices(ctx, run)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	c.Engine = c.client()
	return c, nil
}

func (c *Cloud) manifests(store blob.Store, source *ids.Source) *manifest.Store {
	return manifest.New(manifest.Config{
		Domain: c.opts.Domain, Store: store, IDs: source, Clock: c.opts.Clock, Logger: c.opts.Logger,
	})
}

// client is what whoever triggers runs works with.
func (c *Cloud) client() *engine.Engine {
	o, source := c.opts, ids.NewSource(c.opts.Clock.Now, nil)
	return engine.New(engine.Config{
		Domain: o.Domain, Store: c.store, IDs: source, Clock: o.Clock, Actor: o.Actor,
		Appender:  ledger.NewAppender(ledger.Config{Domain: o.Domain, Store: c.store, IDs: source, Clock: o.Clock, Logger: o.Logger}),
		Compactor: &compactor.Client{Domain: o.Domain, URL: urlOf(compactorHost), HTTP: c.network.client(o.Model.HTTP)},
		Snapshots: snapshot.NewReader(o.Domain, o.Codec, c.manifests(c.store, source), o.Clock),
	})
}

func (c *Cloud) startQueue(run context.Context, random *latency.Source) {
	var local *localqueue.Queue
	c.queue = cloudqueue.New(
		cloudqueue.Config{Model: c.opts.Model.Queue, Clock: c.opts.Clock, Random: random},
		c.network.client(latency.Dist{}), // the way is part of the queue's own latency
		func(client *http.Client) queue.Queue {
			local = localqueue.New(localqueue.Options{
				Clock: c.opts.Clock, Client: client, Logger: c.opts.Logger, Concurrency: c.concurrency,
			})
			return local
		})
	c.running.Go(func() { c.fail(local.Run(run)) })
}

func (c *Cloud) concurrency(name string) int {
	if name == control.TimerQueue {
		return cloudqueue.MaxConcurrent
	}
	return c.opts.Concurrency
}

func (c *Cloud) startWorker() error {
	keys, err := service.OpenKeys(c.keys())
	if err != nil {
		return err
	}
	o := c.opts
	c.worker, err = worker.Open(worker.Config{
		Store: c.store, Clock: o.Clock, Nonce: ids.NewSource(o.Clock.Now, nil).New, Keyring: keys,
		HTTPClient: c.network.client(o.Model.HTTP), WorkerID: workerHost, ScratchDir: filepath.Join(o.Dir, "scratch"),
		Logger: o.Logger, MaxConcurrent: o.Concurrency, Executor: o.Executor,
	})
	if err != nil {
		return err
	}
	c.network.serve(workerHost, c.worker.Handler(), context.Background())
	return nil
}

func (c *Cloud) keys() string { return filepath.Join(c.opts.Dir, keysFile) }

// startServices starts the services, and waits until they serve.
func (c *Cloud) startServices(ctx, run context.Context) error {
	type started struct {
		host string
		main func(context.Context, service.Process) int
		args []string
	}
	services := slices.Repeat([]started{
		{compactorHost, service.RunCompactor, []string{"--dispatcher-url", urlOf(dispatcherHost)}},
	}, max(1, c.opts.Compactors))
	for i, s := range append(services, []started{
		{dispatcherHost, service.RunDispatcher, []string{
			"--compactor-url", urlOf(compactorHost), "--worker-url", urlOf(workerHost), "--keys", c.keys(),
			"--concurrency", strconv.Itoa(c.opts.Concurrency),
		}},
		{sweeperHost, service.RunSweeper, []string{
			"--compactor-url", urlOf(compactorHost), "--dispatcher-url", urlOf(dispatcherHost), "--every", sweepEvery,
		}},
	}...) {
		ended := make(chan struct{})
		c.running.Go(func() {
			defer close(ended)
			if code := s.main(run, c.process(s.host, fmt.Sprintf("%s-%d", s.host, i), s.args)); code != 0 {
				c.fail(fmt.Errorf("the %s ended with code %d", s.host, code))
			}
		})
		select {
		case <-c.network.serving(s.host):
		case <-ended:
			return c.failure()
		case <-ctx.Done():
			return fmt.Errorf("start the %s: %w", s.host, ctx.Err())
		}
	}
	return nil
}

// process is the world that a service is started in.
func (c *Cloud) process(host, instance string, args []string) service.Process {
	return service.Process{
		Args: append([]string{
			"--store", "simulated", "--listen", "127.0.0.1:0", "--log-level", "error",
		}, args...),
		Getenv: func(string) string { return "" }, Stderr: c.opts.Stderr, Clock: c.opts.Clock, Instance: instance,
		Network: member{c.network, host}, Codec: c.opts.Codec,
		OpenStore: func(context.Context, string) (blob.Store, io.Closer, error) { return c.store, io.NopCloser(nil), nil },
		OpenQueue: func(context.Context, service.QueueOptions) (queue.Queue, func(context.Context) error, error) {
			return c.queue, nil, nil
		},
	}
}

// Usage is what has been asked of the cloud since it was started.
func (c *Cloud) Usage() Usage {
	calls, deliveries := c.queue.Operations()
	messages, pushes := c.push.counts()
	return Usage{Store: c.store.Usage(), QueueCalls: calls, QueueDeliveries: deliveries, Messages: messages, MessagePushes: pushes}
}

// Close ends the cloud, and says what ended by itself before.
func (c *Cloud) Close() error {
	c.stop()
	c.running.Wait()
	c.push.close()
	if c.worker != nil {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.worker.Close(gone) // nobody takes reports any more
	}
	return c.failure()
}

func (c *Cloud) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = errors.Join(c.failed, err)
}

func (c *Cloud) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// backoff is how long who sends something waits before it tries again.
func backoff(tries int) time.Duration {
	const first, most = 100 * time.Millisecond, 10 * time.Second
	return min(first<<min(tries, 10), most) //nolint:mnd // beyond that it is most anyway
}
