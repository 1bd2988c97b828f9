package fileblob

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.write(ctx, "create", key, func() (*temp, error) { return s.stage(data) }, s.absent(key))
}

// CreateFrom implements [blob.Store].
func (s *Store) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	return s.write(ctx, "create", key, func() (*temp, error) { return s.stageFrom(&source{ctx: ctx, r: r}) }, s.absent(key))
}

// absent agrees to write where there is nothing.
func (s *Store) absent(key string) func(present) error {
	return func(p present) error {
		if p.exists {
			return fmt.Errorf("create object %q in file %s: %w", key, s.file(key), blob.ErrExists)
		}
		return nil
	}
}

// Replace implements [blob.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, generation int64) (blob.Object, error) {
	return s.write(ctx, "replace", key, func() (*temp, error) { return s.stage(data) }, func(p present) error {
		if p.generation != generation {
			return fmt.Errorf("replace object %q of generation %d: %w: %d", key, generation, blob.ErrMismatch, p.generation)
		}
		return nil
	})
}

// Put implements [blob.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.write(ctx, "put", key, func() (*temp, error) { return s.stage(data) }, func(present) error { return nil })
}

// write stores content where the present object is one that the caller agrees to.
func (s *Store) write(ctx context.Context, verb, key string, stage func() (*temp, error), agree func(present) error) (blob.Object, error) {
	if err := blob.Check(ctx, verb, key); err != nil {
		return blob.Object{}, err
	}
	if s.denied != nil {
		return blob.Object{}, s.failed(verb, key, s.denied)
	}
	t, err := stage()
	if err != nil {
		return blob.Object{}, s.failed(verb, key, err)
	}
	defer t.discard()
	c := &change{key: key, content: t, agree: agree}
	s.commit(c)
	switch {
	case c.refused != nil:
		return blob.Object{}, c.refused
	case c.err != nil:
		return blob.Object{}, s.failed(verb, key, c.err)
	}
	return blob.Object{
		Key: key, Size: t.size, Generation: c.generation, CRC32C: t.crc, Updated: time.Unix(0, c.generation),
	}, nil
}

// Delete implements [blob.Store]. Folders that it leaves empty go too.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := blob.Check(ctx, "delete", key); err != nil {
		return err
	}
	if s.denied != nil {
		return s.failed("delete", key, s.denied)
	}
	c := &change{key: key}
	if s.commit(c); c.err != nil {
		return s.failed("delete", key, c.err)
	}
	return nil
}
