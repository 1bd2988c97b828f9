//go:build !linux && !darwin

package fileblob

import "os"

// bootID is unknown: the journal is replayed whenever a store is opened.
func bootID() string { return "" }

func syncData(f *os.File) error { return f.Sync() }

var syncAll func(root *os.File) error
