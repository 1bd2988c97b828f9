// Package fileblob is a [blob.Store] in a directory: an object is a file, its
// key the file's path. Other programs may read the files at any time; they are
// whole from the moment they have their name.
//
// # Writes
//
// A write is durable when its record is in the journal of the folder, a log that
// all processes share and that is flushed for many writes at once. The files
// themselves are not flushed. A batch of changes, one of a key at most, goes
// through these steps, all under a lock that holds between processes too:
//
//  1. Each change is judged by what its key names now. What is refused
//     (ErrExists, ErrMismatch) ends here.
//  2. The records of the others, with their content, are appended with one write.
//  3. The journal is flushed: fdatasync(2). From here on the changes are made.
//  4. The files, which were written beforehand under temporary names, get their
//     names by rename(2), or lose them.
//
// So nobody sees what a loss of power could take back: an object that is there is
// durable, and so is the answer that it exists. Nor does a loss of power leave
// half a file, or none, in place of one that was durable: what it does to a file
// whose name has changed is mended from the journal.
//
// Content above 1 MiB is not copied into the journal. It is flushed before the
// batch, its record has its checksum, and its folders are flushed in step 4.
//
// # After a crash
//
// The lock file holds how far the journal is valid and in which state its last
// user left it; it is never flushed, and believed only as long as the machine
// runs. Whoever takes the lock looks at it first.
//
//   - A process died at work. Every file that has its name is as it is to be; a
//     change whose file has not was not acknowledged. Everything is flushed, and
//     the journal begins anew.
//   - The machine was started anew, which the journal's header tells. The journal
//     is replayed up to the last record that is whole: every object is written as
//     its last record says. Then as above.
//   - A flush has failed. What the system takes for written since need not be on
//     the disk: the same, but for the records behind the last good flush.
//
// # Length
//
// A journal of 32 MiB is renamed, a new one begins, and in the background all
// files are flushed, after which the old one goes. Should the process die
// meanwhile, another one does it when the new journal is as long. A replay reads
// the old one first.
//
// # Outcomes
//
// An error of writing a temporary file, or of a journal for which there is no
// room, leaves nothing but, after a crash, a temporary file, which is swept when a
// store is opened an hour later. An error of flushing the journal or of naming a
// file may mean that the change takes effect later. All are "unknown" to the
// caller, as the port has it; reading the key tells.
//
// # Generations
//
// An object's generation is the modification time of its file in nanoseconds,
// which the store sets itself before the file gets its name: so it appears,
// survives and vanishes together with the content, without a second file that
// could disagree. It is no reading of the clock but a counter that follows it:
// greater than that of every other write of the folder, of which the journal
// keeps account, so the clock may even go back.
//
// # Limits
//
// What other programs change is in no journal. Whoever removes or changes objects
// by hand and loses power soon after may find them as they were: to be safe, stop
// what uses the folder, run sync(1), and delete journal and journal.old in
// .servo-tmp, too. For the same reason the disk must not be pulled out, and put
// back, while the machine goes on. Machines that write to one folder over a
// network take each other for one that was started anew: that is safe, and slow.
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
	"syscall"
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
	// Read is of who only reads: a directory that cannot be written is opened all the same,
	// and its writes fail with the reason.
	Read bool
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
	denied  error    // why nothing can be written
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
	if s.dirFile, err = s.openFolder("."); err != nil {
		return nil, err
	}
	err = s.makeReady()
	if opts.Read && (errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS)) {
		s.denied, err = err, nil
	}
	return s, err
}

// makeReady makes the store ready to be written.
func (s *Store) makeReady() (err error) {
	if err := s.root.Mkdir(blob.TempPrefix, folderMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if s.temps, err = s.openFolder(blob.TempPrefix); err != nil {
		return err
	}
	if s.writes, err = openLock(s.root, path.Join(blob.TempPrefix, "lock")); err != nil {
		return err
	}
	if err := s.sweep(); err != nil {
		return err
	}
	if s.stamps.tick, err = probe(s.root); err != nil {
		return err
	}
	return s.writes.with(s.enter)
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
