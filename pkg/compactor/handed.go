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

// Proof identifies what the store holds under an entry's name.
type Proof struct {
	Generation int64
	CRC32C     uint32
}

// errUnproven says that bytes which were handed over are not known to be what the store
// holds. The step is repeated, and reads the entries instead.
var errUnproven = errors.New("handed-over bytes are not those of the stored entry")

// proof asks the store about handed-over entries while these are decoded and folded.
type proof struct {
	once sync.Once
	wait func() error
	err  error
}

// prove begins a HEAD for each entry that another process handed over. The caller waits
// for the proof before it publishes, and in any case before it returns.
func (c *Compactor) prove(ctx context.Context, entries []Entry) *proof {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	p := &proof{wait: g.Wait}
	var doubtful []Entry
	for _, e := range entries {
		if e.Data != nil && e.Proof != (Proof{}) {
			doubtful = append(doubtful, e)
		}
	}
	if len(doubtful) == 0 {
		return p
	}
	var all sync.WaitGroup
	all.Go(func() { // the limit blocks, and the fold does not wait for that
		for _, e := range doubtful {
			g.Go(func() error { return c.proveOne(ctx, e) })
		}
	})
	p.wait = func() error {
		all.Wait()
		return g.Wait()
	}
	return p
}

func (c *Compactor) proveOne(ctx context.Context, e Entry) error {
	stored, err := c.Store.Head(ctx, ledger.Key(c.Domain, e.ID))
	if err != nil {
		return fmt.Errorf("fold entry %s: %w: %w", e.ID, errUnproven, err)
	}
	// A store that does not know the checksum, such as a folder, has the entry read.
	if stored.Generation != e.Proof.Generation || stored.CRC32C != e.Proof.CRC32C {
		return fmt.Errorf("fold entry %s: %w: the store has generation %d and CRC-32C %08x, and the caller named %d and %08x",
			e.ID, errUnproven, stored.Generation, stored.CRC32C, e.Proof.Generation, e.Proof.CRC32C)
	}
	return nil
}

// done waits for the proof.
func (p *proof) done() error {
	p.once.Do(func() { p.err = p.wait() })
	return p.err
}

// dropData returns entries without content that could not be proven. It is read from the store.
func (c *Compactor) dropData(ctx context.Context, entries []Entry, why error) []Entry {
	c.Logger.WarnContext(ctx, "handed-over entries are read from the store instead",
		slog.String("domain", c.Domain.String()), slog.Any("error", why))
	read := make([]Entry, len(entries))
	for i, e := range entries {
		if e.Proof != (Proof{}) {
			e = e.slim()
		}
		read[i] = e
	}
	return read
}
