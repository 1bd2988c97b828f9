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

// absent returns a check that allows a write only if the key is absent.
func (s *Store) absent(key string) func(existing) error {
	return func(p existing) error {
		if p.exists {
			return fmt.Errorf("create object %q in file %s: %w", key, s.file(key), blob.ErrExists)
		}
		return nil
	}
}

// Replace implements [blob.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, version int64) (blob.Object, error) {
	return s.write(ctx, "replace", key, func() (*temp, error) { return s.stage(data) }, func(p existing) error {
		if p.version != version {
			return fmt.Errorf("replace object %q of version %d: %w: %d", key, version, blob.ErrMismatch, p.version)
		}
		return nil
	})
}

// Put implements [blob.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.write(ctx, "put", key, func() (*temp, error) { return s.stage(data) }, func(existing) error { return nil })
}

// write stores content if check allows it, given the existing object.
func (s *Store) write(ctx context.Context, verb, key string, stage func() (*temp, error), check func(existing) error) (blob.Object, error) {
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
	c := &change{key: key, content: t, check: check}
	s.commit(c)
	switch {
	case c.refused != nil:
		return blob.Object{}, c.refused
	case c.err != nil:
		return blob.Object{}, s.failed(verb, key, c.err)
	}
	return blob.Object{
		Key: key, Size: t.size, Version: c.version, CRC32C: t.crc, Updated: time.Unix(0, c.version),
	}, nil
}

// Delete implements [blob.Store]. It also removes folders that become empty.
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
