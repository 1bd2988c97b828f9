package repair

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/servo-orchestration/servo/pkg/archive"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
)

// renaming gives entries that were folded under names far ahead of the store's clock
// names of the time at which the store took them. Under their old names they would
// stay in the live state, and in every listing, until that time comes: collection,
// eviction and archiving go by names. Builds before CLOCK_AHEAD folded such entries,
// and then named everything else after them.
//
// A new name follows from the old one and from the store's time. So a rebuild that was
// interrupted arrives at the same names. The old objects are deleted after the publish:
// if the process dies before, their groups become dead letters, which change nothing.
// A nil renaming has no entries.
type renaming struct {
	cfg Config
	to  map[string]string // by the old name
}

// rename finds the entries of an order that need other names. Listings were complete
// through an id, and so nothing below it is ahead.
func (cfg Config) rename(ctx context.Context, order []place, complete string) (*renaming, error) {
	r := &renaming{cfg: cfg, to: map[string]string{}}
	for _, p := range order {
		entry := p.entryID()
		if _, known := r.to[entry]; known || p.ahead != nil || entry < complete {
			continue
		}
		object, err := cfg.Store.Head(ctx, ledger.Key(cfg.Domain, entry))
		if errors.Is(err, blob.ErrNotFound) {
			continue // archived, and so not ahead; or lost, as the replay finds
		}
		if err != nil {
			return nil, fmt.Errorf("look at ledger entry %s: %w", entry, err)
		}
		if ids.Time(entry).Sub(object.Updated) > ids.MaxAhead {
			r.to[entry] = ids.Renamed(entry, object.Updated)
		}
	}
	return r, nil
}

func (r *renaming) len() int {
	if r == nil {
		return 0
	}
	return len(r.to)
}

// has reports whether an entry has another name now.
func (r *renaming) has(entry string) bool { return r.len() > 0 && r.to[entry] != "" }

// create stores the entries under their new names.
func (r *renaming) create(ctx context.Context) error {
	if r.len() == 0 {
		return nil
	}
	entries := archive.NewReader(r.cfg.Store, r.cfg.Domain)
	for _, from := range slices.Sorted(maps.Keys(r.to)) {
		data, err := entries.Read(ctx, from)
		if err != nil {
			return err
		}
		key := ledger.Key(r.cfg.Domain, r.to[from])
		if _, err := r.cfg.Store.Create(ctx, key, data); err != nil && !errors.Is(err, blob.ErrExists) {
			return fmt.Errorf("rename ledger entry %s to %s: %w", from, r.to[from], err)
		}
	}
	return nil
}

// drop deletes the entries under their old names.
func (r *renaming) drop(ctx context.Context) error {
	if r.len() == 0 {
		return nil
	}
	for _, from := range slices.Sorted(maps.Keys(r.to)) {
		if err := r.cfg.Store.Delete(ctx, ledger.Key(r.cfg.Domain, from)); err != nil {
			return fmt.Errorf("the state is rebuilt; delete ledger entry %s, which is %s now: %w", from, r.to[from], err)
		}
	}
	return nil
}
