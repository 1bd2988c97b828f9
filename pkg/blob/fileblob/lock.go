package fileblob

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// lock is held by one goroutine of one process at a time: whoever changes an
// object holds it while it looks at the present one, and until the change is
// made. It is free again when its holder dies.
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

// with runs do under the lock. Another process holds it for a batch at most: a
// flush of the journal, and the names of the files.
func (l *lock) with(do func() error) (err error) {
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
