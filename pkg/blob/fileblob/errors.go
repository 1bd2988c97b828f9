package fileblob

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"syscall"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// failed returns an error that names the operation, the object and its file, and suggests how to fix the cause.
func (s *Store) failed(verb, key string, err error) error {
	if obstacle := s.obstacle(key); obstacle != "" {
		return fmt.Errorf("%s object %q: %w: %s (%w)", verb, key, blob.ErrInvalid, obstacle, err)
	}
	return fmt.Errorf("%s object %q in file %s: %w%s", verb, key, s.file(key), err, advice(err))
}

// obstacle describes the file or folder on the disk that makes a key impossible. Either the key names a folder of
// other objects, or a folder in the key's path is an object: see [blob.ValidateKey]. If nothing makes the key
// impossible, obstacle returns "".
func (s *Store) obstacle(key string) string {
	if info, err := s.root.Stat(key); err == nil && info.IsDir() {
		return s.file(key) + " is a folder, and no key may be a folder of another key"
	}
	for d := path.Dir(key); d != "."; d = path.Dir(d) {
		if info, err := s.root.Stat(d); err == nil && !info.IsDir() {
			return s.file(d) + " is a file, and no key may be a folder of another key"
		}
	}
	return ""
}

func (s *Store) file(key string) string { return filepath.Join(s.dir, filepath.FromSlash(key)) }

// advice returns what to do about a system error, in parentheses, or "".
func advice(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return " (free some space there, or raise the quota)"
	case errors.Is(err, syscall.EROFS):
		return " (the file system is mounted read-only: mount it writable, or choose another directory)"
	case errors.Is(err, fs.ErrPermission):
		return " (grant this user read and write permission on the directory and everything in it)"
	case errors.Is(err, syscall.ENOTDIR):
		return " (a file is where a folder should be: move it away, or choose another directory)"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return " (raise the limit on open files: ulimit -n)"
	case errors.Is(err, syscall.EXDEV):
		return " (the whole store must be on one file system)"
	case errors.Is(err, syscall.ENAMETOOLONG):
		return " (choose a directory with a shorter path or a file system with longer names)"
	}
	return ""
}
