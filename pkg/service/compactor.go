package service

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// compact runs the compactor service: POST /v1/compact and /v1/notifications.
func compact(ctx context.Context, p Process, cfg config, logger *slog.Logger) error {
	s, err := listen(ctx, compactorName, cfg, p, logger)
	if err != nil {
		return err
	}
	store, closeStore, err := p.open(ctx, cfg, s)
	if err != nil {
		return err
	}
	defer closeStore()
	p.Compactor.Tiers.KeepRuns = cmp.Or(p.Compactor.Tiers.KeepRuns, cfg.KeepRuns)
	p.Compactor.Wakeups, p.Compactor.Shared = true, true // sweepers need wakeups; several instances may run
	c := &compactors{
		store: store, codec: p.Codec, entropy: p.Entropy, server: s, options: p.Compactor,
		writer: s.name + "/" + p.Instance, archiving: make(chan struct{}, 1),
	}
	if cfg.DispatcherURL != "" {
		client, err := p.client(cfg)
		if err != nil {
			return errors.Join(err, s.endpoint.Close())
		}
		defer client.CloseIdleConnections()
		client = p.traces.Client(client)
		c.handOver = newRelay(p.Clock, logger, func(a, b int64) int64 { return max(a, b) },
			func(ctx context.Context, d ids.Domain, revision int64) error {
				return (&dispatcher.Client{Domain: d, URL: cfg.DispatcherURL, HTTP: client}).HandOver(ctx, revision, false)
			})
		c.handOver.sent = s.countHandOver
		s.background = append(s.background, c.handOver.run)
	}
	domains := newRegistry(s.metrics, p.Clock, c.open)
	domains.limitBytes = cfg.CacheBytes
	s.background = append(s.background, domains.run)
	s.sampleBacklogs(domains.values)
	remote.Register(s.mux, func(ctx context.Context, d ids.Domain) (*compactor.Compactor, error) {
		found, _, err := domains.get(ctx, d)
		return found, err
	})
	return s.serve(ctx)
}

// compactors opens the compactors of domains and runs them.
type compactors struct {
	store   blob.Store
	codec   *snapshot.Codec
	entropy io.Reader // source of randomness for ids
	server  *server
	options compactor.Options
	writer  string // the name of this process in manifests
	// archiving is a semaphore that admits one domain at a time, because the archiving of a domain needs up to 130 MiB.
	archiving chan struct{}
	handOver  *relay[int64] // nil: revisions are not announced
}

// open opens the compactor of a domain. It returns nil if the domain has neither a state nor an
// entry: callers could name any number of such domains.
func (c *compactors) open(ctx context.Context, d ids.Domain) (*served[*compactor.Compactor], error) {
	s := c.server
	h := domain.Handle{Domain: d, Store: c.store, Codec: c.codec, IDs: ids.NewSource(s.clock.Now, c.entropy), Clock: s.clock, Logger: s.logger}
	h.Manifests = manifest.New(manifest.Config{
		Domain: h.Domain, Store: h.Store, IDs: h.IDs, Clock: h.Clock, Logger: h.Logger, Decoder: h.Codec.Decoder(h.Domain),
		OnStored: func(revision int64) { // the dispatcher checks whether the revision is committed
			if c.handOver != nil {
				c.handOver.put(d, revision)
			}
		},
	})
	opened, err := compactor.Open(ctx, compactor.Config{
		Handle: domain.Open(h), Options: c.options, ArchiveSlots: c.archiving, Writer: c.writer, Traces: s.traces,
		OnPublish: func(p compactor.Published) {
			s.metrics.Add(publishes, 1)
			s.metrics.Add(publishedRows, float64(p.Changed.Len()))
		},
		OnFailure: func(error, time.Time) { s.metrics.Add(compactionFailures, 1) },
		OnPhase:   s.measurePhase,
	})
	if err != nil {
		return nil, err
	}
	if snap, _ := opened.Latest().Get(); snap.Revision == 0 {
		entry, err := first(ctx, c.store, ledger.Prefix(d), "")
		if entry == "" || err != nil {
			return nil, err
		}
	}
	size := func() int64 {
		snap, _ := opened.Latest().Get()
		return snap.State.Bytes()
	}
	return &served[*compactor.Compactor]{value: opened, bytes: size, run: func(ctx context.Context) {
		if err := opened.Run(ctx); err != nil {
			s.logger.ErrorContext(ctx, "compactor ended", slog.String("domain", d.String()), slog.Any("error", err))
		}
	}}, nil
}

// measurePhase records a fold or a publish.
func (s *server) measurePhase(phase compactor.Phase, took time.Duration, err error) {
	switch {
	case phase == compactor.PhaseFold:
		s.metrics.Observe(foldDuration, took)
	case errors.Is(err, manifest.ErrConflict) || errors.Is(err, manifest.ErrNotCommitted):
		s.metrics.Add(publishConflicts, 1)
		s.metrics.Observe(publishDuration, took, resultConflict)
	default:
		s.metrics.Observe(publishDuration, took, resultOf(err))
	}
}

// sampleBacklogs registers the gauges about entries that are not folded. They are computed from the open compactors
// whenever the metrics are read.
func (s *server) sampleBacklogs(open func() []*compactor.Compactor) {
	s.metrics.Sample(oldestUnfolded, func() float64 {
		age, now := time.Duration(0), s.clock.Now()
		for _, c := range open() {
			if b := c.Backlog(); !b.Oldest.IsZero() {
				age = max(age, now.Sub(b.Oldest))
			}
		}
		return age.Seconds()
	})
	s.metrics.Sample(unreadableEntries, func() float64 {
		n := 0
		for _, c := range open() {
			n += c.Backlog().Unreadable
		}
		return float64(n)
	})
	s.metrics.Sample(listingLag, func() float64 {
		lag := time.Duration(0)
		for _, c := range open() {
			lag = max(lag, c.Backlog().ListingLag)
		}
		return lag.Seconds()
	})
}
