package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// cut begins a new journal when there is much in this one, and has the files of
// this one flushed, after which it goes. It does so too for one that a process
// began to cut and died. The caller holds the lock; if something fails, the next
// who takes it finds out.
func (s *Store) cut() {
	j := s.journal
	if j.cutting || j.status.end < s.limits.cut {
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

// flushBehind flushes the files of an old journal in the background, unless
// another process is at it, and then removes the journal. It takes over the file.
func (s *Store) flushBehind(old *os.File) {
	if err := flock(old, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = old.Close()
		return
	}
	s.journal.cutting = true
	s.sys.later(func() {
		defer func() { _ = old.Close() }()
		flushed := s.flushAll(func() ([]string, error) {
			f, err := foldLogs(logs{{name: oldName, file: old}})
			if err != nil {
				return nil, err
			}
			return f.keys(), nil
		})
		_ = s.writes.with(func() error {
			s.journal.cutting = false
			return s.endCut(old, flushed)
		})
	})
}

// endCut removes an old journal whose files are flushed, if it is there still.
func (s *Store) endCut(old *os.File, flushed error) error {
	name := path.Join(blob.TempPrefix, oldName)
	was, err := old.Stat()
	if err != nil {
		return err
	}
	is, err := s.root.Stat(name)
	if err != nil || !os.SameFile(was, is) {
		return err // a process that found something amiss has flushed and removed it
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
