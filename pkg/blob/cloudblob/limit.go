package cloudblob

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
)

const create = "create"

// admit refuses a mutation of a name that comes too soon after the last one. A
// create of a name that exists is no mutation: it is refused as what it is.
func (s *Store) admit(ctx context.Context, verb, key string) error {
	if !s.soon(key) {
		return nil
	}
	if verb == create {
		if _, err := s.inner.Head(ctx, key); !errors.Is(err, blob.ErrNotFound) {
			return nil
		}
	}
	return fmt.Errorf("%s object %q: %w", verb, key, ErrTooFast)
}

// soon reports whether a name was mutated a moment ago, and forgets those that
// were not.
func (s *Store) soon(key string) bool {
	if s.cfg.Model.MutationEvery <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Clock.Now() // not before what others have noted
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

// note notes a mutation.
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
