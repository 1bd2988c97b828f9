//go:build !linux

package bench

// Spread is for file systems of Linux.
func Spread(string) {}
