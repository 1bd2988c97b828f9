//go:build !linux

package server

import "syscall"

// ChildOf protects a child from Ctrl-C in the terminal. The child runs as the given user, or as the current user if
// none is given.
func ChildOf(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: as}
}
