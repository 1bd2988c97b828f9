package source

import "os"

// SameFolder reports whether two paths name the same folder, for example because one of them contains a symbolic link.
func SameFolder(a, b string) bool {
	if a == b {
		return true
	}
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}
