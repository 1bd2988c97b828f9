package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// rotate starts a new journal when this one is long enough, and flushes the files of the
// old one in the background before removing it. It also finishes a rotation of a process
// that died. The caller holds the lock. If rotate fails, the next goroutine that takes the
// lock detects it.
func (s *Store) rotate() {
	j := s.journal
	if j.rotating || j.status.end < s.limits.rotate {
		return
	}
	old, err := s.root.OpenFile(path.Join(blob.TempPrefix, oldName), os.O_RDWR, 0)
	switch {
	case err == nil:
		s.flushBehind(old)
	case errors.Is(err, fs.ErrNotExist):
		if err := s.sys.rename(s.temps, journalName, s.temps, oldName); err != nil {
			return
		}
		old, j.file = j.file, nil
		s.flushBehind(old)
		_ = s.begin()
	}
}

// flushBehind flushes the files of an old journal in the background and then removes the
// journal, unless another process is doing so. It closes old.
func (s *Store) flushBehind(old *os.File) {
	if err := flock(old, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = old.Close()
		return
	}
	s.journal.rotating = true
	s.sys.later(func() {
		defer func() { _ = old.Close() }()
		flushed := s.flushAll(func() ([]string, error) {
			f, err := readLogs(logs{{name: oldName, file: old}})
			if err != nil {
				return nil, err
			}
			return f.keys(), nil
		})
		_ = s.writes.with(func() error {
			s.journal.rotating = false
			return s.endRotation(old, flushed)
		})
	})
}

// endRotation removes an old journal after its files were flushed, if it still exists. If
// the flush failed, it marks the journal as suspect.
func (s *Store) endRotation(old *os.File, flushed error) error {
	name := path.Join(blob.TempPrefix, oldName)
	was, err := old.Stat()
	if err != nil {
		return err
	}
	is, err := s.root.Stat(name)
	if err != nil || !os.SameFile(was, is) {
		return err // another process has recovered and removed it
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
