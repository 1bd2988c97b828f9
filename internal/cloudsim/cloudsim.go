// Package cloudsim runs a whole cloud installation of Servo in one process: the services compactor, dispatcher and
// sweeper, and a worker. Their object store, task queue, notifications and network have the latencies and prices of a
// cloud.
//
// The services run their real code, as package service wires it. A client that appends an entry announces it to the
// compactor over HTTP, and the compactor announces the revision to the dispatcher. Notifications of new entries and
// manifests arrive later. They guarantee progress if an announcement is lost; usually nothing waits for them.
//
// Time is real: computation takes its time in addition to the modelled latencies. The services
// share the machine's cores; in a cloud each has its own.
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

	"github.com/servo-orchestration/servo/internal/cloudblob"
	"github.com/servo-orchestration/servo/internal/cloudqueue"
	"github.com/servo-orchestration/servo/internal/latency"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// Options are the settings of a cloud.
type Options struct {
	Model Model
	// Seed determines the random latencies.
	Seed uint64
	// Dir is a folder for signing keys and the worker's scratch files. The caller removes it.
	Dir    string
	Domain ids.Domain
	// Concurrency is the number of tasks that are executed at once; 0 means as many as the
	// queue delivers.
	Concurrency int
	// Compactors is the number of instances of the compactor; 0 means 1.
	Compactors int
	// Executor executes all tasks.
	Executor worker.Executor
	// Codec encodes states; nil means Parquet.
	Codec  *snapshot.Codec
	Clock  clock.Clock
	Logger *slog.Logger
	// Stderr receives the services' logs.
	Stderr io.Writer
	// Actor is the user of the client, for example "user:jane".
	Actor string
}

// Cloud is a running cloud. [Start] creates it.
type Cloud struct {
	// Engine is a client's engine. Its operations are also billed.
	Engine *engine.Engine
	// Watch reads published states without the latency and the cost of the simulated cloud.
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
	random := latency.NewSource(rand.New(rand.NewPCG(opts.Seed, opts.Seed))) //nolint:gosec // latencies need no secure random numbers
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	c := &Cloud{opts: opts, network: newNetwork(opts.Model.HTTP, opts.Clock, random), stop: stop}
	c.push = newPubsub(run, opts, random, c.network.client(latency.Dist{}))
	objects := memblob.New(memblob.Options{Now: opts.Clock.Now})
	c.store = cloudblob.New(objects, cloudblob.Config{
		Model: opts.Model.Store, Clock: opts.Clock, Random: random, Written: c.push.written,
	})
	c.Watch = c.handle(objects).Reader()
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

func (c *Cloud) handle(store blob.Store) *domain.Handle {
	o := c.opts
	return domain.Open(domain.Handle{Domain: o.Domain, Store: store, Codec: o.Codec, Clock: o.Clock, Logger: o.Logger})
}

// client returns the engine of a client that triggers runs.
func (c *Cloud) client() *engine.Engine {
	o, h := c.opts, c.handle(c.store)
	return engine.New(engine.Config{
		Handle:    h,
		Appender:  h.Appender(ledger.Config{}),
		Compactor: &remote.Client{Domain: o.Domain, URL: urlOf(compactorHost), HTTP: c.network.client(o.Model.HTTP)},
		Snapshots: h.Reader(),
	}).As(o.Actor)
}

func (c *Cloud) startQueue(run context.Context, random *latency.Source) {
	var local *localqueue.Queue
	c.queue = cloudqueue.New(
		cloudqueue.Config{Model: c.opts.Model.Queue, Clock: c.opts.Clock, Random: random},
		c.network.client(latency.Dist{}), // the queue's own latency includes the network
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

// startServices starts the services and waits until they serve.
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

// process returns the environment in which a service starts.
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

// Usage returns the operations since the cloud was started.
func (c *Cloud) Usage() Usage {
	calls, deliveries := c.queue.Operations()
	messages, pushes := c.push.counts()
	return Usage{Store: c.store.Usage(), QueueCalls: calls, QueueDeliveries: deliveries, Messages: messages, MessagePushes: pushes}
}

// Close stops the cloud. It returns the errors of services that had already ended.
func (c *Cloud) Close() error {
	c.stop()
	c.running.Wait()
	c.push.close()
	if c.worker != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.worker.Close(ended) // do not wait: no service accepts reports any more
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

// backoff returns the delay before a retry.
func backoff(tries int) time.Duration {
	const first, most = 100 * time.Millisecond, 10 * time.Second
	return min(first<<min(tries, 10), most) //nolint:mnd // avoids overflow
}
