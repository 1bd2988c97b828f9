package fileblob

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// lock is held by one goroutine of one process at a time: Replace, Put and
// Delete of a store hold it while they look at the present object and change
// it. It is free again when its holder dies.
type lock struct {
	mu   sync.Mutex
	file *os.File
}

func openLock(root *os.Root, name string) (*lock, error) {
	file, err := root.OpenFile(name, os.O_CREATE|os.O_RDWR, fileMode)
	if err != nil {
		return nil, err
	}
	return &lock{file: file}, nil
}

// with runs do under the lock. Another process holds it for one
// flush and one rename at most.
func (l *lock) with(do func() error) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.flock(unix.LOCK_EX); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.flock(unix.LOCK_UN)) }()
	return do()
}

func (l *lock) flock(how int) error {
	conn, err := l.file.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	if err := conn.Control(func(fd uintptr) {
		for {
			if locked = unix.Flock(int(fd), how); !errors.Is(locked, unix.EINTR) {
				return
			}
		}
	}); err != nil {
		return err
	}
	return os.NewSyscallError("flock", locked)
}

func (l *lock) close() error { return l.file.Close() }
