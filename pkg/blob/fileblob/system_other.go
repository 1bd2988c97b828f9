//go:build !linux && !darwin

package fileblob

import (
	"errors"
	"os"
)

// bootID is unknown, so the journal is replayed whenever a store is opened.
func bootID() string { return "" }

func syncData(f *os.File) error { return f.Sync() }

var syncAll func(root *os.File) error

// openBeneath is not supported: see [Store.openFile].
func openBeneath(*os.File, string, int) (*os.File, error) { return nil, errors.ErrUnsupported }
