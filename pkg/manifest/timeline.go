package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
)

// timelineGap is how many revision numbers a new timeline leaves free after the greatest number in use. Its boundary
// covers the free numbers. Writers of the old timeline may use some of them before they read the new boundary, but
// cannot use all.
const timelineGap = 1 << 20

// sweeperSkew is the maximum time by which a sweeper's clock may be ahead of the clock of this process.
const sweeperSkew = 15 * time.Minute

// NewTimeline ends the timeline of a domain whose manifests cannot be read or are missing. It
// returns the first manifest of a new timeline, to be filled in and published. Until it is
// published, the domain has no revision: if the caller dies before that, the state must be rebuilt
// again.
//
// The manifest carries the orphan floor of the old timeline. Publish rejects files whose ids are below this floor. Ids
// that are created after the call of NewTimeline are above the floor.
func (s *Store) NewTimeline(ctx context.Context, writer string) (*Manifest, error) {
	b, version, err := s.Boundary(ctx)
	if corrupt := new(CorruptError); errors.As(err, &corrupt) {
		var object blob.Object
		if object, err = s.blobs.Head(ctx, BoundaryKey(s.domain)); err == nil {
			version = object.Version
		}
	}
	if err != nil {
		return nil, fmt.Errorf("start timeline of %s: %w", s.domain, err)
	}
	greatest := b.DeletedThrough
	for _, prefix := range []string{Prefix(s.domain), PinPrefix(s.domain)} { // pins outlive a lost boundary
		for revision, err := range s.listed(ctx, prefix, 0) {
			if err != nil {
				return nil, fmt.Errorf("start timeline of %s: %w", s.domain, err)
			}
			greatest = max(greatest, revision)
		}
	}
	next := Boundary{Timeline: s.ids.New(), DeletedThrough: greatest + timelineGap}
	data, err := json.Marshal(next)
	if err != nil {
		return nil, fmt.Errorf("encode boundary: %w", err)
	}
	if _, err := s.blobs.Replace(ctx, BoundaryKey(s.domain), data, version); err != nil {
		// The error may be a lost response: only the stored boundary decides.
		if stored, _, readErr := s.Boundary(ctx); readErr != nil || stored != next {
			return nil, fmt.Errorf("start timeline of %s: %w", s.domain, err)
		}
	}
	m := First(s.domain, next.Timeline, writer)
	m.Revision = next.DeletedThrough + 1
	// A sweeper that works for the old timeline may still delete wakeups up to its current minute.
	m.Wakeup.Through = event.At(s.clock.Now().Truncate(time.Minute).Add(sweeperSkew))
	// A collector of the old timeline may still be running, or may be stalled for an arbitrary time. So the new
	// timeline must not reference files whose ids are below the floor of the old timeline. This floor can no longer
	// rise: a revision that raises it would have to be committed, and the new boundary covers all revisions of the old
	// timeline.
	if m.OrphanFloor, err = s.lastFloor(ctx); err != nil {
		return nil, fmt.Errorf("start timeline of %s: %w", s.domain, err)
	}
	return m, nil
}

// maxDamaged is the maximum number of revisions that lastFloor tries to read, the newest first.
const maxDamaged = 16

// lastFloor returns the orphan floor of the greatest readable revision, or "" if none can be read.
// The revision may be one that the boundary already marks as deleted. Reading it also raises the store's id source
// above the floor.
func (s *Store) lastFloor(ctx context.Context) (string, error) {
	var last []int64
	for revision, err := range s.listed(ctx, Prefix(s.domain), 0) {
		if err != nil {
			return "", err
		}
		if last = append(last, revision); len(last) > maxDamaged {
			last = last[1:]
		}
	}
	for _, revision := range slices.Backward(last) {
		m, err := s.get(ctx, Key(s.domain, revision), revision)
		if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) || errors.Is(err, ErrAbsent) {
			continue
		}
		if err != nil {
			return "", err
		}
		return m.OrphanFloor, nil
	}
	return "", nil
}
