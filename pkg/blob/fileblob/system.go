package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// system is the set of system calls whose order makes the store safe. Tests inject failures
// into them and inspect the directory between them.
type system struct {
	// boot identifies the current boot of the machine; "" if unknown.
	boot string
	// write calls pwrite(2) on the journal.
	write func(f *os.File, p []byte, off int64) (int, error)
	// sync flushes the journal with fdatasync(2); fsync flushes other files and folders.
	sync  func(f *os.File) error
	fsync func(f *os.File) error
	// openBeneath opens a file below a folder. It follows only links to files below this folder.
	openBeneath func(root *os.File, name string, flags int) (*os.File, error)
	// rename moves a file to a name in another folder; remove deletes a file.
	rename func(from *os.File, name string, to *os.File, base string) error
	remove func(folder *os.File, base string) error
	// syncAll flushes every file of the file system; nil if the system cannot do that.
	syncAll func(root *os.File) error
	// later runs the function do in the background.
	later func(do func())
}

func realSystem(background *sync.WaitGroup) system {
	return system{
		boot:   bootID(),
		write:  func(f *os.File, p []byte, off int64) (int, error) { return f.WriteAt(p, off) },
		sync:   syncData,
		fsync:  (*os.File).Sync,
		rename: rename,

		openBeneath: openBeneath,
		remove:      func(folder *os.File, base string) error { return unlink(folder, base, 0) },
		syncAll:     syncAll,
		later:       background.Go,
	}
}

// openIn passes the descriptor of a folder to the function do, which opens a file in that folder. During the call, the
// descriptor cannot be closed, and its number cannot be reused.
func openIn(folder *os.File, verb, name string, do func(fd int) (int, error)) (*os.File, error) {
	opened, err := -1, error(nil)
	raw, closed := folder.SyscallConn()
	if closed == nil {
		closed = raw.Control(func(fd uintptr) {
			err = retry(func() (err error) { opened, err = do(int(fd)); return err })
		})
	}
	if closed != nil {
		err = os.ErrClosed
	}
	path := filepath.Join(folder.Name(), name)
	if err != nil {
		return nil, &fs.PathError{Op: verb, Path: path, Err: err}
	}
	return os.NewFile(uintptr(opened), path), nil //nolint:gosec // not negative
}

// create creates a file in a folder.
func create(folder *os.File, base string) (*os.File, error) {
	return openIn(folder, "create", base, func(fd int) (int, error) {
		return unix.Openat(fd, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, fileMode)
	})
}

func rename(from *os.File, name string, to *os.File, base string) error {
	return os.NewSyscallError("rename", retry(func() error {
		return unix.Renameat(int(from.Fd()), name, int(to.Fd()), base)
	}))
}

func unlink(folder *os.File, base string, flags int) error {
	return os.NewSyscallError("unlink", retry(func() error { return unix.Unlinkat(int(folder.Fd()), base, flags) }))
}

// retry repeats a system call that was interrupted by a signal.
func retry(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
