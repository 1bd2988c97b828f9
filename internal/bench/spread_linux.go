package bench

import (
	"os"

	"golang.org/x/sys/unix"
)

// topDir is FS_TOPDIR_FL, the attribute T of chattr(1).
const topDir = 0x00020000

// Spread asks an ext file system to place the new subfolders of dir in different block groups. For some minutes after
// an inode was freed, ext does not reuse the inode, but scans it whenever a file is created in the same block group. So
// in a block group in which an earlier sample has deleted files, creating a file can take thirty times as long. Other
// file systems ignore the request.
func Spread(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return
	}
	_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|topDir)
}
