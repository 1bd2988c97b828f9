// Package domain opens domains. All code that works on a domain shares one handle, which holds the ports of the domain.
// This package is not a stable API.
package domain

import (
	"context"
	"crypto/rand"
	"log/slog"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// Handle is an open domain. Create one with [Open]. It is safe for concurrent use.
type Handle struct {
	Domain    ids.Domain
	Store     blob.Store
	Manifests *manifest.Store
	Codec     *snapshot.Codec
	// IDs serves only this domain: an id that it observes must not advance the ids of other domains.
	IDs    *ids.Source
	Clock  clock.Clock
	Logger *slog.Logger
}

// Open returns a handle with the given ports. It replaces each port that is nil with a default: a new codec, id source
// or manifest store, the machine's clock, or a logger that discards everything.
func Open(h Handle) *Handle {
	if h.Clock == nil {
		h.Clock = clock.System{}
	}
	if h.Logger == nil {
		h.Logger = slog.New(slog.DiscardHandler)
	}
	if h.IDs == nil {
		h.IDs = ids.NewSource(h.Clock.Now, rand.Reader)
	}
	if h.Codec == nil {
		h.Codec = snapshot.NewCodec()
	}
	if h.Manifests == nil {
		h.Manifests = manifest.New(manifest.Config{Domain: h.Domain, Store: h.Store, IDs: h.IDs, Clock: h.Clock, Logger: h.Logger, Decoder: h.Codec.Decoder(h.Domain)})
	}
	return &h
}

// Load returns the newest manifest. Ids that are created afterwards sort after all ids in the
// state. Load returns [manifest.ErrNone] if the domain has no state.
func (h *Handle) Load(ctx context.Context) (*manifest.Manifest, error) {
	m, err := h.Manifests.Load(ctx)
	if err != nil {
		return nil, err
	}
	h.IDs.Observe(m.Watermarks.EventsProcessedThrough)
	h.IDs.Observe(m.Watermarks.CompleteThrough)
	return m, nil
}

// Reader returns a reader of the published states, for processes that do not compact the domain.
func (h *Handle) Reader() *snapshot.Reader {
	return snapshot.NewReader(h.Domain, h.Codec, h.Manifests, h.Clock)
}

// Appender returns an appender to the domain's ledger. The handle provides the ports of cfg.
func (h *Handle) Appender(cfg ledger.Config) *ledger.Appender {
	cfg.Domain, cfg.IDs, cfg.Clock, cfg.Logger = h.Domain, h.IDs, h.Clock, h.Logger
	if cfg.Store == nil {
		cfg.Store = h.Store
	}
	return ledger.NewAppender(cfg)
}
