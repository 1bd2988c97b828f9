package fileblob

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"sync"

	"golang.org/x/sys/unix"
)

// maxKnownFolders bounds the memory of what is durable; beyond it the store
// forgets all, and flushes again.
const maxKnownFolders = 10_000

// folders remembers which folders have a durable name, so that a create flushes
// one folder and not the chain up to the root. A folder is remembered with its
// identity: who removed and made it again, it is another one.
type folders struct {
	mu      sync.RWMutex
	durable map[string]fs.FileInfo
}

// settle makes an object's name durable: flushes its folder, and the folders
// above as far as they are not known to be durable. It is called after the
// object has its name, so that the folder cannot vanish before it is flushed.
func (s *Store) settle(key string) error {
	if s.noSync {
		return nil
	}
	folder := path.Dir(key)
	info, err := s.flush(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the object was deleted meanwhile: nothing is left to keep
	}
	if err != nil {
		return err
	}
	s.folders.mu.RLock()
	known := s.folders.knows(folder, info)
	s.folders.mu.RUnlock()
	if known {
		return nil
	}
	return s.settleFolder(folder)
}

// settleFolder flushes the chain above a folder. The lock keeps prune from
// replacing a folder of the chain between its flush and the note of it.
func (s *Store) settleFolder(folder string) error {
	s.folders.mu.Lock()
	defer s.folders.mu.Unlock()
	settled := map[string]fs.FileInfo{}
	for d := folder; d != "."; d = path.Dir(d) {
		info, err := s.root.Stat(d)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if s.folders.knows(d, info) {
			break
		}
		if _, err := s.flush(path.Dir(d)); err != nil {
			return err
		}
		settled[d] = info
	}
	if len(s.folders.durable)+len(settled) > maxKnownFolders {
		clear(s.folders.durable)
	}
	maps.Copy(s.folders.durable, settled) // only now: a folder vouches for all above it
	return nil
}

// knows reports whether the folder of this identity is durable. The caller
// holds the lock.
func (f *folders) knows(folder string, info fs.FileInfo) bool {
	if folder == "." {
		return true
	}
	known, ok := f.durable[folder]
	return ok && os.SameFile(known, info)
}

// flush makes the entries of a folder durable, and says which folder it was.
func (s *Store) flush(folder string) (info fs.FileInfo, err error) {
	f, err := s.root.Open(folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Sync(); err != nil {
		return nil, err
	}
	return f.Stat()
}

// prune removes the folders above a deleted object that are empty, and returns
// the first that is left.
func (s *Store) prune(key string) (left string) {
	s.folders.mu.Lock()
	defer s.folders.mu.Unlock()
	d := path.Dir(key)
	for ; d != "."; d = path.Dir(d) {
		if err := s.removeFolder(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			break
		}
		delete(s.folders.durable, d)
	}
	return d
}

// removeFolder is rmdir(2): unlike [os.Root.Remove] it never takes a file that
// has got the name meanwhile.
func (s *Store) removeFolder(folder string) (err error) {
	parent, err := s.root.Open(path.Dir(folder))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.Close()) }()
	conn, err := parent.SyscallConn()
	if err != nil {
		return err
	}
	var removed error
	if err := conn.Control(func(fd uintptr) {
		removed = unix.Unlinkat(int(fd), path.Base(folder), unix.AT_REMOVEDIR)
	}); err != nil {
		return err
	}
	return removed
}
