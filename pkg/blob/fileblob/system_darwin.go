package fileblob

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// bootID returns the id of the boot session. The boot time is not suitable: it changes when the clock is set.
func bootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id[:min(len(id), bootBytes)]
}

// syncData also flushes the drive's cache, which fsync(2) alone does not on macOS.
func syncData(f *os.File) error { return f.Sync() }

var syncAll func(root *os.File) error

// openBeneath is not supported: see [Store.openFile].
func openBeneath(*os.File, string, int) (*os.File, error) { return nil, errors.ErrUnsupported }
