package fileblob

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// bootID is not the time of the start, which moves when the clock is set.
func bootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id[:min(len(id), bootBytes)]
}

// syncData goes through to the medium, which fsync(2) does not there.
func syncData(f *os.File) error { return f.Sync() }

var syncAll func(root *os.File) error

// openBeneath is not to be had: see [Store.openFile].
func openBeneath(*os.File, string, int) (*os.File, error) { return nil, errors.ErrUnsupported }
