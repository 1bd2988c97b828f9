package fileblob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// Get implements [blob.Store].
func (s *Store) Get(ctx context.Context, key string) (_ []byte, _ blob.Object, err error) {
	if err := blob.Check(ctx, "get", key); err != nil {
		return nil, blob.Object{}, err
	}
	f, info, err := s.open("get", key)
	if err != nil {
		return nil, blob.Object{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := blob.CheckSize(ctx, key, info.Size()); err != nil {
		return nil, blob.Object{}, err
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, blob.Object{}, s.failed("get", key, fmt.Errorf("the file is shorter than its %d bytes: %w", info.Size(), err))
	}
	// The store never changes a file that has its final name, but another program may have made the file longer. The
	// checksum would not show this, because it is computed from the bytes that were read.
	if n, err := f.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return nil, blob.Object{}, s.failed("get", key, fmt.Errorf("the file is longer than its %d bytes", info.Size()))
	}
	return data, object(key, info, blob.CRC32C(data)), nil
}

// Open implements [blob.Store]. The object's CRC32C is 0.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, blob.Object, error) {
	if err := blob.Check(ctx, "open", key); err != nil {
		return nil, blob.Object{}, err
	}
	f, info, err := s.open("open", key)
	if err != nil {
		return nil, blob.Object{}, err
	}
	return f, object(key, info, 0), nil
}

// Head implements [blob.Store]. The object's CRC32C is 0.
func (s *Store) Head(ctx context.Context, key string) (blob.Object, error) {
	if err := blob.Check(ctx, "head", key); err != nil {
		return blob.Object{}, err
	}
	info, err := s.root.Stat(key)
	switch {
	case isAbsent(err), err == nil && !info.Mode().IsRegular():
		return blob.Object{}, s.notFound("head", key)
	case err != nil:
		return blob.Object{}, s.failed("head", key, err)
	}
	return object(key, info, 0), nil
}

// open opens the file of an object. It does not block on a named pipe that another program
// created.
func (s *Store) open(verb, key string) (*os.File, fs.FileInfo, error) {
	f, err := s.openFile(key, os.O_RDONLY|syscall.O_NONBLOCK)
	if isAbsent(err) {
		return nil, nil, s.notFound(verb, key)
	}
	if err != nil {
		return nil, nil, s.failed(verb, key, err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = s.failed(verb, key, err)
	case !info.Mode().IsRegular():
		err = s.notFound(verb, key)
	default:
		return f, info, nil
	}
	return nil, nil, errors.Join(err, f.Close())
}

func (s *Store) notFound(verb, key string) error {
	return fmt.Errorf("%s object %q in file %s: %w", verb, key, s.file(key), blob.ErrNotFound)
}

// isAbsent reports whether an error means that a file does not exist. This includes a path that has a file in place of
// a folder.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

func object(key string, info fs.FileInfo, crc uint32) blob.Object {
	return blob.Object{
		Key: key, Size: info.Size(), Version: info.ModTime().UnixNano(),
		CRC32C: crc, Updated: info.ModTime(),
	}
}
