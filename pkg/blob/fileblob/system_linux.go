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

func syncData(f *os.File) error {
	return os.NewSyscallError("fdatasync", retry(func() error { return unix.Fdatasync(int(f.Fd())) }))
}

// syncAll tells of errors since Linux 5.8; before that it is silent about them.
func syncAll(root *os.File) error {
	return os.NewSyscallError("syncfs", retry(func() error { return unix.Syncfs(int(root.Fd())) }))
}
