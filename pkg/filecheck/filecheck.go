// Package filecheck compares files on this machine with the size and the CRC-32C that were recorded when they were
// written. It remembers the files that passed the comparison, so that it reads a file again only after the file was
// touched. This package is not a stable API.
//
// A file is considered touched if its size, modification time, change time or inode differs. Every write updates the
// change time, which no program can set. A [Cache] therefore misses only damage that bypasses the file system: bits
// that decay on the disk after the file was checked. `servo admin verify` uses no cache.
package filecheck

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
)

// File is a file with its recorded size and checksum.
type File struct {
	Path   string
	Size   int64 // bytes
	CRC32C uint32
}

// DamagedError reports that the size or the checksum of a file differs from the recorded one.
type DamagedError struct {
	File

	FoundSize   int64
	FoundCRC32C uint32 // 0 if the sizes differ: the content was not read
}

// Error implements error.
func (e *DamagedError) Error() string {
	if e.FoundSize != e.Size {
		return fmt.Sprintf("file %s is damaged: it has %d bytes, expected %d", e.Path, e.FoundSize, e.Size)
	}
	return fmt.Sprintf("file %s is damaged: its CRC-32C is %08x, expected %08x", e.Path, e.FoundCRC32C, e.CRC32C)
}

// maxKnown bounds how many files each generation of a cache remembers. A full generation takes about 20 MB.
const maxKnown = 100_000

// Cache remembers the files that passed the check. It is safe for concurrent use.
type Cache struct {
	mu sync.Mutex
	// A file is kept in current when it is written or checked. When current is full, it replaces previous, and a new
	// current begins. So a file is forgotten if it is not checked again before current is full twice.
	current, previous map[string]known
	disk              disk
}

// known is a file that passed the check.
type known struct {
	stamp  stamp
	crc32c uint32
}

// stamp identifies the state of a file: it changes whenever the file system changes the file.
type stamp struct {
	size, modified, changed int64
	inode                   uint64
}

// Stamp returns a text that changes whenever the file system changes a file.
func Stamp(info fs.FileInfo) string { return fmt.Sprint(info.Mode(), stampOf(info)) }

// New returns an empty cache that exists only in memory.
func New() *Cache { return &Cache{current: map[string]known{}} }

// Check returns nil if the file has the recorded size and CRC-32C, and a [*DamagedError]
// otherwise.
func (c *Cache) Check(ctx context.Context, f File) error {
	info, err := os.Stat(f.Path)
	if err != nil {
		return err
	}
	if err := sized(f, info); err != nil {
		return err
	}
	if c.has(f, stampOf(info)) {
		return nil
	}
	return c.read(ctx, f)
}

// CheckAll checks files with one reader per core.
func (c *Cache) CheckAll(ctx context.Context, files []File) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, f := range files {
		group.Go(func() error { return c.Check(ctx, f) })
	}
	return group.Wait()
}

// Remember records a file that this process has just written, with the checksum of the
// written bytes.
func (c *Cache) Remember(f File) {
	if info, err := os.Stat(f.Path); err == nil && sized(f, info) == nil {
		c.add(f, stampOf(info))
	}
}

// KindError reports that a path is not a regular file.
type KindError struct {
	Path   string
	Folder bool
}

// Error implements error.
func (e *KindError) Error() string {
	if e.Folder {
		return e.Path + " is a folder, not a regular file"
	}
	return e.Path + " is not a regular file"
}

func sized(f File, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return &KindError{Path: f.Path, Folder: info.IsDir()}
	}
	if info.Size() != f.Size {
		return &DamagedError{File: f, FoundSize: info.Size()}
	}
	return nil
}

func (c *Cache) has(f File, s stamp) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.current[f.Path]
	if !ok {
		k, ok = c.previous[f.Path]
	}
	if !ok || k != (known{s, f.CRC32C}) {
		return false
	}
	c.keep(f.Path, k)
	return true
}

func (c *Cache) add(f File, s stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := known{s, f.CRC32C}
	c.keep(f.Path, k)
	c.disk.add(f.Path, k)
}

func (c *Cache) keep(path string, k known) {
	if _, ok := c.current[path]; !ok && len(c.current) >= maxKnown {
		c.previous, c.current = c.current, map[string]known{}
	}
	c.current[path] = k
}

// read computes the checksum of the whole file.
func (c *Cache) read(ctx context.Context, f File) (err error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	before, err := file.Stat()
	if err != nil {
		return err
	}
	if err := sized(f, before); err != nil {
		return err
	}
	sum, size, err := Sum(ctx, file)
	if err != nil {
		return fmt.Errorf("read %s: %w", f.Path, err)
	}
	if size != f.Size || sum != f.CRC32C {
		return &DamagedError{File: f, FoundSize: size, FoundCRC32C: sum}
	}
	after, err := file.Stat()
	if err != nil {
		return err
	}
	if s := stampOf(before); s == stampOf(after) {
		c.add(f, s)
	}
	return nil
}

const chunk = 256 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }} //nolint:gochecknoglobals // a pool of buffers has no state

// Sum reads to the end and returns the CRC-32C and the number of bytes. It stops when ctx is done.
func Sum(ctx context.Context, r io.Reader) (sum uint32, size int64, err error) {
	table := crc32.MakeTable(crc32.Castagnoli)
	buffer, _ := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	for {
		if err := ctx.Err(); err != nil {
			return 0, size, context.Cause(ctx)
		}
		n, err := r.Read(*buffer)
		sum = crc32.Update(sum, table, (*buffer)[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return sum, size, nil
		}
		if err != nil {
			return 0, size, err
		}
	}
}
