package filecheck

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// disk is the file that preserves a cache when its process ends: one line for each file that passed the check. The file
// may be deleted at any time. So Save does not sync it, and Open skips unreadable lines.
type disk struct {
	name  string
	lines int // lines in the file
	fresh strings.Builder
	added int
}

const (
	fieldsOfLine = 6
	format       = "%d %d %d %d %08x %s\n" // size, modified, changed, inode, CRC-32C, path below the file's folder
	// slack is how many superfluous lines the cache's file may have before it is rewritten.
	slack = 10_000
	// maxDisk bounds how many bytes of the cache's file are read.
	maxDisk = 64 << 20
)

// Open returns the cache that is stored in a file. If the file is absent or unreadable, the
// cache is empty.
func Open(name string) *Cache {
	c := New()
	c.disk.name = name
	file, err := os.Open(name)
	if err != nil {
		return c
	}
	defer file.Close()
	dir := filepath.Dir(name)
	lines := bufio.NewScanner(io.LimitReader(file, maxDisk))
	for lines.Scan() {
		c.disk.lines++
		if path, k, ok := parse(lines.Text()); ok {
			c.keep(filepath.Join(dir, path), k)
		}
	}
	return c
}

// parse parses a line of the cache's file.
func parse(line string) (path string, k known, ok bool) {
	fields := strings.Split(line, " ")
	if len(fields) != fieldsOfLine {
		return "", known{}, false
	}
	numbers := make([]int64, 3)
	for i := range numbers {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return "", known{}, false
		}
		numbers[i] = n
	}
	inode, err := strconv.ParseUint(fields[3], 10, 64)
	if err != nil {
		return "", known{}, false
	}
	sum, err := strconv.ParseUint(fields[4], 16, 32)
	if err != nil || !filepath.IsLocal(fields[5]) {
		return "", known{}, false
	}
	return fields[5], known{stamp{numbers[0], numbers[1], numbers[2], inode}, uint32(sum)}, true
}

// add records a file for Save. It skips paths with spaces or line breaks, which the format
// cannot represent.
func (d *disk) add(path string, k known) {
	if d.name == "" {
		return
	}
	if line, ok := d.line(path, k); ok {
		d.fresh.WriteString(line)
		d.added++
	}
}

func (d *disk) line(path string, k known) (string, bool) {
	below, err := filepath.Rel(filepath.Dir(d.name), path)
	if err != nil || !filepath.IsLocal(below) || strings.ContainsAny(below, " \t\r\n") {
		return "", false
	}
	return fmt.Sprintf(format, k.stamp.size, k.stamp.modified, k.stamp.changed, k.stamp.inode, k.crc32c, below), true
}

// Save appends a line to the cache's file for each file that has passed the check since Open or the previous Save.
// Several processes may call it at the same time.
func (c *Cache) Save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := &c.disk
	if d.name == "" || d.added == 0 {
		return nil
	}
	known := len(c.current) + len(c.previous)
	if d.lines+d.added > 2*known+slack {
		return c.rewrite()
	}
	file, err := os.OpenFile(d.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(d.fresh.String())
	if err = errors.Join(err, file.Close()); err == nil {
		d.lines += d.added
		d.fresh.Reset()
		d.added = 0
	}
	return err
}

// rewrite replaces the cache's file. The new file lists only the known files that still exist.
func (c *Cache) rewrite() error {
	var all strings.Builder
	lines := 0
	for _, generation := range []map[string]known{c.previous, c.current} {
		for path, k := range generation {
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if line, ok := c.disk.line(path, k); ok {
				all.WriteString(line)
				lines++
			}
		}
	}
	temp, err := os.CreateTemp(filepath.Dir(c.disk.name), ".verified-*")
	if err != nil {
		return err
	}
	_, err = temp.WriteString(all.String())
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), c.disk.name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	c.disk.lines, c.disk.added = lines, 0
	c.disk.fresh.Reset()
	return nil
}
