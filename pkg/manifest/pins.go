package manifest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

// pin is the part of a pinned manifest that a collector caches.
type pin struct {
	publishedAt event.Time
	files       []string // the file ids, sorted
}

// unpin deletes expired pins. To decide whether a pin has expired, unpin assumes that the pinned revision was current
// until the next kept revision was published. This is safe: if a deleted revision in between had been current at a full
// hour, it would have its own pin. unpin starts at the oldest pin. It stops at the first pin that is younger than the
// shortest retention rule, because all later pins are kept, too. If limited is false, now comes from this machine's
// clock only. unpin then calls [Store.limit] before it deletes a pin.
func (c *Collector) unpin(ctx context.Context, oldest *Manifest, now event.Time, limited bool) error {
	s := c.store
	pinned, err := c.listPins(ctx)
	if err != nil {
		return err
	}
	var asked map[int64]bool // the revisions that people have pinned; read when first needed
	for i, revision := range pinned {
		if revision >= oldest.Revision {
			return nil // this revision still exists
		}
		this, err := c.pin(ctx, revision)
		if err != nil {
			return err
		}
		until := oldest.PublishedAt
		if i+1 < len(pinned) && pinned[i+1] < oldest.Revision {
			next, err := c.pin(ctx, pinned[i+1])
			if err != nil {
				return err
			}
			if next != nil {
				until = next.publishedAt
			}
		}
		if this == nil || c.policy.pins(this.publishedAt, until, now) {
			young := c.policy.Hourly
			if c.policy.Minutely > 0 {
				young = c.policy.Minutely
			}
			if now.Sub(until) < young {
				return nil // all younger pins are also kept
			}
			continue
		}
		if !limited {
			if now, err = s.limit(ctx, now); err != nil {
				return err
			}
			return c.unpin(ctx, oldest, now, true)
		}
		if asked == nil {
			var current bool
			if asked, current, err = c.asked(ctx, now); err != nil || !current {
				return err
			}
		}
		if asked[revision] {
			continue
		}
		if err := s.blobs.Delete(ctx, PinKey(s.domain, revision)); err != nil {
			return fmt.Errorf("delete pin %d of %s: %w", revision, s.domain, err)
		}
		delete(c.pins, revision)
	}
	return nil
}

// listPins returns the pinned revisions, and drops deleted pins from the cache.
func (c *Collector) listPins(ctx context.Context) ([]int64, error) {
	var pinned []int64
	known := map[int64]*pin{}
	for revision, err := range c.store.listed(ctx, PinPrefix(c.store.domain), 0) {
		if err != nil {
			return nil, err
		}
		pinned = append(pinned, revision)
		if p := c.pins[revision]; p != nil {
			known[revision] = p
		}
	}
	c.pins = known
	return pinned, nil
}

// pin returns the pin of a revision, or nil if it was deleted.
func (c *Collector) pin(ctx context.Context, revision int64) (*pin, error) {
	if p := c.pins[revision]; p != nil {
		return p, nil
	}
	m, err := c.store.get(ctx, PinKey(c.store.domain, revision), revision)
	if errors.Is(err, ErrAbsent) {
		return nil, nil //nolint:nilnil // deleted by another collector
	}
	if err != nil {
		return nil, err
	}
	p := &pin{publishedAt: m.PublishedAt}
	files, err := c.readable(ctx, m)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		p.files = append(p.files, strings.Clone(fileID(f.Key))) // do not retain the whole manifest
	}
	slices.Sort(p.files)
	p.files = slices.Compact(p.files)
	c.pins[revision] = p
	return p, nil
}

// readable returns the files that a reader of a pinned manifest can reach. It omits the
// segments of an index that is lost or whose checksum does not match. If an index is intact but cannot be decoded,
// another build has written it, and readable returns an error.
func (c *Collector) readable(ctx context.Context, m *Manifest) ([]File, error) {
	files := m.Files()
	for _, table := range slices.Sorted(maps.Keys(m.History)) {
		index := m.History[table]
		segments, err := c.store.Segments(ctx, index)
		if Damaged(err) {
			if _, lost := c.store.LoadFile(ctx, index); Damaged(lost) {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("history of %s in pinned revision %d: %w", table, m.Revision, err)
		}
		files = append(files, segments...)
	}
	return files, nil
}

// fileID returns the id in a state file's name, or "". Files of several tables that are
// written together share an id.
func fileID(key string) string {
	id, _, _ := strings.Cut(path.Base(key), ".")
	return id
}
