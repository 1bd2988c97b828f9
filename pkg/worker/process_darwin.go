package worker

import (
	"syscall"
	"unsafe"
)

// newProcessGroup returns attributes for a new group. On macOS, processes continue to run after their worker is killed.
func newProcessGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// waitExit waits until a process has exited, without reaping it.
func waitExit(pid int) {
	const (
		byPID   = 1
		exited  = 4
		noReap  = 0x20
		infoLen = 128
	)
	var info [infoLen]byte
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), uintptr(unsafe.Pointer(&info[0])), exited|noReap, 0, 0)
		if errno != syscall.EINTR {
			return
		}
	}
}
