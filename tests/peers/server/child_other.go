//go:build !linux

package server

import "syscall"

// ChildOf keeps an interrupt of the terminal from a child.
func ChildOf(as *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: as}
}
