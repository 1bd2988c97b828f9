package source

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// stamp contains properties of a file that change when its content changes, so that a comparison need not read the
// file. The change time of a file is reliable, because programs cannot set it, unlike the modification time.
type stamp struct {
	Size    int64  `json:"size"`
	Inode   uint64 `json:"inode"`
	Changed int64  `json:"changed"` // nanoseconds since 1970
}

// ignoredFolder is the folder of Python's compiled modules. Changes in it have no effect, because Python compares the
// modules with their sources.
const ignoredFolder = "__pycache__"

// stampsOf returns the stamps of the files below a folder, by name.
func stampsOf(dir string) (map[string]stamp, error) {
	stamps := map[string]stamp{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == ignoredFolder:
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stamps[strings.TrimPrefix(path, dir)] = stampOf(info)
		return nil
	})
	return stamps, err
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{Size: info.Size()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		s.Inode, s.Changed = stat.Ino, stat.Ctim.Nano()
	}
	return s
}

const stampsSuffix = ".files"

// seal records the stamps of an unpacked archive.
func (c *Cache) seal(sha string) error {
	stamps, err := stampsOf(filepath.Join(c.dir, sha))
	if err != nil {
		return err
	}
	data, err := json.Marshal(stamps)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.dir, sha+stampsSuffix), data, 0o600)
}

// intact reports whether the files of an archive are unchanged since they were unpacked.
func (c *Cache) intact(sha string) bool {
	data, err := os.ReadFile(filepath.Join(c.dir, sha+stampsSuffix))
	if err != nil {
		return false
	}
	var sealed map[string]stamp
	if json.Unmarshal(data, &sealed) != nil {
		return false
	}
	stamps, err := stampsOf(filepath.Join(c.dir, sha))
	return err == nil && maps.Equal(stamps, sealed)
}

// Suspect records that a program has run in the folder of an archive and may have changed its files. The next Get
// checks the files, and unpacks the archive again if they have changed.
func (c *Cache) Suspect(sha string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.open[sha]; h != nil {
		h.checked = false
	}
}

// confirm records that the unpacked files of an archive are unchanged.
func (c *Cache) confirm(sha string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.open[sha]; h != nil {
		h.checked = true
	}
}

func (c *Cache) confirmed(sha string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.open[sha]
	return h != nil && h.checked
}
