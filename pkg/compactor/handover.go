package compactor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/ledger"
)

// Proof is the version and the checksum of the stored object of an entry.
type Proof struct {
	Version int64
	CRC32C  uint32
}

// errUnproven means that handed-over bytes may differ from the stored entry. The step is repeated
// and reads the entries from the store.
var errUnproven = errors.New("handed-over bytes differ from the stored entry")

// proof compares handed-over entries with the stored objects, while the compactor decodes and folds the entries.
type proof struct {
	once sync.Once
	wait func() error
	err  error
}

// prove starts a HEAD request for each entry that another process handed over. The caller must call
// done before it publishes, and in any case before it returns.
func (c *Compactor) prove(ctx context.Context, entries []Entry) *proof {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	p := &proof{wait: g.Wait}
	var unproven []Entry
	for _, e := range entries {
		if e.Data != nil && e.Proof != (Proof{}) {
			unproven = append(unproven, e)
		}
	}
	if len(unproven) == 0 {
		return p
	}
	var all sync.WaitGroup
	all.Go(func() { // in a goroutine: g.Go blocks when the limit is reached, and the caller must not wait
		for _, e := range unproven {
			g.Go(func() error { return c.proveEntry(ctx, e) })
		}
	})
	p.wait = func() error {
		all.Wait()
		return g.Wait()
	}
	return p
}

func (c *Compactor) proveEntry(ctx context.Context, e Entry) error {
	stored, err := c.cfg.Store.Head(ctx, ledger.Key(c.cfg.Domain, e.ID))
	if err != nil {
		return fmt.Errorf("fold entry %s: %w: %w", e.ID, errUnproven, err)
	}
	// A store in a folder keeps no checksums, so a handed-over entry cannot be compared with the stored one. The
	// compactor then reads the stored one.
	if stored.Version != e.Proof.Version || stored.CRC32C != e.Proof.CRC32C {
		return fmt.Errorf("fold entry %s: %w: the store has version %d and CRC-32C %08x, and the caller named %d and %08x",
			e.ID, errUnproven, stored.Version, stored.CRC32C, e.Proof.Version, e.Proof.CRC32C)
	}
	return nil
}

// done waits for the requests and returns their first error.
func (p *proof) done() error {
	p.once.Do(func() { p.err = p.wait() })
	return p.err
}

// dropData returns the entries without the content that other processes handed over, so that the compactor reads the
// content from the store.
func (c *Compactor) dropData(ctx context.Context, entries []Entry, why error) []Entry {
	c.cfg.Logger.WarnContext(ctx, "handed-over entries are read from the store instead",
		slog.String("domain", c.cfg.Domain.String()), slog.Any("error", why))
	read := make([]Entry, len(entries))
	for i, e := range entries {
		if e.Proof != (Proof{}) {
			e = e.withoutData()
		}
		read[i] = e
	}
	return read
}
