package cloudblob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
)

const create = "create"

// checkRate returns ErrTooFast if the last mutation of the same name was too recent. A create of an existing name is
// not a mutation: the store refuses it with ErrExists.
func (s *Store) checkRate(ctx context.Context, verb, key string) error {
	if !s.recentlyMutated(key) {
		return nil
	}
	if verb == create {
		if _, err := s.inner.Head(ctx, key); !errors.Is(err, blob.ErrNotFound) {
			return nil
		}
	}
	return fmt.Errorf("%s object %q: %w", verb, key, ErrTooFast)
}

// recentlyMutated reports whether a name was mutated too recently. It also forgets names whose last mutation is long
// enough ago.
func (s *Store) recentlyMutated(key string) bool {
	if s.cfg.Model.MutationEvery <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Clock.Now() // the clock is read under the lock, so now is not before a recorded mutation
	for len(s.oldest) > 0 && s.free(s.oldest[0], now) {
		delete(s.mutated, s.oldest[0])
		s.oldest = s.oldest[1:]
	}
	_, there := s.mutated[key]
	return there && !s.free(key, now)
}

func (s *Store) free(key string, now time.Time) bool {
	return now.Sub(s.mutated[key]) >= s.cfg.Model.MutationEvery
}

// note records a mutation.
func (s *Store) note(key string) {
	if s.cfg.Model.MutationEvery <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.mutated[key]; !there {
		s.oldest = append(s.oldest, key)
	}
	s.mutated[key] = s.cfg.Clock.Now()
}
