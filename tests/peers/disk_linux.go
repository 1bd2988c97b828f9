package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// disk is what a folder is on: the kind of file system, and the name that the disk has
// in /proc/diskstats, "" if there is none.
func disk(dir string) (kind, device string) {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil {
		return "unknown", ""
	}
	kinds := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	}
	kind = kinds[int64(fs.Type)] //nolint:unconvert // not an int64 on every platform
	if kind == "" {
		kind = fmt.Sprintf("file system %#x", fs.Type)
	}
	var stat unix.Stat_t
	if unix.Stat(dir, &stat) != nil {
		return kind, ""
	}
	link := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	path, err := filepath.EvalSymlinks(link)
	if err != nil {
		return kind, ""
	}
	if _, err := os.Stat(filepath.Join(path, "partition")); err == nil {
		path = filepath.Dir(path) // flushes are counted for the whole disk
	}
	return kind, strings.TrimSpace(filepath.Base(path))
}

// settle has the system write what was left to write, so that it does not meet whoever is
// measured next.
func settle() { unix.Sync() }
