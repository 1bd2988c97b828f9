package fileblob

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id[:min(len(id), bootBytes)]))
}

// openBeneath opens a file below a folder. It follows only links to files below this folder.
func openBeneath(root *os.File, name string, flags int) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS} //nolint:gosec // flags are not negative
	return openIn(root, "open", name, func(fd int) (int, error) { return unix.Openat2(fd, name, how) })
}

func syncData(f *os.File) error {
	return os.NewSyscallError("fdatasync", retry(func() error { return unix.Fdatasync(int(f.Fd())) }))
}

// syncAll reports write errors since Linux 5.8; earlier kernels hide them.
func syncAll(root *os.File) error {
	return os.NewSyscallError("syncfs", retry(func() error { return unix.Syncfs(int(root.Fd())) }))
}
