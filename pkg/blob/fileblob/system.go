package fileblob

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// system is what the store asks of the operating system where the order of
// things is what makes it safe. Tests fail these, and look at the folder between
// them.
type system struct {
	// boot names the time since the machine was started; empty if it has no name.
	boot string
	// write is pwrite(2) to the journal.
	write func(f *os.File, p []byte, off int64) (int, error)
	// sync flushes the journal, fdatasync(2), and fsync any other file or folder.
	sync  func(f *os.File) error
	fsync func(f *os.File) error
	// openBeneath opens what is below a folder, following links only as long as they stay
	// there.
	openBeneath func(root *os.File, name string, flags int) (*os.File, error)
	// rename and remove give a file its name in a folder, and take it.
	rename func(from *os.File, name string, to *os.File, base string) error
	remove func(folder *os.File, base string) error
	// syncAll flushes every file of the file system; nil where it is not to be had.
	syncAll func(root *os.File) error
	// later runs something beside the writes.
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

// openIn has do open something, given the descriptor of a folder, which nobody closes
// meanwhile: its number could be that of another by then.
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

// create makes a file in a folder.
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

// retry does what a signal interrupted again.
func retry(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
