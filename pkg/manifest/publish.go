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

// Publish stores the manifest next under the number next.Revision. Callers get the manifest from [First],
// [Manifest.Successor], [Manifest.Rebuilt] or [Store.NewTimeline]. Publish sets its Nonce, and raises its PublishedAt
// to the current time.
//
// Publish returns nil if the manifest is committed. [ErrConflict] means that it is not committed and never will be.
// [ErrNotCommitted] means that the boundary covers its number: it was never committed, or it was committed and has
// since been collected. An error that wraps [ErrUnknown] means that the outcome is not known: publish the same
// manifest again, unchanged, to find out. Other errors mean that the manifest cannot be written.
func (s *Store) Publish(ctx context.Context, next *Manifest) error {
	if next.Nonce == "" {
		next.Nonce = s.ids.New()
		next.PublishedAt = max(next.PublishedAt, event.At(s.clock.Now()))
	}
	if next.Domain() != s.domain {
		return fmt.Errorf("publish revision %d of %s: the manifest belongs to %s", next.Revision, s.domain, next.Domain())
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
	if err := s.claim(ctx, next, data); err != nil {
		return fmt.Errorf("publish revision %d of %s: %w", next.Revision, s.domain, err)
	}
	s.onStored(next.Revision)
	if err := s.commit(ctx, next); err != nil {
		return fmt.Errorf("publish revision %d of %s: %w", next.Revision, s.domain, err)
	}
	s.ids.Raise(next.OrphanFloor)
	s.verified(next, started)
	s.writeHint(ctx, next.Revision)
	return nil
}

// claim creates the revision, and retries until it is certain whether this manifest or another one has the number.
func (s *Store) claim(ctx context.Context, next *Manifest, data []byte) error {
	key := Key(s.domain, next.Revision)
	for try := 1; ; try++ {
		_, err := s.blobs.Create(ctx, key, data)
		if err == nil || errors.Is(err, blob.ErrInvalid) {
			return err
		}
		// A clear success needs no check. Otherwise the stored bytes decide.
		owned, stored, readErr := s.owner(ctx, key, next, data)
		switch {
		case owned:
			return nil
		case stored != nil:
			s.distrust() // a stored revision may not be committed
			return &ConflictError{Current: stored}
		case readErr != nil && !errors.Is(readErr, ErrAbsent):
			if corrupt := (*CorruptError)(nil); errors.As(readErr, &corrupt) {
				return readErr
			}
			err = readErr
		}
		s.log.WarnContext(ctx, "outcome of publish unknown, retrying", "manifest", key, "try", try, "error", err)
		if err := s.clock.Sleep(ctx, delay(next.Nonce, try)); err != nil {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
}

// owner reads the object under key. It returns true if the object is the manifest next, whose encoding is data.
// Otherwise it returns the manifest of another writer, or [ErrAbsent] if there is no object.
func (s *Store) owner(ctx context.Context, key string, next *Manifest, data []byte) (bool, *Manifest, error) {
	stored, _, err := blob.Get(ctx, s.blobs, key, maxBytes)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return false, nil, ErrAbsent
	case tooLarge(err):
		return false, nil, &CorruptError{Key: key, Reason: err.Error()}
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
		return false, nil, &CorruptError{Key: key, Reason: "it has this writer's nonce but other content: the manifest was modified after a publish"}
	}
	return false, m, nil
}

// commit reads the boundary to decide whether a stored revision is committed.
func (s *Store) commit(ctx context.Context, m *Manifest) error {
	for try := 1; ; try++ {
		b, _, err := s.Boundary(ctx)
		if err == nil {
			if b.Covers(m.Revision) {
				s.distrust() // the newest revision that this process knew is outdated
				return fmt.Errorf("%w: deleted through %d", ErrNotCommitted, b.DeletedThrough)
			}
			return nil
		}
		if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		s.log.WarnContext(ctx, "boundary cannot be read, retrying", "try", try, "error", err)
		if err := s.clock.Sleep(ctx, delay(m.Nonce, try)); err != nil {
			return fmt.Errorf("%w: %w", ErrUnknown, err)
		}
	}
}

// writeHint stores the newest revision, at which readers start. It ignores errors: an outdated or lost hint costs
// readers only a few probes.
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

// delay returns the backoff before the next try. It doubles with each try, and is then shortened by a jitter of up to
// a half. The jitter is a hash of the nonce, so that the tries of several writers spread out and replays stay
// deterministic.
func delay(nonce string, try int) time.Duration {
	d := min(firstDelay<<min(try-1, 16), lastDelay)
	spread := uint64(blob.CRC32C(fmt.Appendf(nil, "%s#%d", nonce, try)))
	return d - time.Duration(spread*uint64(d/2)>>32)
}
