package server

import "syscall"

// ChildOf has a child end with this program even where that is killed, and keeps an
// interrupt of the terminal from it: it is ended in order. As says who is to run it, if not who runs this.
func ChildOf(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: as}
}
