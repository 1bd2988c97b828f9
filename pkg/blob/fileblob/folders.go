package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFile opens a file or a folder, not following links out of the store. Where the
// system can do that in one call, it does: [os.Root] opens every folder on the way. What
// that call refuses, os.Root does, or says why not.
func (s *Store) openFile(name string, flags int) (*os.File, error) {
	if s.dirFile != nil {
		f, err := s.sys.openBeneath(s.dirFile, name, flags)
		if err == nil || isAbsent(err) {
			return f, err
		}
	}
	return s.root.OpenFile(name, flags, 0)
}

// openFolder opens a folder of keys.
func (s *Store) openFolder(name string) (*os.File, error) {
	return s.openFile(name, os.O_RDONLY|syscall.O_DIRECTORY)
}

// makeFolder makes a folder, and those above it that are not there, and opens it.
func (s *Store) makeFolder(name string) (*os.File, error) {
	above := path.Dir(name)
	parent, err := s.openFolder(above)
	if errors.Is(err, fs.ErrNotExist) && above != name {
		parent, err = s.makeFolder(above)
	}
	if err == nil {
		made := retry(func() error { return unix.Mkdirat(int(parent.Fd()), path.Base(name), folderMode) })
		err = errors.Join(made, parent.Close())
	}
	if err != nil { // it is there by now, or it cannot be made, and this says why
		err = s.root.MkdirAll(name, folderMode)
	}
	if err != nil {
		return nil, err
	}
	return s.openFolder(name)
}

// prune removes the folders above a key that are empty. The caller holds the
// lock, as do all who make folders.
func (s *Store) prune(key string) {
	for d := path.Dir(key); d != "."; d = path.Dir(d) {
		if err := s.removeFolder(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
}

// removeFolder is rmdir(2): unlike [os.Root.Remove] it never takes a file that
// has got the name meanwhile.
func (s *Store) removeFolder(folder string) error {
	parent, err := s.openFolder(path.Dir(folder))
	if err != nil {
		return err
	}
	return errors.Join(unlink(parent, path.Base(folder), unix.AT_REMOVEDIR), parent.Close())
}

// flushFiles makes objects durable, one by one: what has been deleted, too.
func (s *Store) flushFiles(keys []string) error {
	for _, key := range keys {
		f, err := s.openFile(key, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW)
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(s.sys.fsync(f), f.Close()); err != nil {
			return err
		}
	}
	return s.flushFolders(keys)
}

// flushFolders makes the names of objects durable: every folder above them.
func (s *Store) flushFolders(keys []string) error {
	flushed := map[string]bool{}
	for _, key := range keys {
		for d := path.Dir(key); !flushed[d]; d = path.Dir(d) {
			flushed[d] = true
			if err := s.flushFolder(d); err != nil && !isAbsent(err) {
				return err
			}
		}
	}
	return nil
}

func (s *Store) flushFolder(name string) error {
	f, err := s.openFolder(name)
	if err != nil {
		return err
	}
	return errors.Join(s.sys.fsync(f), f.Close())
}
