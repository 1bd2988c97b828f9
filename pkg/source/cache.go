package source

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/singleflight"
)

// ErrDamaged means that the content of an archive does not match its name. Reading the archive again does not help.
var ErrDamaged = errors.New("the archive of the project's files is damaged")

// Cache keeps unpacked archives in a folder, which several processes may share. An archive appears
// under its name only when it is complete, verified and durable. Its files are read-only. The cache removes unused
// archives, except the most recently used ones.
type Cache struct {
	dir  string
	now  func() time.Time
	keep int

	loading singleflight.Group
	mu      sync.Mutex
	open    map[string]*held
}

// held is an archive that this process uses.
type held struct {
	lock *os.File // a shared lock: a process that removes the archive needs an exclusive one
	uses int
	// checked means that the files are known to be unchanged, because no program has run in the folder since they were
	// unpacked or verified.
	checked bool
}

// keepUnused is how many unused archives stay in the cache.
const keepUnused = 3

// NewCache returns a cache in the folder dir. The cache creates the folder when it first needs it.
func NewCache(dir string, now func() time.Time) *Cache {
	return &Cache{dir: dir, now: now, keep: keepUnused, open: map[string]*held{}}
}

// Get returns the folder of an unpacked archive. The folder stays in the cache at least until release is called. If the
// cache does not contain the archive, Get calls the function fetch, which returns the compressed archive.
func (c *Cache) Get(ctx context.Context, sha string, fetch func(context.Context) ([]byte, error)) (dir string, release func(), err error) {
	if err := c.hold(sha); err != nil {
		return "", nil, err
	}
	dir = filepath.Join(c.dir, sha)
	release = sync.OnceFunc(func() { c.unhold(sha) })
	if c.confirmed(sha) {
		return dir, release, nil
	}
	// The unpacking continues even if the context of this caller ends, because other callers may wait for it.
	done := c.loading.DoChan(sha, func() (any, error) { return nil, c.unpack(context.WithoutCancel(ctx), sha, fetch) })
	select {
	case result := <-done:
		err = result.Err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		release()
		return "", nil, err
	}
	return dir, release, nil
}

// hold takes a shared lock on an archive, so that no process removes it.
func (c *Cache) hold(sha string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.open[sha]; h != nil {
		h.uses++
		return nil
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("create the cache of project files: %w", err)
	}
	name := filepath.Join(c.dir, sha+lockSuffix)
	for {
		lock, err := lockFile(name, syscall.LOCK_SH)
		if err != nil {
			return fmt.Errorf("lock the cache of project files: %w", err)
		}
		if !isAt(lock, name) {
			_ = lock.Close() // the lock file was removed before this process locked it
			continue
		}
		now := c.now()
		_ = os.Chtimes(name, now, now) // an error is harmless: it only affects which archives are removed first
		c.open[sha] = &held{lock: lock, uses: 1}
		return nil
	}
}

const lockSuffix = ".lock"

// unhold ends one use of an archive, and unlocks the archive after the last use.
func (c *Cache) unhold(sha string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.open[sha]
	if h.uses--; h.uses == 0 {
		_ = h.lock.Close() // Close also unlocks the file
		delete(c.open, sha)
	}
}

func lockFile(name string, how int) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// isAt reports whether a name still refers to the open file.
func isAt(file *os.File, name string) bool {
	have, err := file.Stat()
	if err != nil {
		return false
	}
	at, err := os.Stat(name)
	return err == nil && os.SameFile(have, at)
}

// unpack fetches an archive, unpacks and verifies it in a temporary folder, and renames the folder.
func (c *Cache) unpack(ctx context.Context, sha string, fetch func(context.Context) ([]byte, error)) error {
	dir := filepath.Join(c.dir, sha)
	if c.intact(sha) {
		c.confirm(sha)
		return nil
	}
	data, err := fetch(ctx)
	if err != nil {
		return err
	}
	c.evict(sha)
	c.discard(sha)
	temp, err := os.MkdirTemp(c.dir, tempPrefix+"*")
	if err != nil {
		return fmt.Errorf("unpack the project's files: %w", err)
	}
	err = extract(data, sha, temp)
	if err == nil {
		if err = os.Rename(temp, dir); errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
			remove(temp) // another process has unpacked the archive first
			return nil
		}
		// If the process crashes here, the folder has no stamps, and the next call unpacks the archive again.
		if err = errors.Join(err, c.seal(sha), syncFolder(c.dir)); err == nil {
			c.confirm(sha)
		}
	}
	if err != nil {
		remove(temp)
		return fmt.Errorf("unpack the project's files: %w", err)
	}
	return nil
}

const (
	tempPrefix = "new-"
	// abandonedAfter is the age after which an incomplete folder counts as abandoned and is removed.
	abandonedAfter = 24 * time.Hour
)

// extract unpacks an archive into an empty folder. It returns an error if the content of the archive does not have
// the hash sha.
func extract(data []byte, sha, dir string) error {
	decoder, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxArchiveBytes))
	if err != nil {
		return err
	}
	defer decoder.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	sum := sha256.New()
	content := io.TeeReader(io.LimitReader(decoder, MaxArchiveBytes), sum)
	archive := tar.NewReader(content)
	folders := map[string]bool{".": true}
	for n := 0; ; n++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		case n == MaxFiles || header.Typeflag != tar.TypeReg || !filepath.IsLocal(header.Name):
			return fmt.Errorf("%w: it has too many files, or %q, which is not a file of a project", ErrDamaged, header.Name)
		}
		if err := extractFile(root, archive, header, folders); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, content); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != sha {
		return fmt.Errorf("%w: its content has the hash %s instead of %s", ErrDamaged, got, sha)
	}
	return finish(dir, folders)
}

func extractFile(root *os.Root, content io.Reader, header *tar.Header, folders map[string]bool) error {
	name := filepath.FromSlash(header.Name)
	for folder := filepath.Dir(name); !folders[folder]; folder = filepath.Dir(folder) {
		folders[folder] = true
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	mode := fs.FileMode(0o444)
	if header.Mode&0o111 != 0 {
		mode = 0o555
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Sync(), f.Close())
}

// finish makes the folders of an archive durable. The folders stay writable, so that rm -r can delete them.
func finish(dir string, folders map[string]bool) error {
	for name := range folders {
		if err := syncFolder(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// evict removes unused archives, except the given one and the most recently used ones. It also removes incomplete
// folders that dead processes left. It ignores errors: the next call tries again.
func (c *Cache) evict(sha string) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	type unused struct {
		sha  string
		used time.Time
	}
	var candidates []unused
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			continue
		}
		name, isLock := strings.CutSuffix(entry.Name(), lockSuffix)
		switch {
		case isLock && name != sha:
			candidates = append(candidates, unused{name, info.ModTime()})
		case strings.HasPrefix(name, tempPrefix) && c.now().Sub(info.ModTime()) > abandonedAfter:
			remove(filepath.Join(c.dir, name))
		}
	}
	slices.SortFunc(candidates, func(a, b unused) int { return b.used.Compare(a.used) })
	for _, u := range candidates[min(c.keep, len(candidates)):] {
		c.removeUnused(u.sha)
	}
}

// removeUnused removes an archive unless a process uses it.
func (c *Cache) removeUnused(sha string) {
	name := filepath.Join(c.dir, sha+lockSuffix)
	lock, err := lockFile(name, syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		return
	}
	defer lock.Close()
	if !isAt(lock, name) {
		return
	}
	c.discard(sha)
	_ = os.Remove(filepath.Join(c.dir, sha+stampsSuffix))
	_ = os.Remove(name)
}

// discard removes the folder of an archive. It first renames the folder, so that the archive disappears at once, and
// then removes its files one by one. It ignores errors: remaining files are removed later.
func (c *Cache) discard(sha string) {
	temp := filepath.Join(c.dir, tempPrefix+"old-"+sha)
	remove(temp)
	if os.Rename(filepath.Join(c.dir, sha), temp) == nil {
		remove(temp)
	}
}

// remove removes a folder. It ignores errors: remaining files are removed later.
func remove(dir string) { _ = os.RemoveAll(dir) }
