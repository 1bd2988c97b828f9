// Package fileblob implements [blob.Store] in a directory. An object is a file; its key is
// the file's path. Other programs may read the files at any time: a file is complete from
// the moment it has its name. This package is not a stable API.
//
// # Writes
//
// A write is durable when its record is in the journal of the directory, a log that all
// processes share. One flush of the journal serves many writes; the files themselves are
// not flushed. A batch of changes, at most one per key, goes through these steps under a
// lock that also excludes other processes:
//
//  1. Each change is checked against the object that its key names. Refused changes
//     (ErrExists, ErrMismatch) end here.
//  2. The records of the other changes, with their content, are appended in one write.
//  3. The journal is flushed with fdatasync(2). This is the commit point.
//  4. Each file, already written under a temporary name, is renamed to its final name with
//     rename(2). A deletion removes the file.
//
// So a reader never sees a change that a power loss could undo: every object that it finds is durable. A power loss
// also cannot replace a durable object with an incomplete file: the journal restores every file whose name has
// changed.
//
// Content above 1 MiB is not copied into the journal. It is flushed before the batch, its
// record contains its checksum, and its folders are flushed in step 4.
//
// # After a crash
//
// The lock file records how far the journal is valid, and the state in which the last lock holder left it. The lock
// file is never flushed, and is trusted only until the machine restarts. After a process has taken the lock, it reads
// the lock file. It must recover in three cases:
//
//   - A process died while it changed the directory. Every file that has its final name is
//     correct. A change whose file does not have its final name was not acknowledged. All files
//     are flushed, and a new journal starts.
//   - The machine has restarted, as the journal's header shows. The journal is replayed up to
//     its last complete record: every object is written as its last record says. Then all
//     files are flushed, and a new journal starts.
//   - A flush has failed. The system may report data as written that is not on the disk. The
//     journal is replayed in this case too, but only up to the last successful flush.
//
// # Length
//
// A journal of 32 MiB is renamed and a new one starts. All files are flushed in the background, then the old journal is
// removed. If the process dies before this removal, another process removes the old journal when the new journal
// reaches 32 MiB. A replay reads the old journal first.
//
// # Outcomes
//
// If a temporary file cannot be written, or there is no space for the journal, the write changes nothing. After a
// crash, a temporary file may remain; it is removed when a store is opened more than an hour later. If the journal
// cannot be flushed, or a file cannot be renamed, the change may still take effect later. The caller gets an error with
// an unknown outcome, as the port defines it, and must read the key.
//
// # Versions
//
// An object's version is the modification time of its file in nanoseconds. The store sets it before the file gets its
// name, so the version appears and disappears together with the content; there is no second file that could
// contradict it. The version is not a reading of the clock, but a counter that follows the clock. The journal records
// the greatest version of the directory, and every write gets a greater one, even if the clock goes back.
//
// # Limits
//
// The journal does not contain changes by other programs. If objects are changed by hand and the machine loses power
// soon after, a replay may undo the change. To be safe, stop the processes that use the directory, run sync(1), and
// also delete journal and journal.old in .servo-tmp. Do not remove the disk and put it back while the machine runs: the
// store does not notice that writes were lost, and replays no journal. Machines that share one directory over a network
// treat each other's journals as journals of an earlier boot: that is safe, but slow.
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
	// journalLimit is the length at which a journal is rotated.
	journalLimit = 32 << 20
	// journalAtRest is the length above which Close rotates a journal, so that a directory that no process uses is small.
	journalAtRest = 4 << 20
	// allocate is the number of bytes by which a journal grows at once. Writing into allocated space does not change
	// the file's size, so that a flush is one write and takes half the time.
	allocate = 256 << 10
	// sweepAfter is the age after which a temporary file cannot belong to a running write.
	sweepAfter = time.Hour
)

// Options configure a store. The zero value is ready to use.
type Options struct {
	// NoSync skips every flush. It is fast, but a machine crash loses data. Only for tests.
	NoSync bool
	// Now returns the time from which the store derives the versions of objects; nil means the system clock.
	Now func() time.Time
	// Read opens the store for reading, even if the directory cannot be written. Writes to such a directory fail with
	// the reason.
	Read bool
}

// limits are sizes in bytes.
type limits struct {
	inline int64 // largest content that is copied into the journal
	rotate int64 // length at which a journal is rotated
	rest   int64 // length at which Close rotates a journal
	ahead  int64 // bytes by which the journal file is extended ahead of the written records
}

// Store stores objects in a directory. Open it with [Open].
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
	journal *journal // nil if NoSync
	closed  bool     // protected by queue.leader
	denied  error    // why the directory cannot be written, or nil
	reader  bool     // opened with Options.Read
	// The goroutine in background flushes the files of an old journal. Close waits for it.
	background sync.WaitGroup
}

var (
	_ blob.Store = (*Store)(nil)
	_ blob.Local = (*Store)(nil)
)

// Open opens the store in a directory, and creates the directory if it is absent. Several
// processes may open the same directory. The caller must close the store.
func Open(dir string, opts Options) (*Store, error) {
	if opts.Now == nil {
		opts.Now = clock.System{}.Now
	}
	s, err := open(dir, opts, limits{inline: maxInline, rotate: journalLimit, rest: journalAtRest, ahead: allocate}, nil)
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
		dir: dir, root: root, limits: limits, reader: opts.Read,
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

// makeReady prepares the directory for writes.
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
	return s.writes.holding(s.enter)
}

// makeDurable creates a directory and its parents, and flushes the ones that it created.
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

// Close waits for running operations, then releases the store's resources. Later operations
// fail; open streams stay open.
func (s *Store) Close() error {
	s.queue.leader <- struct{}{}
	s.closed = true
	<-s.queue.leader
	s.background.Wait()
	s.shorten()
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

// Path implements [blob.Local]. It returns "" for an invalid key.
func (s *Store) Path(key string) string {
	if blob.ValidateKey(key) != nil {
		return ""
	}
	return filepath.Join(s.dir, filepath.FromSlash(key))
}

// sweep removes temporary files that a crash left. Recent files may belong to a running process.
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
		if err != nil || !info.Mode().IsRegular() || reserved(entry.Name()) || info.ModTime().After(deadline) {
			continue // possibly removed by another process
		}
		if err := s.root.Remove(path.Join(blob.TempPrefix, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// reserved reports whether a file in the folder of temporary files is the lock or a journal, and so not a temporary
// file.
func reserved(name string) bool { return name == "lock" || name == journalName || name == oldName }
