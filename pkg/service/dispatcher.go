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

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/automator"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/notifier"
	"github.com/servo-orchestration/servo/pkg/notify"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// dispatch runs the dispatcher service: callbacks of workers, timers, POST /v1/reconcile and
// /v1/notifications.
func dispatch(ctx context.Context, p Process, cfg config, logger *slog.Logger) error {
	keys, workerKeys, err := cfg.keys()
	if err != nil {
		return err
	}
	s, err := listen(ctx, dispatcherName, cfg, p, logger)
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
	// Only calls to other services create spans. The queue uses the plain client, which creates no spans, because the
	// services that receive the queue's deliveries create them.
	calls := p.traces.Client(client)
	d := &dispatchers{
		server: s, cfg: cfg, keys: keys, workerKeys: workerKeys, store: store, codec: p.Codec, entropy: p.Entropy,
		queue: &countedQueue{Queue: q, metrics: s.metrics, clock: s.clock, timers: control.TimerQueue},
		client: func(d ids.Domain) *remote.Client {
			return &remote.Client{Domain: d, URL: cfg.CompactorURL, HTTP: calls}
		},
	}
	if d.send, err = p.sender(cfg); err != nil {
		return errors.Join(err, s.endpoint.Close())
	}
	weights, err := cfg.weights()
	if err != nil {
		return errors.Join(err, s.endpoint.Close())
	}
	d.fairQueue = dispatcher.NewFairQueue(p.Clock, queueCalls, cfg.DispatchRate, weights)
	d.fairQueue.OnWaiting = func(more int) { s.metrics.Add(dispatchesWaiting, float64(more)) }
	d.fairQueue.OnTurn = func(waited time.Duration) { s.metrics.Observe(dispatchWait, waited) }
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
	if run != nil { // a local queue, which is empty at its start
		s.ready = d.filled
		s.background = append(s.background, run, func(ctx context.Context) error { return d.fill(ctx, find) })
	}
	return s.serve(ctx)
}

// dispatchers opens the dispatchers of domains.
type dispatchers struct {
	server           *server
	cfg              config
	workers          map[string]string // URLs of workers that serve one queue each, by queue
	base             string            // URL at which workers and the queue reach this service
	keys, workerKeys contract.Keyring
	store            blob.Store
	codec            *snapshot.Codec
	entropy          io.Reader // source of randomness for ids
	queue            queue.Queue
	client           func(ids.Domain) *remote.Client
	announce         *relay[announcement]
	fairQueue        *dispatcher.FairQueue
	full             atomic.Bool
	// send returns the function that sends the alerts of a tenant.
	send func(tenant string) sendAlert
}

// sendAlert sends a message to a channel.
type sendAlert func(ctx context.Context, c *release.Channel, m *notify.Message) error

// sender returns the value of [dispatchers.send].
func (p Process) sender(cfg config) (func(tenant string) sendAlert, error) {
	allowed, err := cfg.allowed()
	return func(tenant string) sendAlert {
		if p.Send != nil {
			return p.Send
		}
		s := &notify.Sender{Clock: p.Clock, Publish: p.Publish}
		if p.Secrets != nil {
			s.Secrets = allowed.Only(tenant, p.Secrets)
		}
		return s.Send
	}, err
}

// open opens the dispatcher of a domain. It returns nil if the domain has no state, and so no task
// to report on.
func (d *dispatchers) open(ctx context.Context, key ids.Domain) (*served[*dispatcher.Dispatcher], error) {
	s := d.server
	h := domain.Open(domain.Handle{
		Domain: key, Store: d.store, Codec: d.codec, IDs: ids.NewSource(s.clock.Now, d.entropy), Clock: s.clock, Logger: s.logger,
	})
	if _, err := h.Load(ctx); errors.Is(err, manifest.ErrNone) {
		return nil, nil //nolint:nilnil // documented
	} else if err != nil {
		return nil, err
	}
	appender := h.Appender(ledger.Config{
		Linger:   linger,
		OnStored: func(e ledger.Entry) { d.announce.put(key, announced(e)) },
	})
	snapshots := h.Reader()
	e := engine.New(engine.Config{Handle: h, Appender: appender, Compactor: d.client(key), Snapshots: snapshots, Traces: s.traces})
	automation := automator.New(automator.Config{Engine: e, Clock: s.clock, Logger: s.logger})
	alerts := notifier.New(notifier.Config{Engine: e, Clock: s.clock, Logger: s.logger, Send: d.send(key.Tenant)})
	opened := dispatcher.New(dispatcher.Config{
		Handle: h, Queue: d.queue, Appender: appender, Compactor: d.client(key), Snapshots: snapshots,
		OnState: func(st *state.State, overdue bool) {
			if overdue {
				automation.Nudge()
				alerts.Nudge()
			}
			automation.React(st)
			alerts.React(st)
		},
		Keys: d.keys, WorkerKeys: d.workerKeys, FairQueue: d.fairQueue, WorkerURL: d.workerURL, BaseURL: d.base, Traces: s.traces,
	})
	return &served[*dispatcher.Dispatcher]{value: opened, bytes: snapshots.Bytes, run: func(ctx context.Context) {
		var automating sync.WaitGroup
		defer automating.Wait()
		automating.Go(func() { _ = automation.Run(ctx) }) // returns only ctx's error
		automating.Go(func() { _ = alerts.Run(ctx) })
		d.runAppender(ctx, appender)
	}}, nil
}

// workerURL returns the URL to which the tasks of a queue are pushed.
func (d *dispatchers) workerURL(queue string) string {
	return cmp.Or(d.workers[queue], strings.TrimSuffix(d.cfg.WorkerURL, "/"))
}

// linger is how long starts and acknowledgements wait for other events. If a task ends within this time, its start
// and its end are in one entry.
const linger = time.Second

// runAppender writes each buffered event when its linger has passed. When ctx is done, it writes the remaining events
// immediately.
func (d *dispatchers) runAppender(ctx context.Context, a *ledger.Appender) {
	_ = a.Run(ctx) // returns only ctx's error
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), linger)
	defer cancel()
	if err := a.Flush(ending); err != nil { // flushed entries are not announced; a listing finds them
		d.server.logger.WarnContext(ctx, "could not write buffered events at shutdown; workers and the queue will report them again", slog.Any("error", err))
	}
}

// announcement contains the entries to announce to the compactor of a domain.
type announcement struct {
	entries []compactor.Entry
	bytes   int // size of the entries
	urgent  bool
	barrier bool // there are too many entries to name: the compactor lists them
}

func announced(e ledger.Entry) announcement {
	a := announcement{entries: []compactor.Entry{{
		ID: e.Name, Data: e.Data, Stored: e.Object.Updated, Proof: compactor.Proof{Version: e.Object.Version, CRC32C: e.Object.CRC32C},
	}}, bytes: len(e.Data), urgent: e.Urgent}
	return a.bounded()
}

// Limits of an announcement. If an announcement has more than maxAnnounced entries, the compactor lists the ledger.
// If the entries have more than maxAnnouncedBytes together, the compactor reads them from the store.
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

// delay returns how long an announcement waits, so that several announcements are sent as one. Urgent announcements
// and barriers do not wait.
func (a announcement) delay() time.Duration {
	if a.urgent || a.barrier {
		return 0
	}
	return compactor.MaxLinger
}

func (d *dispatchers) announceNow(ctx context.Context, domain ids.Domain, a announcement) error {
	_, err := d.client(domain).Compact(ctx, compactor.Request{Entries: a.entries, Barrier: a.barrier})
	return err
}

// filled returns an error until fill has tried all domains and has created the queue tasks of at least one of them. It
// does not wait for the domains that failed: fill tries these again. If there is no domain, filled returns nil after
// fill has listed the domains.
func (d *dispatchers) filled() error {
	if !d.full.Load() {
		return errors.New("the queue is being filled from the projections")
	}
	return nil
}

// fill creates the queue tasks of all domains in the local queue, because this queue is empty at its start. The tasks
// get the names that they had in the queue of the previous process. If some domains fail, for example because their
// state is damaged, fill tries them again after it has tried all others, so they do not delay the others.
func (d *dispatchers) fill(ctx context.Context, find dispatcher.Finder) error {
	var domains []ids.Domain
	if d.retry(ctx, "list domains", func() (err error) {
		domains, err = Domains(ctx, d.store)
		return err
	}) != nil {
		return nil //nolint:nilerr // the service is ending
	}
	for backoff := firstBackoff; ctx.Err() == nil; backoff = min(2*backoff, lastBackoff) {
		failed := d.fillAll(ctx, find, domains)
		if len(failed) == 0 || len(failed) < len(domains) { // if all domains fail, the compactor may not be running yet
			d.full.Store(ctx.Err() == nil)
		}
		if len(failed) == 0 {
			break
		}
		domains = failed
		_ = d.server.clock.Sleep(ctx, backoff) // an error only means that ctx is done
	}
	return nil
}

// fillAll creates the queue tasks of domains, and returns the domains for which this failed.
func (d *dispatchers) fillAll(ctx context.Context, find dispatcher.Finder, domains []ids.Domain) (failed []ids.Domain) {
	const parallel = 8
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, domain := range domains {
		g.Go(func() error {
			if err := d.fillOne(ctx, find, domain); err != nil && ctx.Err() == nil {
				d.server.logger.WarnContext(ctx, "cannot fill the queue of a domain; will retry", slog.String("domain", domain.String()), slog.Any("error", err))
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, domain)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	return failed
}

func (d *dispatchers) fillOne(ctx context.Context, find dispatcher.Finder, domain ids.Domain) error {
	ctx, done := context.WithCancel(ctx) // the domain stays open until ctx is done
	defer done()
	// The previous process may have appended reports that are not folded yet: fold them first.
	result, err := d.client(domain).Compact(ctx, compactor.Request{Barrier: true})
	if err != nil {
		return err
	}
	found, err := find(ctx, domain)
	if err != nil || found == nil {
		return err
	}
	return found.Refill(ctx, result.Revision)
}

// retry repeats the function do, with backoff, until it succeeds or ctx is done.
func (d *dispatchers) retry(ctx context.Context, what string, do func() error) error {
	for backoff := firstBackoff; ; backoff = min(2*backoff, lastBackoff) {
		err := do()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		d.server.logger.WarnContext(ctx, "failed; will retry",
			slog.String("action", what), slog.Duration("wait", backoff), slog.Any("error", err))
		if err := d.server.clock.Sleep(ctx, backoff); err != nil {
			return err
		}
	}
}
