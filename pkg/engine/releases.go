package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/release"
	"github.com/servo-orchestration/servo/pkg/source"
)

// SaveRelease stores the objects of a release. It stores the release itself last. The parameter archive contains the
// project's files, or is nil. The names of the objects are hashes of their content, so an existing object is kept
// unless it is damaged.
func (e *Engine) SaveRelease(ctx context.Context, c *release.Compiled, archive *source.Archive) error {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("store release: %w", err)
	}
	if archive != nil {
		if err := e.create(ctx, release.SourceRef(e.cfg.Domain, archive.SHA), archive.Data); err != nil {
			return err
		}
	}
	code := encoder.EncodeAll(c.Encoded, nil)
	if err := e.create(ctx, release.CodeRef(e.cfg.Domain, c.Release.Code), code); err != nil {
		return err
	}
	return e.create(ctx, release.Ref(e.cfg.Domain, c.SHA), c.Data)
}

// create stores an object of a release.
func (e *Engine) create(ctx context.Context, ref string, data []byte) error {
	if err := e.createObject(ctx, ref, data); err != nil {
		return fmt.Errorf("store release: %w", err)
	}
	return nil
}

// createObject stores an object whose name is the hash of its content. It replaces a damaged object.
func (e *Engine) createObject(ctx context.Context, ref string, data []byte) error {
	_, err := e.cfg.Store.Create(ctx, ref, data)
	if err == nil {
		return nil
	}
	same, version, readErr := e.stored(ctx, ref, data)
	switch {
	case readErr == nil && same:
		return nil // if err is not ErrExists, the response of Create was lost, or this account may not overwrite objects
	case !errors.Is(err, blob.ErrExists):
		return err
	case readErr != nil:
		return readErr
	}
	_, err = e.cfg.Store.Replace(ctx, ref, data, version)
	return err
}

// stored reports whether an object has the same size and checksum as data, and returns its version.
func (e *Engine) stored(ctx context.Context, ref string, data []byte) (same bool, version int64, err error) {
	is, err := e.cfg.Store.Head(ctx, ref)
	if err == nil && is.CRC32C == 0 && is.Size == int64(len(data)) { // the store returns no checksum
		var stored []byte
		if stored, _, err = blob.Get(ctx, e.cfg.Store, ref, is.Size); err == nil {
			is.CRC32C = blob.CRC32C(stored)
		}
	}
	return err == nil && is.Size == int64(len(data)) && is.CRC32C == blob.CRC32C(data), is.Version, err
}

// ReadRelease reads a release and its code, and verifies both.
func (e *Engine) ReadRelease(ctx context.Context, sha string) (*release.Release, *release.Code, error) {
	return ReadRelease(ctx, e.cfg.Store, e.cfg.Domain, sha)
}

// ReadRelease reads a release of a domain and its code, and verifies both. It returns a [*DamagedError] if one
// of them is missing or damaged.
func ReadRelease(ctx context.Context, store blob.Store, d ids.Domain, sha string) (*release.Release, *release.Code, error) {
	what := "release " + release.Short(sha)
	data, _, err := blob.Get(ctx, store, release.Ref(d, sha), release.MaxBytes)
	if err != nil {
		return nil, nil, unreadable(what, err)
	}
	r, err := release.Decode(data, sha)
	if err != nil {
		return nil, nil, &DamagedError{fmt.Errorf("read %s: %w", what, err)}
	}
	packed, _, err := blob.Get(ctx, store, release.CodeRef(d, r.Code), release.MaxCodeBytes)
	if err != nil {
		return nil, nil, unreadable(what, err)
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(release.MaxCodeBytes))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer decoder.Close()
	if data, err = decoder.DecodeAll(packed, nil); err != nil {
		return nil, nil, &DamagedError{fmt.Errorf("read %s: its code is damaged: %w", what, err)}
	}
	code, err := release.DecodeCode(data, r.Code)
	if err != nil {
		return nil, nil, &DamagedError{fmt.Errorf("read %s: %w", what, err)}
	}
	return r, code, nil
}
