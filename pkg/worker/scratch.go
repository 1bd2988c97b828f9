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

// scratch is a worker's folder below a shared folder. The process holds a lock on the folder. The lock shows other
// workers that the process is alive.
type scratch struct {
	dir  string
	lock *os.File
}

const (
	scratchPrefix = "worker-"
	newPrefix     = "new-"
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
	if _, _, err := SweepScratch(parent, false); err != nil {
		return nil, err
	}
	guard, err := guardScratch(parent)
	if err != nil {
		return nil, err
	}
	defer guard.Close()
	// The folder is renamed after it is locked, so that no other worker sees it unlocked.
	temp, err := os.MkdirTemp(parent, newPrefix+"*")
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

// guardScratch acquires the lock under which workers create their folders. While a process holds this lock, no live
// process is creating a folder, so every folder without its final name belongs to a dead process.
func guardScratch(parent string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(parent, scratchLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock scratch folder: %w", err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock scratch folder %s: %w", parent, err), file.Close())
	}
	return file, nil
}

// SweepScratch removes the folders of dead workers below a shared scratch folder, and returns their number and total
// size in bytes. It marks the attempts that these workers were executing as lost. If dry is set, it changes nothing.
func SweepScratch(parent string, dry bool) (folders int, bytes int64, err error) {
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	guard, err := guardScratch(parent)
	if err != nil {
		return 0, 0, err
	}
	defer guard.Close()
	entries, err := os.ReadDir(parent)
	if err != nil {
		return 0, 0, fmt.Errorf("read scratch folder: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		size, found, err := sweepOne(filepath.Join(parent, entry.Name()), dry)
		if err != nil {
			return folders, bytes, err
		}
		if found {
			folders, bytes = folders+1, bytes+size
		}
	}
	return folders, bytes, nil
}

// sweepOne removes a folder if its process is dead. The caller must hold the lock of guardScratch.
func sweepOne(dir string, dry bool) (size int64, dead bool, err error) {
	name := filepath.Base(dir)
	if !strings.HasPrefix(name, scratchPrefix) && !strings.HasPrefix(name, newPrefix) {
		return 0, false, nil
	}
	var lock *os.File
	if strings.HasPrefix(name, scratchPrefix) {
		if lock, err = lockFile(filepath.Join(dir, scratchLock)); err != nil {
			return 0, false, nil // the process of the folder is alive
		}
		defer lock.Close()
	}
	size = sizeOf(dir)
	if dry {
		return size, true, nil
	}
	if err := markLost(filepath.Dir(dir), dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, fmt.Errorf("mark the tasks of a dead worker as lost: %w", err)
	}
	if err := removeAll(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, fmt.Errorf("remove scratch folder of a dead worker: %w", err)
	}
	return size, true, nil
}

// sizeOf returns the total size of the readable files below a folder.
func sizeOf(dir string) (size int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil
	})
	return size
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

// lost reports whether a worker has died while it executed an attempt.
func (s *scratch) lost(attemptID string) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(s.dir), lostDir, attemptID))
	return err == nil
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
