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

// pin is what a collector remembers of a pin.
type pin struct {
	publishedAt event.Time
	files       []string // the ids that its files are named by
}

// unpin deletes the pins whose time is over. A pin was current until the next one
// that is kept was published; between the two no full hour, or day, passed that
// would be told differently by the revisions that once lay between. So it reads
// only the pins of the daily tier, and those that are about to leave the hourly one; with
// a minutely tier, it reads the hourly one, too.
func (c *Collector) unpin(ctx context.Context, oldest *Manifest, now event.Time) error {
	s := c.store
	pinned, err := c.listPins(ctx)
	if err != nil {
		return err
	}
	for i, revision := range pinned {
		if revision >= oldest.Revision {
			return nil // it is live, too
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
				return nil // and so is every younger one
			}
			continue
		}
		if err := s.blobs.Delete(ctx, PinKey(s.domain, revision)); err != nil {
			return fmt.Errorf("delete pin %d of %s: %w", revision, s.domain, err)
		}
		delete(c.pins, revision)
	}
	return nil
}

// listPins gives the revisions that have pins, and forgets those that have none
// any more.
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

// pin is the pin of a revision, or nil when there is none any more.
func (c *Collector) pin(ctx context.Context, revision int64) (*pin, error) {
	if p := c.pins[revision]; p != nil {
		return p, nil
	}
	m, err := c.store.get(ctx, PinKey(c.store.domain, revision), revision)
	if errors.Is(err, ErrAbsent) {
		return nil, nil //nolint:nilnil // another collector has deleted it: no error
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
		p.files = append(p.files, strings.Clone(fileID(f.Key))) // not to hold the whole manifest
	}
	slices.Sort(p.files)
	p.files = slices.Compact(p.files)
	c.pins[revision] = p
	return p, nil
}

// readable are the files that somebody can read by a pinned manifest: all, but for those
// that only an index names which is lost or whose bytes are not those that were written.
// An index that is whole, and not understood, is of another build: that is an error.
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

// fileID is the id that a state file is named by: the files that one writer makes
// at a time share it. It is empty when the key names none.
func fileID(key string) string {
	id, _, _ := strings.Cut(path.Base(key), ".")
	return id
}
