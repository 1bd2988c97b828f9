package manifest

import (
	"context"
	"errors"
	"time"

	"github.com/servo-orchestration/servo/pkg/event"
)

// stepOver raises the boundary over a gap: revisions that are missing below a later one, because somebody has deleted
// their manifests. Without stepOver, collection of the domain would stop permanently at the gap. The gap begins with
// the first revision above the boundary, or with the second. If it begins with the second, stepOver keeps the first
// until the revision above the gap is older than minAge.
func (w *window) stepOver(version int64, minAge time.Duration) (stepped bool, err error) {
	s, gap := w.store, w.first
	oldest, err := w.at(gap)
	if err != nil {
		return false, err
	}
	if oldest != nil {
		gap++
		if !s.knowsBeyond(gap) {
			return false, nil
		}
		if successor, err := w.at(gap); err != nil || successor != nil {
			return false, err
		}
	}
	above, err := s.firstFrom(w.ctx, gap)
	if err != nil || above <= gap {
		return false, err
	}
	m, err := w.at(above)
	if err != nil || m == nil {
		return false, err
	}
	if oldest != nil {
		now, err := s.limit(w.ctx, event.At(s.clock.Now()))
		if err != nil || m.PublishedAt > now.Add(-minAge) {
			return false, err
		}
	}
	err = s.raise(w.ctx, Boundary{Timeline: m.Timeline, DeletedThrough: above - 1}, version)
	if errors.Is(err, errMoved) {
		return true, nil // the revisions are missing because another collector has deleted them
	}
	return err == nil, err
}

// knowsBeyond reports whether this process has seen a later revision.
func (s *Store) knowsBeyond(revision int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest.Revision > revision
}

// firstFrom returns the first revision whose number is at least from, or 0 if there is none.
func (s *Store) firstFrom(ctx context.Context, from int64) (int64, error) {
	for revision, err := range s.listed(ctx, Prefix(s.domain), from-1) {
		return revision, err
	}
	return 0, nil
}

// belowGap returns the greatest revision that may be collected below the first gap, but at most limit. The last
// revision before the gap must be kept: the gap then begins directly after the oldest revision, where stepOver handles
// it.
func (w *window) belowGap(limit int64) (int64, error) {
	last, _, err := w.store.denseFrom(w.ctx, w.first)
	return min(limit, last-1), err
}

// Dense reports whether every revision from the oldest to the newest exists. If revision r+1 is missing, a writer that
// has loaded revision r can still publish another revision r+1.
func (s *Store) Dense(ctx context.Context) (bool, error) {
	for range maxRestarts {
		b, version, err := s.Boundary(ctx)
		if err != nil {
			return false, err
		}
		_, dense, err := s.denseFrom(ctx, b.DeletedThrough+1)
		if err != nil || dense {
			return dense, err
		}
		if _, current, err := s.Boundary(ctx); err != nil || current == version {
			return false, err
		}
	}
	return false, nil
}

// denseFrom returns the last revision before the first gap, and whether it is the newest.
func (s *Store) denseFrom(ctx context.Context, first int64) (last int64, newest bool, err error) {
	last = first - 1
	for revision, err := range s.listed(ctx, Prefix(s.domain), last) {
		if err != nil || revision != last+1 {
			return last, false, err
		}
		last = revision
	}
	return last, true, nil
}
