package publisher

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// replace makes the published folder of a partition show the partition's new output.
func (u *update) replace(ctx context.Context, c *change) error {
	if c.asset.Copy {
		return u.copyOutput(ctx, c)
	}
	if info, err := os.Stat(filepath.Join(u.Store, filepath.FromSlash(c.output.URI))); err != nil || !info.IsDir() {
		return fmt.Errorf("its output %s is missing: run the asset again", c.output.URI)
	}
	return u.link(c)
}

// link replaces the link to an output with one rename.
func (u *update) link(c *change) error {
	if err := u.folderFor(path.Dir(c.path())); err != nil {
		return err
	}
	if err := u.discard(temporary); err != nil {
		return err
	}
	if err := u.before(); err != nil {
		return err
	}
	if err := u.root.Symlink(u.targetOf(c), temporary); err != nil {
		return err
	}
	if err := u.clear(c); err != nil {
		return err
	}
	if err := u.before(); err != nil {
		return err
	}
	return u.root.Rename(temporary, c.path())
}

// clear moves the copy of an earlier output aside and deletes it. This is necessary before a link is created, because
// a rename cannot replace a folder with a link.
func (u *update) clear(c *change) error {
	info, err := u.root.Lstat(c.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.IsDir() {
		return err
	}
	if err := u.discard(setAside); err != nil {
		return err
	}
	if err := u.before(); err != nil {
		return err
	}
	if err := u.root.Rename(c.path(), setAside); err != nil {
		return err
	}
	return u.discard(setAside)
}

// folderFor creates the folder dir and the folders above it, unless dir exists.
func (u *update) folderFor(dir string) error {
	if info, err := u.root.Lstat(dir); err == nil && info.IsDir() {
		return nil
	}
	if err := u.before(); err != nil {
		return err
	}
	return u.root.MkdirAll(dir, 0o755)
}

// discard removes a temporary file, link or folder that an interrupted update may have left.
func (u *update) discard(name string) error {
	if _, err := u.root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := u.before(); err != nil {
		return err
	}
	return u.root.RemoveAll(name)
}

// remove removes an output, and then the folders above it that have become empty. It does nothing if the output no
// longer exists: an interrupted update may have removed the output, and may have created a link at the path of a
// folder above it. remove keeps files that Servo did not write.
func (u *update) remove(c *change) error {
	for i, b := range c.path() {
		if b != '/' {
			continue
		}
		info, err := u.root.Lstat(c.path()[:i])
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if info == nil || !info.IsDir() {
			return nil // the output no longer exists
		}
	}
	if is, err := u.foreign(c); is || err != nil {
		return err
	}
	if err := u.before(); err != nil {
		return err
	}
	if err := u.root.RemoveAll(c.path()); err != nil {
		return err
	}
	dir := path.Dir(c.path())
	for dir != "." && u.root.Remove(dir) == nil { // stop at the first folder that is not empty
		dir = path.Dir(dir)
	}
	return nil
}

// copyOutput copies the files of an output one by one, and then removes the other files of the earlier
// output.
func (u *update) copyOutput(ctx context.Context, c *change) error {
	marker, err := u.marker(c.output.URI)
	if err != nil {
		return err
	}
	if info, err := u.root.Lstat(c.path()); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if err := u.before(); err != nil {
			return err
		}
		if err := u.root.Remove(c.path()); err != nil { // a rename cannot replace a link with a folder
			return err
		}
	}
	if err := u.folderFor(c.path()); err != nil {
		return err
	}
	keep := map[string]bool{}
	c.files = []copiedFile{} // not nil, so that a copy without files is recorded as complete
	for _, f := range marker.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := path.Join(c.path(), f.Name)
		keep[name] = true
		if err := u.makeWay(c, f.Name); err != nil {
			return err
		}
		if err := u.folderFor(path.Dir(name)); err != nil {
			return err
		}
		if err := u.copyFile(filepath.Join(u.Store, filepath.FromSlash(c.output.URI+f.Name)), name, f); err != nil {
			return fmt.Errorf("copy %s: %w", f.Name, err)
		}
		info, err := u.root.Lstat(name)
		if err != nil {
			return fmt.Errorf("copy %s: %w", f.Name, err)
		}
		c.files = append(c.files, copiedFile{f.Name, info.Size(), info.ModTime().UnixNano()})
	}
	return u.removeOthers(c.path(), keep)
}

// makeWay removes whatever the earlier output has at the path of a new file: a folder at the path itself, or a file
// where the path needs a folder.
func (u *update) makeWay(c *change, file string) error {
	at := c.path()
	for name := range strings.SplitSeq(file, "/") {
		at = path.Join(at, name)
		isFile := at == path.Join(c.path(), file)
		info, err := u.root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if info.IsDir() != isFile {
			continue
		}
		if err := u.before(); err != nil {
			return err
		}
		return u.root.RemoveAll(at)
	}
	return nil
}

func (u *update) marker(uri string) (*contract.CommitMarker, error) {
	read := func(key string) (_ []byte, err error) {
		file, err := os.Open(filepath.Join(u.Store, filepath.FromSlash(key))) //nolint:gosec // a marker in the store
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		return io.ReadAll(io.LimitReader(file, contract.MaxCommitMarkerBytes+1))
	}
	marker, key, err := contract.FindMarker(uri, read, func(err error) bool { return errors.Is(err, fs.ErrNotExist) })
	if err != nil {
		return nil, fmt.Errorf("read the commit marker of %s: %w", uri, err)
	}
	if marker.URI != uri {
		return nil, fmt.Errorf("the commit marker %s names another output, %s", key, marker.URI)
	}
	return marker, nil
}

// copyFile copies a file, and compares its content with the size and checksum in the commit marker.
func (u *update) copyFile(from, to string, f contract.CommitMarkerFile) (err error) {
	source, err := os.Open(from) //nolint:gosec // the path is that of an output in the store
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if err := u.discard(temporary); err != nil {
		return err
	}
	if err := u.before(); err != nil {
		return err
	}
	file, err := u.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	n, err := io.Copy(io.MultiWriter(file, sum), source)
	if err = errors.Join(err, u.sync(file), file.Close()); err != nil {
		return err
	}
	if n != f.Size || sum.Sum32() != f.CRC32C {
		return errors.New("the file is damaged: restore it from a backup, or run the asset again")
	}
	if err := u.before(); err != nil {
		return err
	}
	return u.root.Rename(temporary, to)
}

// removeOthers removes all files below a folder except those in keep.
func (u *update) removeOthers(dir string, keep map[string]bool) error {
	return fs.WalkDir(u.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || keep[name] {
			return err
		}
		if err := u.before(); err != nil {
			return err
		}
		return u.root.Remove(name)
	})
}
