package service

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// dispatch is the dispatcher service: callbacks of workers, calls of timers,
// POST /v1/reconcile and /v1/notifications.
func dispatch(ctx context.Context, p Process, cfg config, logger *slog.Logger) error {
	keys, workerKeys, err := cfg.keys()
	if err != nil {
		return err
	}
	s, err := listen(ctx, "servo-dispatcher", cfg, p, logger)
	if err != nil {
		return err
	}
	store, closeStore, err := p.open(ctx, cfg, s)
	if err != nil {
		return err
	}
	defer closeStore()
	client, err := p.client(cfg)
	if err != nil {
		return errors.Join(err, s.endpoint.Close())
	}
	defer client.CloseIdleConnections()
	q, run, err := p.OpenQueue(ctx, QueueOptions{
		Name: cfg.Queue, Prefix: cfg.QueuePrefix, Account: cfg.QueueAccount, Audience: cfg.QueueAudience,
		Clock: p.Clock, Logger: logger, Client: client, Concurrency: cfg.concurrency,
	})
	if err != nil {
		return errors.Join(err, s.endpoint.Close())
	}
	calls := p.traces.Client(client) // the queue's deliveries are traced where they are served
	d := &dispatchers{
		server: s, cfg: cfg, keys: keys, workerKeys: workerKeys, store: store, codec: p.Codec, entropy: p.Entropy,
		queue: &countedQueue{Queue: q, metrics: s.metrics, timers: control.TimerQueue},
		client: func(d ids.Domain) *compactor.Client {
			return &compactor.Client{Domain: d, URL: cfg.CompactorURL, HTTP: calls}
		},
	}
	weights, err := cfg.weights()
	if err != nil {
		return errors.Join(err, s.endpoint.Close())
	}
	d.turns = dispatcher.NewTurns(p.Clock, queueCalls, cfg.DispatchRate, weights)
	d.turns.OnWaiting = func(more int) { s.metrics.Add("servo_dispatches_waiting", float64(more)) }
	if d.workers, err = cfg.workers(); err != nil {
		return errors.Join(err, s.endpoint.Close())
	}
	if d.base = strings.TrimSuffix(cfg.URL, "/"); d.base == "" {
		d.base = s.url()
	}
	d.announce = newRelay(p.Clock, logger, announcement.with, d.announceNow)
	d.announce.delay, d.announce.sent = announcement.delay, s.countHandOver
	domains := newRegistry(s.metrics, p.Clock, d.open)
	domains.limitBytes = cfg.CacheBytes
	find := func(ctx context.Context, domain ids.Domain) (*dispatcher.Dispatcher, error) {
		found, _, err := domains.get(ctx, domain)
		return found, err
	}
	dispatcher.Register(s.mux, find, keys, p.Clock)
	dispatcher.RegisterControl(s.mux, find)
	s.background = append(s.background, d.announce.run, domains.run)
	if run != nil { // the queue is in this process, and empty
		s.ready = d.filled
		s.background = append(s.background, run, func(ctx context.Context) error { return d.fill(ctx, find) })
	}
	return s.serve(ctx)
}

// dispatchers opens the dispatchers of domains.
type dispatchers struct {
	server           *server
	cfg              config
	workers          map[string]string // of queues that have their own
	base             string            // where workers and the queue reach this service
	keys, workerKeys contract.Keyring
	store            blob.Store
	codec            *snapshot.Codec
	entropy          io.Reader // of ids
	queue            queue.Queue
	client           func(ids.Domain) *compactor.Client
	announce         *relay[announcement]
	turns            *dispatcher.Turns
	full             atomic.Bool
}

// open opens the dispatcher of a domain; nil if the domain has no state, and so
// nothing that anybody could report on.
func (d *dispatchers) open(ctx context.Context, domain ids.Domain) (*served[*dispatcher.Dispatcher], error) {
	s := d.server
	source := ids.NewSource(s.clock.Now, d.entropy) // its own: what it observes must not move the ids of other domains
	manifests := manifest.New(manifest.Config{Domain: domain, Store: d.store, IDs: source, Clock: s.clock, Logger: s.logger})
	m, err := manifests.Load(ctx)
	if errors.Is(err, manifest.ErrNone) {
		return nil, nil //nolint:nilnil // as it says
	}
	if err != nil {
		return nil, err
	}
	// Ids of this process must come after what the state has seen.
	source.Observe(m.Watermarks.EventsProcessedThrough)
	source.Observe(m.Watermarks.CompleteThrough)
	appender := ledger.NewAppender(ledger.Config{
		Domain: domain, Store: d.store, IDs: source, Clock: s.clock, Logger: s.logger, Company: company,
		OnDurable: func(e ledger.Entry) { d.announce.put(domain, announced(e)) },
	})
	snapshots := snapshot.NewReader(domain, d.codec, manifests, s.clock)
	opened := dispatcher.New(dispatcher.Config{
		Domain: domain, Markers: d.store, Queue: d.queue, Compactor: d.client(domain), Keys: d.keys, WorkerKeys: d.workerKeys, Turns: d.turns,
		Snapshots: snapshots,
		WorkerURL: d.workerURL,
		BaseURL:   d.base, IDs: source, Clock: s.clock, Logger: s.logger, Traces: s.traces,
		Appender: appender,
	})
	return &served[*dispatcher.Dispatcher]{value: opened, bytes: snapshots.Bytes, run: func(ctx context.Context) { d.carry(ctx, appender) }}, nil
}

// workerURL is where the tasks of a queue are pushed to.
func (d *dispatchers) workerURL(queue string) string {
	return cmp.Or(d.workers[queue], strings.TrimSuffix(d.cfg.WorkerURL, "/"))
}

// company is how long it may take that a start, and what a queue has taken, is in the
// ledger: of a short task its end comes sooner, in the same entry.
const company = time.Second

// carry has what rides with other entries appended in time.
func (d *dispatchers) carry(ctx context.Context, a *ledger.Appender) {
	_ = a.Run(ctx) // it has no error but ctx's
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), company)
	defer cancel()
	if err := a.Flush(ending); err != nil { // a listing finds it: nobody is told any more
		d.server.logger.WarnContext(ctx, "facts were not appended at the end of the service; they are told again", slog.Any("error", err))
	}
}

// announcement is what the compactor of a domain is to be told of.
type announcement struct {
	entries []compactor.Entry
	bytes   int // of the entries
	urgent  bool
	barrier bool // there were too many to name
}

func announced(e ledger.Entry) announcement {
	a := announcement{entries: []compactor.Entry{{
		ID: e.Name, Data: e.Data, Stored: e.Object.Updated, Proof: compactor.Proof{Generation: e.Object.Generation, CRC32C: e.Object.CRC32C},
	}}, bytes: len(e.Data), urgent: e.Urgent}
	return a.bounded()
}

// Bounds of an announcement: entries beyond the first are found by listing, bytes
// beyond the second are read from the store.
const (
	maxAnnounced      = 5000
	maxAnnouncedBytes = 256 << 10
)

func (a announcement) with(more announcement) announcement {
	a.entries = append(a.entries, more.entries...)
	a.bytes += more.bytes
	a.urgent, a.barrier = a.urgent || more.urgent, a.barrier || more.barrier
	return a.bounded()
}

func (a announcement) bounded() announcement {
	if len(a.entries) > maxAnnounced {
		a.entries, a.bytes, a.barrier = nil, 0, true
	}
	if a.bytes > maxAnnouncedBytes {
		a.bytes = 0
		for i := range a.entries {
			a.entries[i].Data, a.entries[i].Proof = nil, compactor.Proof{}
		}
	}
	return a
}

// delay is how long acknowledgements and signs of life wait for company.
func (a announcement) delay() time.Duration {
	if a.urgent || a.barrier {
		return 0
	}
	return compactor.LazyDelay
}

func (d *dispatchers) announceNow(ctx context.Context, domain ids.Domain, a announcement) error {
	_, err := d.client(domain).Compact(ctx, compactor.Request{Entries: a.entries, Barrier: a.barrier})
	return err
}

// filled reports whether the queue has all that the states say it should.
func (d *dispatchers) filled() error {
	if !d.full.Load() {
		return errors.New("the queue is being filled from the projections")
	}
	return nil
}

// fill fills the queue of this process, which is empty at its start, with what
// the states of all domains say is under way, under the same names as before.
func (d *dispatchers) fill(ctx context.Context, find dispatcher.Finder) error {
	var domains []ids.Domain
	if d.insist(ctx, "list domains", func() (err error) {
		domains, err = Domains(ctx, d.store)
		return err
	}) != nil {
		return nil //nolint:nilerr // the service is ending
	}
	const parallel = 8
	slots := make(chan struct{}, parallel)
	var filling sync.WaitGroup
	for _, domain := range domains {
		slots <- struct{}{}
		filling.Go(func() {
			defer func() { <-slots }()
			_ = d.insist(ctx, "fill the queue of "+domain.String(), func() error { return d.fillOne(ctx, find, domain) })
		})
	}
	filling.Wait()
	d.full.Store(ctx.Err() == nil)
	return nil
}

func (d *dispatchers) fillOne(ctx context.Context, find dispatcher.Finder, domain ids.Domain) error {
	ctx, done := context.WithCancel(ctx) // until when the domain is in use
	defer done()
	// What the last process appended and nobody folded may say that a task has
	// ended: it is folded first.
	result, err := d.client(domain).Compact(ctx, compactor.Request{Barrier: true})
	if err != nil {
		return err
	}
	found, err := find(ctx, domain)
	if err != nil || found == nil {
		return err
	}
	snap, err := found.Snapshots.Await(ctx, result.Revision-1)
	if err != nil {
		return err
	}
	return found.Execute(ctx, snap.Revision, control.Refill(snap.State, event.At(d.server.clock.Now())))
}

// insist does something again, with back-off, until it is done or ctx is.
func (d *dispatchers) insist(ctx context.Context, what string, do func() error) error {
	for backoff := firstBackoff; ; backoff = min(2*backoff, lastBackoff) {
		err := do()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		d.server.logger.WarnContext(ctx, "not done; it is tried again",
			slog.String("what", what), slog.Duration("wait", backoff), slog.Any("error", err))
		if err := d.server.clock.Sleep(ctx, backoff); err != nil {
			return err
		}
	}
}
