package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// scratch is a worker's folder below a shared folder. The process holds a lock on it, which shows
// other workers that it is alive.
type scratch struct {
	dir  string
	lock *os.File
}

const (
	scratchPrefix = "worker-"
	scratchLock   = "lock"
)

// openScratch creates the folder, and removes the folders of dead processes.
func openScratch(parent, nonce string) (*scratch, error) {
	parent, err := filepath.Abs(parent)
	if err != nil {
		return nil, fmt.Errorf("find scratch folder: %w", err)
	}
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("create scratch folder: %w", err)
	}
	if err := sweep(parent); err != nil {
		return nil, err
	}
	// The folder is renamed after it is locked, so that no other worker sees it unlocked.
	temp, err := os.MkdirTemp(parent, "new-*")
	if err != nil {
		return nil, fmt.Errorf("create scratch folder: %w", err)
	}
	lock, err := lockFile(filepath.Join(temp, scratchLock))
	if err != nil {
		return nil, fmt.Errorf("lock scratch folder: %w", err)
	}
	s := &scratch{dir: filepath.Join(parent, scratchPrefix+nonce), lock: lock}
	if err := os.Rename(temp, s.dir); err != nil {
		return nil, errors.Join(fmt.Errorf("create scratch folder: %w", err), lock.Close())
	}
	return s, nil
}

// sweep removes the folders of dead processes.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return fmt.Errorf("read scratch folder: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), scratchPrefix) {
			continue
		}
		dir := filepath.Join(parent, entry.Name())
		lock, err := lockFile(filepath.Join(dir, scratchLock))
		if err != nil {
			continue // alive, or being removed by another worker
		}
		err = errors.Join(removeAll(dir), lock.Close())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove scratch folder of a dead worker: %w", err)
		}
	}
	return nil
}

func lockFile(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// execution creates the folder of one execution.
func (s *scratch) execution(name string) (string, error) {
	dir := filepath.Join(s.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("create scratch folder: %w", err)
	}
	return dir, nil
}

func (s *scratch) close() error {
	return errors.Join(removeAll(s.dir), s.lock.Close())
}

// makeWritable gives the owner access to all folders below dir, so that they can be removed. It
// ignores errors.
func makeWritable(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() || err != nil && errors.Is(err, fs.ErrPermission) {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
}
