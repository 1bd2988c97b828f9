package fileblob

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// lock excludes other goroutines and processes. Every change of an object holds the lock from reading the existing
// object until the change is made. The operating system releases the lock when the process dies.
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

// holding calls the function do while it holds the lock. Another process holds the lock for at most one batch, that is,
// for a flush of the journal and the renames.
func (l *lock) holding(do func() error) (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := flock(l.file, unix.LOCK_EX); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flock(l.file, unix.LOCK_UN)) }()
	return do()
}

func flock(file *os.File, how int) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	if err := conn.Control(func(fd uintptr) {
		locked = retry(func() error { return unix.Flock(int(fd), how) })
	}); err != nil {
		return err
	}
	return os.NewSyscallError("flock", locked)
}

func (l *lock) close() error { return l.file.Close() }
