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

// lineageGap is how far above every revision in use a new lineage begins: more
// than writers of the old one can still create before they read the boundary.
const lineageGap = 1 << 20

// sweepersAhead is by how much the clocks of sweepers may be ahead.
const sweepersAhead = 15 * time.Minute

// NewLineage ends the lineage in force and gives the first manifest of a new
// one, to be filled in and published. From here on no revision exists until it
// is: if the caller dies now, the state has to be rebuilt again. Its files must
// be named at or above its orphan floor, which is the old lineage's; Publish
// refuses others, and names minted by now are above it.
func (s *Store) NewLineage(ctx context.Context, writer string) (*Manifest, error) {
	b, generation, err := s.Boundary(ctx)
	if corrupt := new(CorruptError); errors.As(err, &corrupt) {
		var object blob.Object
		if object, err = s.blobs.Head(ctx, BoundaryKey(s.domain)); err == nil {
			generation = object.Generation
		}
	}
	if err != nil {
		return nil, fmt.Errorf("begin lineage of %s: %w", s.domain, err)
	}
	greatest := b.DeletedThrough
	for _, prefix := range []string{Prefix(s.domain), PinPrefix(s.domain)} { // pins, too: a boundary may have been lost
		for revision, err := range s.listed(ctx, prefix, 0) {
			if err != nil {
				return nil, fmt.Errorf("begin lineage of %s: %w", s.domain, err)
			}
			greatest = max(greatest, revision)
		}
	}
	next := Boundary{Lineage: s.ids.New(), DeletedThrough: greatest + lineageGap}
	data, err := json.Marshal(next)
	if err != nil {
		return nil, fmt.Errorf("encode boundary: %w", err)
	}
	if _, err := s.blobs.Replace(ctx, BoundaryKey(s.domain), data, generation); err != nil {
		// Whether it happened is found out by what is stored, not by the answer.
		if held, _, readErr := s.Boundary(ctx); readErr != nil || held != next {
			return nil, fmt.Errorf("begin lineage of %s: %w", s.domain, err)
		}
	}
	m := First(s.domain, next.Lineage, writer)
	m.Revision = next.DeletedThrough + 1
	// A sweeper of the old lineage may be about to delete markers that it has found, up
	// to its present minute.
	m.Due.Through = event.At(s.clock.Now().Truncate(time.Minute).Add(sweepersAhead))
	// A collector of the old lineage may be at work still, and stand still for as
	// long as it likes: what the new one refers to must not be named below its
	// floor. From here on none is committed that is higher.
	if m.OrphanFloor, err = s.lastFloor(ctx); err != nil {
		return nil, fmt.Errorf("begin lineage of %s: %w", s.domain, err)
	}
	return m, nil
}

// maxDamaged is how many revisions that cannot be read are passed over.
const maxDamaged = 16

// lastFloor is the floor of the greatest revision that can be read, whether it
// exists or not. Ids are minted above it from here on.
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
