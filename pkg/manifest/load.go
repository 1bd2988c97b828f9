package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sort"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
)

// Load returns the newest revision, or [ErrNone] if none was ever published.
func (s *Store) Load(ctx context.Context) (*Manifest, error) {
	hinted := true
	for range maxRestarts {
		m, err := s.start(ctx, hinted)
		if err != nil && !errors.Is(err, ErrAbsent) {
			return nil, err
		}
		hinted = false
		if m == nil {
			continue
		}
		m, at, err := s.forward(ctx, m)
		if errors.Is(err, ErrAbsent) {
			continue // the revision was collected during the search
		}
		if err != nil {
			return nil, err
		}
		b, _, err := s.Boundary(ctx)
		if err != nil {
			return nil, err
		}
		if !b.Covers(m.Revision) {
			s.verified(m, at)
			return m, nil
		}
	}
	return nil, fmt.Errorf("load manifest of %s: revisions were collected during %d reads in a row; try again, "+
		"and if it persists run `servo admin rebuild`", s.domain, maxRestarts)
}

// start returns a revision from which Load probes forward, or ErrAbsent if the revision was collected during the
// search.
func (s *Store) start(ctx context.Context, hinted bool) (*Manifest, error) {
	if hinted {
		if m := s.hint(ctx); m != nil {
			return m, nil
		}
	}
	b, _, err := s.Boundary(ctx)
	if err != nil {
		return nil, err
	}
	revision, err := s.greatest(ctx, b.DeletedThrough)
	switch {
	case err != nil:
		return nil, err
	case revision == 0 && b.DeletedThrough == 0:
		return nil, fmt.Errorf("load manifest of %s: %w", s.domain, ErrNone)
	case revision == 0:
		return nil, &CorruptError{
			Key: BoundaryKey(s.domain), lost: true,
			Reason: fmt.Sprintf("all manifests of %s above revision %d are missing", s.domain, b.DeletedThrough),
		}
	}
	return s.get(ctx, Key(s.domain, revision), revision)
}

// hint returns the revision that the hint names, or nil. A bad hint is not an error,
// because readers do not rely on it.
func (s *Store) hint(ctx context.Context) *Manifest {
	data, _, err := blob.Get(ctx, s.blobs, HintKey(s.domain), maxSmall)
	if err != nil {
		return nil
	}
	var h struct {
		Revision int64 `json:"revision"`
	}
	if json.Unmarshal(data, &h) != nil || h.Revision < 1 {
		return nil
	}
	m, err := s.get(ctx, Key(s.domain, h.Revision), h.Revision)
	if err != nil {
		return nil
	}
	return m
}

// greatest lists the revisions whose numbers are greater than the given one. It returns the greatest of them, or 0 if
// there is none.
func (s *Store) greatest(ctx context.Context, after int64) (int64, error) {
	var last int64
	for revision, err := range s.listed(ctx, Prefix(s.domain), after) {
		if err != nil {
			return 0, err
		}
		last = revision
	}
	return last, nil
}

// listed yields, in ascending order, the revisions under prefix whose numbers are greater than the given one.
func (s *Store) listed(ctx context.Context, prefix string, after int64) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		opts := blob.ListOptions{Prefix: prefix, StartAfter: prefix + digits(after)}
		for object, err := range s.blobs.List(ctx, opts) {
			if err != nil {
				yield(0, fmt.Errorf("list %s: %w", prefix, err))
				return
			}
			revision, err := parseRevision(prefix, object.Key)
			if err != nil {
				continue // an unrelated object must not block the domain
			}
			if !yield(revision, nil) {
				return
			}
		}
	}
}

// forward searches for the newest revision, beginning with m. It returns this revision, and a time at which it was
// the newest.
func (s *Store) forward(ctx context.Context, m *Manifest) (*Manifest, time.Time, error) {
	for {
		for range maxProbes {
			now := s.clock.Now()
			next, err := s.get(ctx, Key(s.domain, m.Revision+1), m.Revision+1)
			if errors.Is(err, ErrAbsent) {
				return m, now, nil
			}
			if err != nil {
				return nil, time.Time{}, err
			}
			m = next
		}
		revision, err := s.greatest(ctx, m.Revision)
		if err != nil {
			return nil, time.Time{}, err
		}
		if revision == 0 {
			continue
		}
		if m, err = s.get(ctx, Key(s.domain, revision), revision); err != nil {
			return nil, time.Time{}, err
		}
	}
}

// Next returns the revision after cur, or nil if cur is the newest. The error is
// [ErrReload] if cur was collected, or if the next revision does not name it as parent.
func (s *Store) Next(ctx context.Context, cur *Manifest) (*Manifest, error) {
	now := s.clock.Now()
	next, err := s.get(ctx, Key(s.domain, cur.Revision+1), cur.Revision+1)
	if err != nil && !errors.Is(err, ErrAbsent) {
		return nil, err
	}
	if next != nil && (next.Parent == nil || *next.Parent != cur.Ref() || next.Timeline != cur.Timeline) {
		return nil, fmt.Errorf("follow revision %d of %s: %w", cur.Revision, s.domain, ErrReload)
	}
	if s.trusted(cur) {
		return next, nil
	}
	b, _, err := s.Boundary(ctx)
	if err != nil {
		return nil, err
	}
	if b.Covers(cur.Revision) {
		return nil, fmt.Errorf("follow revision %d of %s: %w", cur.Revision, s.domain, ErrReload)
	}
	if next == nil {
		s.verified(cur, now)
	}
	return next, nil
}

// LoadAt returns a live or pinned revision, or [ErrAbsent].
func (s *Store) LoadAt(ctx context.Context, revision int64) (*Manifest, error) {
	m, err := s.get(ctx, Key(s.domain, revision), revision)
	if err != nil && !errors.Is(err, ErrAbsent) {
		return nil, markPast(err)
	}
	b, _, boundaryErr := s.Boundary(ctx)
	if boundaryErr != nil {
		return nil, boundaryErr
	}
	if m != nil && !b.Covers(revision) {
		return m, nil
	}
	if revision > b.DeletedThrough {
		return nil, fmt.Errorf("load revision %d of %s: %w", revision, s.domain, ErrAbsent)
	}
	m, err = s.get(ctx, PinKey(s.domain, revision), revision)
	return m, markPast(err)
}

// List yields, in ascending order, the revisions that LoadAt can return: pinned ones, then live ones.
func (s *Store) List(ctx context.Context) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		b, _, err := s.Boundary(ctx)
		if err != nil {
			yield(0, err)
			return
		}
		for revision, err := range s.listed(ctx, PinPrefix(s.domain), 0) {
			if err == nil && revision > b.DeletedThrough {
				break // the revision is also live, so it is listed below
			}
			if !yield(revision, err) || err != nil {
				return
			}
		}
		for revision, err := range s.listed(ctx, Prefix(s.domain), b.DeletedThrough) {
			if !yield(revision, err) || err != nil {
				return
			}
		}
	}
}

// LoadAsOf returns the greatest kept revision published at or before t, or [ErrAbsent] if all kept revisions were
// published later.
func (s *Store) LoadAsOf(ctx context.Context, t time.Time) (*Manifest, error) {
	for range maxRestarts {
		_, before, err := s.Boundary(ctx)
		if err != nil {
			return nil, err
		}
		var kept []int64
		for revision, err := range s.List(ctx) {
			if err != nil {
				return nil, err
			}
			kept = append(kept, revision)
		}
		m, err := s.search(ctx, kept, event.At(t))
		if err != nil && !errors.Is(err, ErrAbsent) {
			return nil, err
		}
		_, after, boundaryErr := s.Boundary(ctx)
		switch {
		case boundaryErr != nil:
			return nil, boundaryErr
		case err != nil || after != before:
			continue // revisions were collected: List may have missed a pin between its two listings
		case m == nil:
			return nil, fmt.Errorf("load manifest of %s as of %s: %w", s.domain, event.At(t), ErrAbsent)
		}
		return m, nil
	}
	return nil, fmt.Errorf("load manifest of %s as of %s: revisions were collected during %d reads in a row; try again",
		s.domain, event.At(t), maxRestarts)
}

// search finds the last kept revision published at or before t. It is a binary search,
// since published_at grows with the revision number.
func (s *Store) search(ctx context.Context, kept []int64, t event.Time) (*Manifest, error) {
	var found *Manifest
	var failure error
	sort.Search(len(kept), func(i int) bool {
		if failure != nil {
			return false
		}
		m, err := s.LoadAt(ctx, kept[i])
		if err != nil {
			failure = err
			return false
		}
		if m.PublishedAt > t {
			return true
		}
		if found == nil || m.Revision > found.Revision {
			found = m
		}
		return false
	})
	if failure != nil {
		return nil, failure
	}
	return found, nil
}
