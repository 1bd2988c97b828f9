package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// lineageGap is how far above every revision in use a new lineage begins: more
// than writers of the old one can still create before they read the boundary.
const lineageGap = 1 << 20

// NewLineage ends the lineage in force and gives the first manifest of a new
// one, to be filled in and published. From here on no revision exists until it
// is: if the caller dies now, the state has to be rebuilt again.
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
	for object, err := range s.blobs.List(ctx, blob.ListOptions{Prefix: Prefix(s.domain)}) {
		if err != nil {
			return nil, fmt.Errorf("begin lineage of %s: %w", s.domain, err)
		}
		if revision, err := parseRevision(Prefix(s.domain), object.Key); err == nil {
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
	return m, nil
}
