package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// disk returns the kind of a folder's file system, and the name of its disk in /proc/diskstats. The name is "" if it is
// unknown.
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
		path = filepath.Dir(path) // flushes are counted per disk, not per partition
	}
	return kind, strings.TrimSpace(filepath.Base(path))
}

// syncDisks writes all buffered data, so that it does not disturb the next measurement.
func syncDisks() { unix.Sync() }
