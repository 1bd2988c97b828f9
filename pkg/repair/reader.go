package repair

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

var errNoGroup = errors.New("the entry has no such group")

const (
	// window is how many groups or entries a replay prefetches. readers is how many entries it reads concurrently.
	window  = 64
	readers = 16
)

// reader reads groups of the ledger and its archive. It caches the prefetched entries, and the last entry that it
// decoded, because most groups of an entry were folded one after the other.
type reader struct {
	cfg     Config
	entries *archive.Reader
	entry   string
	groups  []fold.Group
	fetched map[string][]byte
	// plans reads the plans that the groups name.
	plans *planStore
}

func (cfg Config) reader() *reader {
	return &reader{cfg: cfg, entries: archive.NewReader(cfg.Store, cfg.Domain), plans: &planStore{Store: cfg.Store}}
}

// fetch prefetches entries: it reads them concurrently, and drops the entries that it prefetched before. It skips
// entries that cannot be read: load reads them again and handles the error.
func (r *reader) fetch(ctx context.Context, entries []string) error {
	fetched := map[string][]byte{}
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	for _, entry := range entries {
		g.Go(func() error {
			data, err := r.entries.Read(gctx, entry)
			if err != nil {
				return ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			fetched[entry] = data
			return nil
		})
	}
	err := g.Wait()
	r.fetched = fetched
	return err
}

func (r *reader) load(ctx context.Context, entry string) error {
	if r.entry == entry {
		return nil
	}
	data, ok := r.fetched[entry]
	if !ok {
		var err error
		data, err = r.entries.Read(ctx, entry)
		if g, refused := compactor.RefusedRead(entry, err); refused {
			r.entry, r.groups = entry, []fold.Group{g}
			return nil
		}
		if err != nil {
			return r.skip(ctx, entry, err)
		}
	}
	return r.take(ctx, entry, data)
}

// skip handles an entry that cannot be read. If an operator has decided to skip the entry, a dead letter replaces its
// groups. Otherwise, skip returns the error of the read.
func (r *reader) skip(ctx context.Context, entry string, failed error) error {
	if errors.Is(failed, blob.ErrNotFound) || ctx.Err() != nil {
		return failed
	}
	skip, err := ledger.ReadSkip(ctx, r.cfg.Store, r.cfg.Domain, entry)
	if skip == nil {
		return errors.Join(failed, err)
	}
	r.entry, r.groups = entry, []fold.Group{compactor.Skipped(*skip)}
	return nil
}

// take decodes an entry whose bytes are in memory.
func (r *reader) take(ctx context.Context, entry string, data []byte) error {
	groups := compactor.Decode(entry, data)
	r.plans.damaged = nil
	if err := compactor.FetchPlans(ctx, r.plans, r.cfg.Domain, groups); err != nil {
		return r.skip(ctx, entry, err)
	}
	r.entry, r.groups = entry, groups
	return nil
}

func (r *reader) group(ctx context.Context, entry, group string) (fold.Group, error) {
	if err := r.load(ctx, entry); err != nil {
		return fold.Group{}, err
	}
	for _, g := range r.groups {
		if g.ID == group {
			return g, nil
		}
	}
	return fold.Group{}, errNoGroup
}
