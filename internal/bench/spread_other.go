//go:build !linux

package bench

// Spread does nothing on this system.
func Spread(string) {}
