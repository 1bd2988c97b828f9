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
	// maxBatch is how many changes are committed at once: each holds a folder open.
	maxBatch = 128
	// maxBatchBytes bounds what one batch adds to the journal.
	maxBatchBytes = 8 << 20
)

// change is one object's, from the call that wants it to its outcome.
type change struct {
	key     string
	content *temp               // nil: the object is to be removed
	agree   func(present) error // refuses a write, given what it would replace

	folder     *os.File // that holds the key, or is to
	made       bool     // the folder was made for it
	generation int64

	// The outcome. None of the three: done.
	refused error // not done, for what is there
	err     error // of the system
	settled bool  // there is nothing (more) to do
	done    chan struct{}
}

// present is what is under a key.
type present struct {
	exists     bool
	isFolder   bool
	generation int64 // 0 if there is no object
}

// queue holds the changes that wait to be committed, and the right to do that.
// Whoever has it takes along what the others want: so one flush does for all
// that came while the flush before was under way.
type queue struct {
	leader chan struct{} // holds a value while somebody leads

	mu      sync.Mutex
	waiting []*change
}

// commit brings a change to its outcome, by this goroutine or another that leads.
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

// take takes the batch to be committed next. It has one change of a key at most,
// for the files get their names only when all have been judged.
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

// run commits a batch. The caller leads.
func (s *Store) run(batch []*change) {
	err := os.ErrClosed
	if !s.closed {
		err = s.writes.with(func() error { return s.commitAll(batch) })
	}
	for _, c := range batch {
		if c.folder != nil {
			_ = c.folder.Close()
		}
		if !c.settled {
			c.err = err
		}
		close(c.done)
	}
}

// commitAll is the order that all safety rests on: what is to be is judged,
// written to the journal, and flushed; only then the files get their names.
// Nobody sees what a loss of power could take back. The caller holds the lock;
// changes that are not settled have the error that it returns.
func (s *Store) commitAll(batch []*change) error {
	if err := s.enter(); err != nil {
		return err
	}
	var ready []*change
	for _, c := range batch {
		if c.err = s.prepare(c); c.err != nil {
			c.settled = true
		}
		if !c.settled {
			ready = append(ready, c)
		}
	}
	if len(ready) == 0 {
		return nil
	}
	if err := s.log(ready); err != nil {
		s.pruneAll(batch) // folders that were made for nothing
		return err
	}
	var failed error
	for _, c := range ready {
		c.err, c.settled = s.name(c), true
		failed = errors.Join(failed, c.err)
	}
	s.pruneAll(batch)
	s.leave(failed)
	return nil
}

// prepare judges a change, makes its folder, and gives its content a generation.
func (s *Store) prepare(c *change) error {
	var old present
	var err error
	if c.folder, err = s.openFolder(path.Dir(c.key)); err == nil {
		old, err = s.look(c)
	}
	if c.content == nil {
		// A folder is no object: there is nothing to delete.
		if isAbsent(err) || err == nil && (!old.exists || old.isFolder) {
			c.settled, err = true, nil
		}
		return err
	}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case old.isFolder:
		return &fs.PathError{Op: "write", Path: c.key, Err: syscall.EISDIR}
	}
	if c.refused = c.agree(old); c.refused != nil {
		c.settled = true
		return nil //nolint:nilerr // a refusal is an answer; the change has it
	}
	if c.folder == nil {
		if c.folder, err = s.makeFolder(path.Dir(c.key)); err != nil {
			return err
		}
		c.made = true
	}
	c.generation = s.stamps.next(max(old.generation, s.lastGeneration()))
	if err := s.stamp(c.content.name, c.generation); err != nil {
		return err
	}
	if c.content.isLarge() && s.journal != nil {
		return s.flushTemp(c.content.name)
	}
	return nil
}

// flushTemp makes the modification time of a temporary file durable. Its content was
// flushed before the store's lock was taken, so this writes the inode alone. A replay
// recognizes a file that is too large for the journal by its modification time.
func (s *Store) flushTemp(name string) error {
	f, err := openIn(s.temps, "open", name, func(fd int) (int, error) {
		return unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	return errors.Join(s.sys.fsync(f), f.Close())
}

// stamp sets the modification time of a temporary file to its generation.
func (s *Store) stamp(temp string, generation int64) error {
	at := unix.NsecToTimespec(generation)
	return os.NewSyscallError("utimensat", retry(func() error {
		return unix.UtimesNanoAt(int(s.temps.Fd()), temp, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
	}))
}

// look finds what is under a key.
func (s *Store) look(c *change) (present, error) {
	var st unix.Stat_t
	err := retry(func() error {
		return unix.Fstatat(int(c.folder.Fd()), path.Base(c.key), &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	mode := uint32(st.Mode) & unix.S_IFMT //nolint:unconvert // it is of another type on other systems
	switch {
	case errors.Is(err, unix.ENOENT):
		return present{}, nil
	case err != nil:
		return present{}, os.NewSyscallError("stat", err)
	case mode == unix.S_IFLNK && c.content != nil:
		// What it points to, if that is in the store, is what readers see.
		info, err := s.root.Stat(c.key)
		if err != nil {
			return present{}, err
		}
		return present{exists: true, isFolder: info.IsDir(), generation: info.ModTime().UnixNano()}, nil
	}
	return present{exists: true, isFolder: mode == unix.S_IFDIR, generation: st.Mtim.Nano()}, nil
}

// name gives the content its key, or removes the object.
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
		return s.flushFolders([]string{c.key}) // the journal has not what could be restored
	}
	return nil
}

// pruneAll removes the folders that a batch left empty: not before all of it has
// its names, for one change may need the folder that another empties.
func (s *Store) pruneAll(batch []*change) {
	for _, c := range batch {
		if c.content == nil || c.made && !c.content.placed {
			s.prune(c.key)
		}
	}
}
