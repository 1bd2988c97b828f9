package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/service"
	"github.com/servo-orchestration/servo/pkg/snapshot"
)

// Files of a state folder that are not objects.
const (
	lockFile   = "lock"
	ownerFile  = "owner.json"
	scratchDir = "scratch"
)

// Owner is the process that owns a state folder.
type Owner struct {
	PID    int    `json:"pid"`
	URL    string `json:"url"`
	Domain string `json:"domain"`
	// Token authenticates requests to the owner. Any user who can read owner.json can use the token.
	Token string `json:"token"`
}

// LockedError reports that another process owns the state folder.
type LockedError struct {
	Dir string
	// Owner is that process. Its URL is empty while the process is starting.
	Owner Owner
}

// Error implements error.
func (e *LockedError) Error() string {
	if e.Owner.PID == 0 {
		return fmt.Sprintf("state folder %s is in use by another servo process that is starting; try again in a moment", e.Dir)
	}
	return fmt.Sprintf("state folder %s is in use by servo process %d, serving on %s", e.Dir, e.Owner.PID, e.Owner.URL)
}

// lock is an advisory lock on a state folder. The operating system releases the lock when the process ends, even
// after a crash.
type lock struct {
	file *os.File
	info os.FileInfo // identifies the locked file: see CheckFolder
}

func acquire(dir string) (*lock, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of state folder: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		owner, err := ReadOwner(dir) // the record is absent while the owner is starting
		if errors.Is(err, fs.ErrPermission) {
			return nil, errors.Join(fmt.Errorf("state folder %s is in use by a process of another user: %w; only that user can use the folder", dir, err), f.Close())
		}
		return nil, errors.Join(&LockedError{Dir: dir, Owner: owner}, f.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock state folder %s: %w", dir, err), f.Close())
	}
	// Other processes must not mistake the record of a dead owner for the record of this process.
	if err := os.Remove(filepath.Join(dir, ownerFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("lock state folder: %w", err), f.Close())
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock state folder: %w", err), f.Close())
	}
	return &lock{f, info}, nil
}

// publish writes owner.json, in which other processes find the owner's address.
func (l *lock) publish(dir string, o Owner) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode owner: %w", err)
	}
	temp := filepath.Join(dir, ownerFile+".new")
	if err := writePrivate(temp, data); err != nil {
		return fmt.Errorf("publish owner of state folder: %w", err)
	}
	if err := os.Rename(temp, filepath.Join(dir, ownerFile)); err != nil {
		return fmt.Errorf("publish owner of state folder: %w", err)
	}
	return nil
}

// writePrivate creates a file that only this user can ever read. If the file already exists, writePrivate removes it
// first, because overwriting the file would keep its mode.
func writePrivate(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // a path that the caller owns
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// MakeFolder creates a state folder that only this user can enter. An existing folder keeps its mode, so that the
// user to whom it belongs can let others read the state. But MakeFolder removes the write permission of other users,
// because they could replace the state. In a new folder, a file .gitignore keeps the state and its signing keys out
// of commits.
func MakeFolder(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // parent folders are the user's, not Servo's
		return fmt.Errorf("make state folder: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err == nil {
		return writePrivate(filepath.Join(dir, ".gitignore"), []byte("*\n"))
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make state folder: %w", err)
	}
	const writableByOthers = 0o022
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("make state folder: %w", err)
	case !info.IsDir():
		return fmt.Errorf("make state folder %s: the path exists, but is not a folder: choose another folder with --state", dir)
	case info.Mode().Perm()&writableByOthers == 0:
		return nil
	}
	if err := os.Chmod(dir, info.Mode().Perm()&^writableByOthers); err != nil {
		return fmt.Errorf("other users can write to the state folder %s (mode %v) and could replace the state: %w; name a folder inside it with --state",
			dir, info.Mode().Perm(), err)
	}
	return nil
}

// CheckFolder returns an error if the state folder was deleted or replaced since the stack locked it. The stack then
// serves a state that no other process sees.
func (s *Stack) CheckFolder() error {
	now, err := os.Stat(filepath.Join(s.opts.Dir, lockFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(s.lock.info, now) {
		return fmt.Errorf("the state folder %s was deleted or replaced while this process served it: start again", s.opts.Dir)
	}
	return nil
}

func (l *lock) release(dir string) {
	if l == nil || l.file == nil {
		return
	}
	_ = os.Remove(filepath.Join(dir, ownerFile)) // if this fails, the next owner removes the file
	_ = l.file.Close()
	l.file = nil
}

// ReadOwner reads the record that the owner of a state folder has published.
func ReadOwner(dir string) (Owner, error) {
	path := filepath.Join(dir, ownerFile)
	data, err := os.ReadFile(path) //nolint:gosec // a path that the caller owns
	if err != nil {
		return Owner{}, fmt.Errorf("read owner of state folder: %w", err)
	}
	var o Owner
	if err := json.Unmarshal(data, &o); err != nil {
		return Owner{}, fmt.Errorf("read owner of state folder in %s: %w", path, err)
	}
	return o, nil
}

// concurrency returns how many deliveries of a queue run at once.
func (s *Stack) concurrency(queue string) int {
	const timers = 16
	if queue == control.TimerQueue {
		return timers
	}
	if s.opts.Concurrency > 0 {
		return s.opts.Concurrency
	}
	return 2 * runtime.GOMAXPROCS(0) //nolint:mnd // a task spends about as much time on file access as on computation
}

// newClient returns a client that keeps connections to this machine open, because every task sends several requests.
func newClient() *http.Client {
	const conns = 256
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConns: conns, MaxIdleConnsPerHost: conns, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// inProcess serves the snapshots of a compactor in this process.
type inProcess struct{ latest *snapshot.Latest }

func (p inProcess) Current(context.Context) (*snapshot.Snapshot, error) {
	snap, _ := p.latest.Get()
	return snap, nil
}

func (p inProcess) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	return p.latest.Await(ctx, func(s *snapshot.Snapshot) bool { return s.Revision > after })
}

// LoadKeys reads the signing keys of a state folder and creates them if they are absent. It is for
// a worker in a process of its own.
func LoadKeys(dir string) (contract.Keyring, error) {
	if err := MakeFolder(dir); err != nil {
		return contract.Keyring{}, err
	}
	return service.OpenKeys(filepath.Join(dir, service.KeysFile))
}
