package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// shorten rotates a long journal when the store is closed, and waits for the rotation. If the rotation fails, the
// journal stays as it is, and a later process rotates it.
func (s *Store) shorten() {
	if s.journal == nil || s.journal.file == nil || s.reader || s.denied != nil {
		return
	}
	var flush func()
	_ = s.writes.holding(func() error {
		err := s.enter()
		if err == nil {
			flush = s.rotate(s.limits.rest)
		}
		return err
	})
	if flush != nil {
		flush()
	}
}

// rotate starts a new journal if the current one has at least the given length. It returns a function that flushes the
// files of the old journal and then removes the old journal. The function is nil if there is no old journal, or if
// another process flushes it. If a process died during a rotation, its old journal still exists: rotate then starts no
// new journal, and returns the function for the existing old one. The caller holds the lock for rotate, but not for the
// returned function. If rotate fails, the next goroutine that takes the lock detects it.
func (s *Store) rotate(length int64) (flush func()) {
	j := s.journal
	if j.rotating || j.status.end < length {
		return nil
	}
	old, err := s.root.OpenFile(path.Join(blob.TempPrefix, oldName), os.O_RDWR, 0)
	switch {
	case err == nil:
		return s.flushOf(old)
	case errors.Is(err, fs.ErrNotExist):
		if err := s.sys.rename(s.temps, journalName, s.temps, oldName); err != nil {
			return nil
		}
		old, j.file = j.file, nil
		flush = s.flushOf(old)
		_ = s.begin()
	}
	return flush
}

// flushOf returns a function that flushes the files of an old journal, removes the journal, and closes it. It returns
// nil if another process is already doing so.
func (s *Store) flushOf(old *os.File) func() {
	if err := flock(old, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = old.Close()
		return nil
	}
	s.journal.rotating = true
	return func() {
		defer func() { _ = old.Close() }()
		flushed := s.flushAll(func() ([]string, error) {
			f, err := readLogs(logs{{name: oldName, file: old}})
			if err != nil {
				return nil, err
			}
			return f.keys(), nil
		})
		_ = s.writes.holding(func() error {
			s.journal.rotating = false
			return s.endRotation(old, flushed)
		})
	}
}

// endRotation removes an old journal, if it still exists, after its files were flushed. If the flush failed, it marks
// the journal as suspect.
func (s *Store) endRotation(old *os.File, flushed error) error {
	name := path.Join(blob.TempPrefix, oldName)
	was, err := old.Stat()
	if err != nil {
		return err
	}
	is, err := s.root.Stat(name)
	if err != nil || !os.SameFile(was, is) {
		return err // another process has recovered and removed the journal
	}
	if flushed != nil {
		found, err := loadStatus(s.writes.file)
		if err != nil {
			return err
		}
		found.mark = suspect
		return found.save(s.writes.file)
	}
	return s.removeOld()
}

func (s *Store) removeOld() error {
	err := s.sys.remove(s.temps, oldName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, s.sys.fsync(s.temps))
}
