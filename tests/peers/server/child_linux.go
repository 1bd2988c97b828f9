package server

import "syscall"

// childOf has a child end with this program even where that is killed, and keeps an
// interrupt of the terminal from it: it is ended in order.
func childOf(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: as}
}
