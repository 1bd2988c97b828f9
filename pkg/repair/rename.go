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

// renaming renames entries that were folded under names far ahead of the store's clock. The new names contain the
// store's time of the upload. Collection, eviction and archiving use the times in names. With their old names, the
// entries would stay in the live state, and in every listing, until the times in these names have passed. Older
// versions of Servo, which did not know the reason CLOCK_AHEAD, folded such entries, and gave greater names to
// everything that they created later.
//
// A new name is derived from the old one and the store's time. So a rebuild that is repeated after an interruption
// chooses the same names.
//
// The entries are stored under their new names before the publish, and deleted under their old names after it. A
// compactor may fold an entry under both names. The second time has no effect, as with every entry that is folded
// twice. After the publish, a compactor may find an old name that the new state does not record. The compactor then
// records a dead letter with the reason CLOCK_AHEAD. A replay repeats this dead letter without reading the entry. The
// next rebuild deletes old names that still exist.
//
// A nil renaming has no entries.
type renaming struct {
	cfg Config
	to  map[string]string // new names by old names
}

// rename finds two kinds of entries: entries that need new names, and entries that have new names but still exist under
// the old ones. The parameter order contains the places of all groups. Entries below completeID get no new names:
// listings were complete up to this id, so no entry below it has a name far ahead.
func (cfg Config) rename(ctx context.Context, order []place, completeID string) (*renaming, error) {
	r := &renaming{cfg: cfg, to: map[string]string{}}
	ahead, err := cfg.farAhead(ctx)
	if err != nil || len(ahead) == 0 {
		return r, err
	}
	from := make(map[string]string, len(ahead))
	for old, name := range ahead {
		from[name] = old
	}
	for _, p := range order {
		entry := p.entryID()
		if name, ok := ahead[entry]; ok && p.ahead == nil && entry >= completeID {
			r.to[entry] = name
		}
		if old, ok := from[entry]; ok {
			r.to[old] = entry
		}
	}
	return r, nil
}

// farAhead lists the entries whose names are far ahead of the store's time of their upload, with
// their new names.
func (cfg Config) farAhead(ctx context.Context) (map[string]string, error) {
	ahead := map[string]string{}
	prefix := ledger.Prefix(cfg.Domain)
	for object, err := range cfg.Store.List(ctx, blob.ListOptions{Prefix: prefix}) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, err)
		}
		_, entry, err := ledger.ParseKey(object.Key)
		if err == nil && ids.Time(entry).Sub(object.Updated) > ids.MaxAhead {
			ahead[entry] = ids.Renamed(entry, object.Updated)
		}
	}
	return ahead, nil
}

func (r *renaming) len() int {
	if r == nil {
		return 0
	}
	return len(r.to)
}

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

// deleteOld deletes the entries under their old names.
func (r *renaming) deleteOld(ctx context.Context) error {
	if r.len() == 0 {
		return nil
	}
	for _, from := range slices.Sorted(maps.Keys(r.to)) {
		if err := r.cfg.Store.Delete(ctx, ledger.Key(r.cfg.Domain, from)); err != nil {
			return fmt.Errorf("the state is rebuilt, but a renamed ledger entry still exists under its old name %s (the new name is %s): delete it: %w", from, r.to[from], err)
		}
	}
	return nil
}
