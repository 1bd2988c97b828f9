package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/event"
)

const (
	firstDelay = 100 * time.Millisecond
	lastDelay  = 5 * time.Second
)

// Publish makes next, a [First] or a [Manifest.Successor], the revision that it
// says it is. It sets Nonce and PublishedAt, which is now or, if that is later,
// what it was.
//
// nil is committed; [ErrConflict] and [ErrNotCommitted] are not, for good. Any
// error that wraps [ErrUnknown] says that ctx ended first: publishing the same
// manifest, unchanged, again finds out. Other errors: it cannot be written.
func (s *Store) Publish(ctx context.Context, next *Manifest) error {
	if next.Nonce == "" {
		next.Nonce = s.ids.New()
		next.PublishedAt = max(next.PublishedAt, event.At(s.clock.Now()))
	}
	if next.Domain() != s.domain {
		return fmt.Errorf("publish revision %d of %s: it is of %s", next.Revision, s.domain, next.Domain())
	}
	s.mu.Lock()
	known := s.texts
	s.mu.Unlock()
	data, known, err := known.encode(next)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.texts = known
	s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("publish revision %d of %s: nothing was written: %w", next.Revision, s.domain, err)
	}
	started := s.clock.Now()
	if err := s.hold(ctx, next, data); err != nil {
		return fmt.Errorf("publish revision %d of %s: %w", next.Revision, s.domain, err)
	}
	s.held(next.Revision)
	if err := s.commit(ctx, next); err != nil {
		return fmt.Errorf("publish revision %d of %s: %w", next.Revision, s.domain, err)
	}
	s.ids.Raise(next.OrphanFloor)
	s.verified(next, started)
	s.writeHint(ctx, next.Revision)
	return nil
}

// hold creates the revision, and returns when it is certain who holds it.
func (s *Store) hold(ctx context.Context, next *Manifest, data []byte) error {
	key := Key(s.domain, next.Revision)
	for try := 1; ; try++ {
		_, err := s.blobs.Create(ctx, key, data)
		if err == nil || errors.Is(err, blob.ErrInvalid) {
			return err
		}
		// No answer but success is believed: what is stored decides.
		held, stored, readErr := s.holder(ctx, key, next, data)
		switch {
		case held:
			return nil
		case stored != nil:
			s.distrust() // it may be one that does not count
			return &ConflictError{Current: stored}
		case readErr != nil && !errors.Is(readErr, ErrAbsent):
			if corrupt := (*CorruptError)(nil); errors.As(readErr, &corrupt) {
				return readErr
			}
			err = readErr
		}
		s.log.WarnContext(ctx, "publish has an unknown outcome, repeating it", "manifest", key, "try", try, "error", err)
		if err := s.clock.Sleep(ctx, delay(next.Nonce, try)); err != nil {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
}

// holder reads who holds a revision: this very manifest, or another.
func (s *Store) holder(ctx context.Context, key string, next *Manifest, data []byte) (bool, *Manifest, error) {
	stored, _, err := blob.Get(ctx, s.blobs, key, maxBytes)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return false, nil, ErrAbsent
	case tooLarge(err):
		return false, nil, &CorruptError{key, err.Error()}
	case err != nil:
		return false, nil, err
	case bytes.Equal(stored, data):
		return true, nil, nil
	}
	m, err := s.decoder.Decode(key, next.Revision, stored)
	if err != nil {
		return false, nil, err
	}
	if m.Nonce == next.Nonce {
		return false, nil, &CorruptError{key, "it has the nonce of a manifest that differs: one was changed after it was published"}
	}
	return false, m, nil
}

// commit asks the boundary whether a revision that is held counts.
func (s *Store) commit(ctx context.Context, m *Manifest) error {
	for try := 1; ; try++ {
		b, _, err := s.Boundary(ctx)
		if err == nil {
			if b.Covers(m.Lineage, m.Revision) {
				s.distrust() // what m follows was not the newest any more
				return fmt.Errorf("%w: deleted through %d, lineage %s", ErrNotCommitted, b.DeletedThrough, b.Lineage)
			}
			return nil
		}
		if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		s.log.WarnContext(ctx, "boundary cannot be read, trying again", "try", try, "error", err)
		if err := s.clock.Sleep(ctx, delay(m.Nonce, try)); err != nil {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
}

// writeHint names the newest revision for readers to start at. It is best
// effort: a hint that is late or lost costs them a few probes.
func (s *Store) writeHint(ctx context.Context, revision int64) {
	now := s.clock.Now()
	s.mu.Lock()
	due := now.Sub(s.hintedAt) >= hintInterval || now.Before(s.hintedAt)
	if due {
		s.hintedAt = now
	}
	s.mu.Unlock()
	if !due {
		return
	}
	if _, err := s.blobs.Put(ctx, HintKey(s.domain), fmt.Appendf(nil, "{\"revision\":%d}\n", revision)); err != nil {
		s.log.DebugContext(ctx, "hint not written", "revision", revision, "error", err)
	}
}

// delay is how long to wait before the next try: doubling, less up to a half
// that depends on the nonce, so that writers part, and replays do not.
func delay(nonce string, try int) time.Duration {
	d := min(firstDelay<<min(try-1, 16), lastDelay)
	spread := uint64(blob.CRC32C(fmt.Appendf(nil, "%s#%d", nonce, try)))
	return d - time.Duration(spread*uint64(d/2)>>32)
}
