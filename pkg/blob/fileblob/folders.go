package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFile opens a file or a folder without following links out of the store. It tries openBeneath first, which takes
// one system call; [os.Root] opens every folder on the way. If openBeneath fails for any reason other than a missing
// file, openFile returns the result of os.Root.
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

// makeFolder creates a folder and its missing parents, and opens it.
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
	if err != nil { // the folder exists by now, or MkdirAll returns why it cannot be created
		err = s.root.MkdirAll(name, folderMode)
	}
	if err != nil {
		return nil, err
	}
	return s.openFolder(name)
}

// prune removes the empty folders above a key. The caller holds the lock, which every
// goroutine that creates folders also holds.
func (s *Store) prune(key string) {
	for d := path.Dir(key); d != "."; d = path.Dir(d) {
		if err := s.removeFolder(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
}

// removeFolder calls rmdir(2). Unlike [os.Root.Remove] it never removes a file that got the same name in the
// meantime.
func (s *Store) removeFolder(folder string) error {
	parent, err := s.openFolder(path.Dir(folder))
	if err != nil {
		return err
	}
	return errors.Join(unlink(parent, path.Base(folder), unix.AT_REMOVEDIR), parent.Close())
}

// flushFiles makes the writes and deletions of the objects with the given keys durable, one by one.
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

// flushFolders makes the names of objects durable by flushing every folder above them.
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
