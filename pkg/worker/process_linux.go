package worker

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// newProcessGroup returns attributes for a new group whose leader the kernel kills when the worker
// dies.
func newProcessGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitExit waits until a process has exited, without reaping it.
func waitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
