package server

import "syscall"

// ChildOf makes the kernel kill a child when this program dies, and protects it from Ctrl-C in the
// terminal, so that this program can stop it gracefully. The child runs as the given user, or as the current user if
// none is given.
func ChildOf(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: as}
}
