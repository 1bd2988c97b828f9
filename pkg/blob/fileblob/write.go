package fileblob

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// maxFolderRaces is how often a write makes its folder anew after a delete
// pruned it as empty.
const maxFolderRaces = 100

// Create implements [blob.Store].
func (s *Store) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	if err := check(ctx, "create", key); err != nil {
		return blob.Object{}, err
	}
	return s.create(ctx, key, bytes.NewReader(data))
}

// CreateFrom implements [blob.Store].
func (s *Store) CreateFrom(ctx context.Context, key string, r io.Reader) (blob.Object, error) {
	if err := check(ctx, "create", key); err != nil {
		return blob.Object{}, err
	}
	return s.create(ctx, key, &source{ctx: ctx, r: r})
}

func (s *Store) create(ctx context.Context, key string, r io.Reader) (o blob.Object, err error) {
	t, err := s.stage(key, r)
	if err != nil {
		return blob.Object{}, s.failed("create", key, err)
	}
	defer t.discard()
	if o, err = t.seal(0); err != nil {
		return blob.Object{}, s.failed("create", key, err)
	}
	err = s.inFolder(ctx, key, func() error { return s.root.Link(t.name, key) })
	switch {
	case errors.Is(err, fs.ErrExist):
		return blob.Object{}, s.exists(key, err)
	case err != nil:
		return blob.Object{}, s.failed("create", key, err)
	}
	if err := s.settle(key); err != nil {
		return blob.Object{}, s.failed("make durable", key, err)
	}
	return o, nil
}

// exists refuses a create. Its caller may have made the object itself, in a
// call whose answer it lost, and take ErrExists as success: so the object is
// made durable, which whoever linked it may not have come to.
func (s *Store) exists(key string, cause error) error {
	info, err := s.root.Stat(key)
	switch {
	case err == nil && info.IsDir():
		return s.failed("create", key, cause)
	case err == nil:
		if err := s.settle(key); err != nil {
			return s.failed("make durable", key, err)
		}
	}
	return fmt.Errorf("create object %q in file %s: %w", key, s.file(key), blob.ErrExists)
}

// Replace implements [blob.Store].
func (s *Store) Replace(ctx context.Context, key string, data []byte, generation int64) (blob.Object, error) {
	return s.overwrite(ctx, "replace", key, data, func(old int64) error {
		if old != generation {
			return fmt.Errorf("replace object %q of generation %d: %w: %d", key, generation, blob.ErrMismatch, old)
		}
		return nil
	})
}

// Put implements [blob.Store].
func (s *Store) Put(ctx context.Context, key string, data []byte) (blob.Object, error) {
	return s.overwrite(ctx, "put", key, data, func(int64) error { return nil })
}

// overwrite stores data in place of an object whose generation (0: there is
// none) the caller agrees to.
func (s *Store) overwrite(ctx context.Context, verb, key string, data []byte, agree func(old int64) error) (o blob.Object, err error) {
	if err := check(ctx, verb, key); err != nil {
		return blob.Object{}, err
	}
	t, err := s.stage(key, bytes.NewReader(data))
	if err != nil {
		return blob.Object{}, s.failed(verb, key, err)
	}
	defer t.discard()
	var refused error
	err = s.writes.with(func() error {
		for range maxFolderRaces {
			old, err := s.generation(key)
			if err != nil {
				return err
			}
			if refused = agree(old); refused != nil {
				return nil //nolint:nilerr // a refusal is an answer; the caller has it in refused
			}
			if o, err = t.seal(old); err != nil {
				return err
			}
			err = s.inFolder(ctx, key, func() error { return s.place(t.name, key, old) })
			if old == 0 && errors.Is(err, fs.ErrExist) {
				continue // a create, which takes no lock, came between: look again
			}
			return err
		}
		return errors.New("objects are created and deleted there all the time")
	})
	switch {
	case refused != nil:
		return blob.Object{}, refused
	case err != nil:
		return blob.Object{}, s.failed(verb, key, err)
	}
	if err := s.settle(key); err != nil {
		return blob.Object{}, s.failed("make durable", key, err)
	}
	return o, nil
}

// place gives a temporary file its name. Where there was nothing, it must not
// cover what a create made meanwhile.
func (s *Store) place(temp, key string, old int64) error {
	if old == 0 {
		return s.root.Link(temp, key)
	}
	return s.root.Rename(temp, key)
}

// generation is that of the present object, or 0.
func (s *Store) generation(key string) (int64, error) {
	info, err := s.root.Stat(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	case info.IsDir():
		return 0, &fs.PathError{Op: "write", Path: key, Err: syscall.EISDIR}
	}
	return info.ModTime().UnixNano(), nil
}

// Delete implements [blob.Store]. Folders that it leaves empty go too.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := check(ctx, "delete", key); err != nil {
		return err
	}
	err := s.writes.with(func() error {
		info, err := s.root.Lstat(key)
		if err != nil || info.IsDir() {
			return err // a folder is no object: there is nothing to delete
		}
		return s.root.Remove(key)
	})
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return s.failed("delete", key, err)
	}
	left := s.prune(key)
	if s.noSync {
		return nil
	}
	if _, err := s.flush(left); err != nil && !isAbsent(err) {
		return s.failed("make durable the deletion of", key, err)
	}
	return nil
}

// inFolder runs do, which names a file in the key's folder, and makes the folder
// when it is absent: at first, or because a delete pruned it.
func (s *Store) inFolder(ctx context.Context, key string, do func() error) error {
	var err error
	for range maxFolderRaces {
		if err = do(); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		made := s.root.MkdirAll(path.Dir(key), folderMode)
		// A folder that others make and prune at the same time was there, and is
		// gone, in between.
		if made != nil && !errors.Is(made, fs.ErrNotExist) && !errors.Is(made, fs.ErrExist) {
			return made
		}
	}
	return err
}

// temp is content that has no key yet.
type temp struct {
	store *Store
	key   string
	name  string
	file  *os.File
	crc   hash.Hash32
}

// stage writes content to a temporary file.
func (s *Store) stage(key string, r io.Reader) (*temp, error) {
	t := &temp{
		store: s, key: key, name: path.Join(blob.TempPrefix, rand.Text()),
		crc: crc32.New(crc32.MakeTable(crc32.Castagnoli)),
	}
	var err error
	if t.file, err = s.root.OpenFile(t.name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.MultiWriter(t.file, t.crc), r); err != nil {
		t.discard()
		return nil, err
	}
	return t, nil
}

// seal gives the content a generation greater than old, and makes it durable.
func (t *temp) seal(old int64) (blob.Object, error) {
	stamp := time.Unix(0, t.store.stamps.next(old))
	if err := t.store.root.Chtimes(t.name, stamp, stamp); err != nil {
		return blob.Object{}, err
	}
	if !t.store.noSync {
		if err := t.file.Sync(); err != nil {
			return blob.Object{}, err
		}
	}
	info, err := t.file.Stat()
	if err != nil {
		return blob.Object{}, err
	}
	return object(t.key, info, t.crc.Sum32()), nil
}

// discard removes the temporary name, which is all there is unless the content
// has got its key. What cannot be removed is swept later.
func (t *temp) discard() {
	_ = t.file.Close()
	_ = t.store.root.Remove(t.name)
}

// source reads until its context is done.
type source struct {
	ctx context.Context //nolint:containedctx // lives as long as the call that it belongs to
	r   io.Reader
}

// Read implements [io.Reader].
func (s *source) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}

func check(ctx context.Context, verb, key string) error {
	if err := blob.ValidateKey(key); err != nil {
		return fmt.Errorf("%s object: %w", verb, err)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s object %q: %w", verb, key, err)
	}
	return nil
}
