// Package fileblob is a [blob.Store] in a directory: an object is a file, its
// key the file's path. Other programs may read the files at any time; they are
// whole from the moment they have their name.
//
// # Writes
//
// Content goes to a temporary file in the store, is flushed, and gets its name
// by link(2), which fails if the name exists: that is create-if-absent. Then
// the folder is flushed, and every folder above it that this process does not
// know to be durable. A write that returns nil, and one that returns ErrExists
// (for the caller may take it as success), survives a loss of power. Replace
// and Put use rename(2), and with Delete take a lock that holds between
// processes too.
//
// Outcomes: an error up to link or rename leaves nothing but, after a crash, a
// temporary file, which is swept when a store is opened an hour later. An error
// of flushing the folder comes after the object has its name. Both are
// "unknown" to the caller, as the port has it; reading the key tells.
//
// # Generations
//
// An object's generation is the modification time of its file in nanoseconds,
// which the store sets itself before the file gets its name: so it appears,
// survives and vanishes together with the content, without a second file that
// could disagree. It is no reading of the clock but a counter that follows it:
// greater than that of every other write of this store, and than the one
// it replaces (which is read under the lock, so the clock may even go back).
// Two processes that write one key without Replace or Put, each with a Delete
// in between, have another by the clock alone.
//
// Symbolic links are never followed out of the directory, and never listed.
package fileblob

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
)

const (
	folderMode = 0o755
	fileMode   = 0o644
	// cutAt is how long a journal gets.
	cutAt = 32 << 20
	// allocate is by how much a journal grows. It is written over: a flush of what
	// changes no size is one write, and takes half the time.
	allocate = 256 << 10
	// sweepAfter is how old a temporary file is that no process still writes.
	sweepAfter = time.Hour
)

// Options configure a store. The zero value is ready to use.
type Options struct {
	// NoSync leaves out every flush: fast, and lost with the machine. For tests.
	NoSync bool
	// Now dates the objects; nil means the system's clock.
	Now func() time.Time
}

// limits are sizes in bytes.
type limits struct {
	inline int64 // of the largest content that is copied into the journal
	cut    int64 // of a journal that is long enough to begin a new one
	ahead  int64 // that a journal grows beyond what is written
}

// Store is a directory of objects. Create it with [Open].
type Store struct {
	dir     string // absolute
	root    *os.Root
	dirFile *os.File // the directory itself
	temps   *os.File // the folder of temporary files
	sys     system
	limits  limits

	stamps  stamps
	writes  *lock
	queue   queue
	journal *journal // nil: nothing is flushed
	closed  bool     // belongs to who leads the queue
	// background is the flush of what an old journal has.
	background sync.WaitGroup
}

var (
	_ blob.Store = (*Store)(nil)
	_ blob.Local = (*Store)(nil)
)

// Open opens the store in a directory, which it makes if it is absent. Several
// processes may have one directory open. The caller closes the store.
func Open(dir string, opts Options) (*Store, error) {
	if opts.Now == nil {
		opts.Now = clock.System{}.Now
	}
	s, err := open(dir, opts, limits{inline: maxInline, cut: cutAt, ahead: allocate}, nil)
	if err != nil {
		return nil, fmt.Errorf("open object store in %s: %w%s", dir, err, advice(err))
	}
	return s, nil
}

func open(dir string, opts Options, limits limits, sys *system) (_ *Store, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := makeDurable(dir, opts.NoSync); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, root: root, limits: limits,
		stamps: stamps{now: opts.Now},
		queue:  queue{leader: make(chan struct{}, 1)},
	}
	if s.sys = realSystem(&s.background); sys != nil {
		s.sys = *sys
	}
	if !opts.NoSync {
		s.journal = &journal{}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := root.Mkdir(blob.TempPrefix, folderMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if s.dirFile, err = s.openFolder("."); err != nil {
		return nil, err
	}
	if s.temps, err = s.openFolder(blob.TempPrefix); err != nil {
		return nil, err
	}
	if s.writes, err = openLock(root, path.Join(blob.TempPrefix, "lock")); err != nil {
		return nil, err
	}
	if err := s.sweep(); err != nil {
		return nil, err
	}
	if s.stamps.tick, err = probe(root); err != nil {
		return nil, err
	}
	if err := s.writes.with(s.enter); err != nil {
		return nil, err
	}
	return s, nil
}

// makeDurable makes a directory and those above it, and flushes what it made.
func makeDurable(dir string, noSync bool) error {
	var made []string
	for d := dir; ; d = filepath.Dir(d) {
		_, err := os.Stat(d)
		if err == nil || d == filepath.Dir(d) {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, folderMode); err != nil || noSync {
		return err
	}
	for _, d := range made {
		if err := flushDir(filepath.Dir(d)); err != nil {
			return err
		}
	}
	return nil
}

func flushDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Close gives back what the store holds of the system, when what is under way is
// done. Operations fail from then on; streams that are open stay so.
func (s *Store) Close() error {
	s.queue.leader <- struct{}{}
	s.closed = true
	<-s.queue.leader
	s.background.Wait()
	var err error
	if s.journal != nil {
		err = s.journal.close()
	}
	if s.writes != nil {
		err = errors.Join(err, s.writes.close())
	}
	for _, folder := range []*os.File{s.temps, s.dirFile} {
		if folder != nil {
			err = errors.Join(err, folder.Close())
		}
	}
	return errors.Join(err, s.root.Close())
}

// Path implements [blob.Local]. Of an invalid key it is empty.
func (s *Store) Path(key string) string {
	if blob.ValidateKey(key) != nil {
		return ""
	}
	return filepath.Join(s.dir, filepath.FromSlash(key))
}

// sweep removes the temporary files that a crash left. Young ones may belong to
// a process that lives.
func (s *Store) sweep() error {
	dir, err := s.root.Open(blob.TempPrefix)
	if err != nil {
		return err
	}
	entries, err := dir.ReadDir(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	deadline := s.stamps.now().Add(-sweepAfter)
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || kept(entry.Name()) || info.ModTime().After(deadline) {
			continue // also what another process removed meanwhile
		}
		if err := s.root.Remove(path.Join(blob.TempPrefix, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// kept reports whether a file among the temporary ones is none.
func kept(name string) bool { return name == "lock" || name == journalName || name == oldName }
