package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxBatch is the maximum number of changes that are committed at once. There is a limit because each change keeps a
	// folder open.
	maxBatch = 128
	// maxBatchBytes limits the bytes that one batch adds to the journal.
	maxBatchBytes = 8 << 20
)

// change is one write or deletion of an object, from the call to its outcome.
type change struct {
	key     string
	content *temp                // nil to remove the object
	check   func(existing) error // returns why the change is refused, given the object that it would replace

	folder  *os.File // parent folder of the key
	made    bool     // the folder was created for this change
	version int64

	// The outcome. If neither error is set and finished is true, the change is done.
	refused  error // why check refused the change; a refused change is not made
	err      error // system error
	finished bool  // the outcome is known
	done     chan struct{}
}

// existing describes the file or folder that a key names before a change.
type existing struct {
	exists   bool
	isFolder bool
	version  int64 // 0 if there is no object
}

// queue contains the changes that wait to be committed. The goroutine that becomes the leader commits the changes of
// all waiting goroutines, so that one flush serves every change that arrived during the previous flush.
type queue struct {
	leader chan struct{} // contains a value while a goroutine is the leader

	mu      sync.Mutex
	waiting []*change
}

// commit waits until a change is committed, by this goroutine or by another one that is the leader.
func (s *Store) commit(c *change) {
	c.done = make(chan struct{})
	s.queue.mu.Lock()
	s.queue.waiting = append(s.queue.waiting, c)
	s.queue.mu.Unlock()
	for {
		select {
		case <-c.done:
			return
		case s.queue.leader <- struct{}{}:
			if batch := s.queue.take(); len(batch) > 0 {
				s.run(batch)
			}
			<-s.queue.leader
		}
	}
}

// take removes and returns the next batch. It contains at most one change per key. A second change could not be
// checked, because the file of the first change gets its name only after the whole batch has been checked.
func (q *queue) take() (batch []*change) {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken, size := map[string]bool{}, int64(0)
	var rest []*change
	for _, c := range q.waiting {
		if taken[c.key] || len(batch) == maxBatch || size > maxBatchBytes {
			rest = append(rest, c)
			taken[c.key] = true
			continue
		}
		taken[c.key] = true
		batch = append(batch, c)
		if c.content != nil {
			size += int64(len(c.content.data))
		}
	}
	q.waiting = rest
	return batch
}

// run commits a batch. The caller is the leader.
func (s *Store) run(batch []*change) {
	err := os.ErrClosed
	if !s.closed {
		err = s.writes.holding(func() error { return s.commitAll(batch) })
	}
	for _, c := range batch {
		if c.folder != nil {
			_ = c.folder.Close()
		}
		if !c.finished {
			c.err = err
		}
		close(c.done)
	}
}

// commitAll implements the order on which all safety depends: changes are checked, written to the journal, and
// flushed; only then do the files get their names. So no reader sees a change that a power loss could undo. The
// caller holds the lock. The returned error applies to all changes that are not finished.
func (s *Store) commitAll(batch []*change) error {
	if err := s.enter(); err != nil {
		return err
	}
	var ready []*change
	for _, c := range batch {
		if c.err = s.prepare(c); c.err != nil {
			c.finished = true
		}
		if !c.finished {
			ready = append(ready, c)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	if err := s.log(ready); err != nil {
		s.pruneAll(batch) // removes the folders that were created for these changes
		return err
	}
	var failed error
	for _, c := range ready {
		c.err, c.finished = s.name(c), true
		failed = errors.Join(failed, c.err)
	}
	s.pruneAll(batch)
	s.leave(failed)
	return nil
}

// prepare checks a change, creates its folder, and sets the version of its content.
func (s *Store) prepare(c *change) error {
	var old existing
	var err error
	if c.folder, err = s.openFolder(path.Dir(c.key)); err == nil {
		old, err = s.look(c)
	}
	if c.content == nil {
		// A folder is not an object: nothing to delete.
		if isAbsent(err) || err == nil && (!old.exists || old.isFolder) {
			c.finished, err = true, nil
		}
		return err
	}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case old.isFolder:
		return &fs.PathError{Op: "write", Path: c.key, Err: syscall.EISDIR}
	}
	if c.refused = c.check(old); c.refused != nil {
		c.finished = true
		return nil //nolint:nilerr // a refusal is not an error: the change records it
	}
	if c.folder == nil {
		if c.folder, err = s.makeFolder(path.Dir(c.key)); err != nil {
			return err
		}
		c.made = true
	}
	c.version = s.stamps.next(max(old.version, s.lastVersion()))
	if err := s.stamp(c.content.name, c.version); err != nil {
		return err
	}
	if c.content.isLarge() && s.journal != nil {
		return s.flushTemp(c.content.name)
	}
	return nil
}

// flushTemp makes the modification time of a temporary file durable. Its content was flushed before the store's lock
// was taken, so this flush writes only the inode. If the content is too large for the journal, a replay recognizes
// the file by its modification time.
func (s *Store) flushTemp(name string) error {
	f, err := openIn(s.temps, "open", name, func(fd int) (int, error) {
		return unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	return errors.Join(s.sys.fsync(f), f.Close())
}

// stamp sets the modification time of a temporary file to its version.
func (s *Store) stamp(temp string, version int64) error {
	at := unix.NsecToTimespec(version)
	return os.NewSyscallError("utimensat", retry(func() error {
		return unix.UtimesNanoAt(int(s.temps.Fd()), temp, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
	}))
}

// look describes the file or folder that exists at the key of a change.
func (s *Store) look(c *change) (existing, error) {
	var st unix.Stat_t
	err := retry(func() error {
		return unix.Fstatat(int(c.folder.Fd()), path.Base(c.key), &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	mode := uint32(st.Mode) & unix.S_IFMT //nolint:unconvert // the field has another type on other systems
	switch {
	case errors.Is(err, unix.ENOENT):
		return existing{}, nil
	case err != nil:
		return existing{}, os.NewSyscallError("stat", err)
	case mode == unix.S_IFLNK && c.content != nil:
		// Readers see the target of the link, if it is in the store.
		info, err := s.root.Stat(c.key)
		if err != nil {
			return existing{}, err
		}
		return existing{exists: true, isFolder: info.IsDir(), version: info.ModTime().UnixNano()}, nil
	}
	return existing{exists: true, isFolder: mode == unix.S_IFDIR, version: st.Mtim.Nano()}, nil
}

// name applies a change to the folder: it renames the temporary file to the file of the key or, for
// a deletion, removes that file.
func (s *Store) name(c *change) error {
	if c.content == nil {
		err := s.sys.remove(c.folder, path.Base(c.key))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := s.sys.rename(s.temps, c.content.name, c.folder, path.Base(c.key)); err != nil {
		return err
	}
	c.content.placed = true
	if c.content.isLarge() && s.journal != nil {
		return s.flushFolders([]string{c.key}) // the journal has no copy of this content
	}
	return nil
}

// pruneAll removes the folders that a batch left empty. It runs after all files have their names, since one change
// may need a folder that another change empties.
func (s *Store) pruneAll(batch []*change) {
	for _, c := range batch {
		if c.content == nil || c.made && !c.content.placed {
			s.prune(c.key)
		}
	}
}
