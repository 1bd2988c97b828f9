package fileblob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/servo-orchestration/servo/pkg/blob"
)

// namesAtOnce is how many names of a folder are read before they are filtered.
const namesAtOnce = 1024

// List implements [blob.Store]. It reads only folders that may contain a matching key, one
// at a time, and stats only the files that it yields. The CRCs are 0.
//
// A folder sorts as its name plus a slash, so that walking the tree in order yields the
// bytewise order of whole keys: "a-b/x" before "a/x" before "a0".
func (s *Store) List(ctx context.Context, opts blob.ListOptions) iter.Seq2[blob.Object, error] {
	return func(yield func(blob.Object, error) bool) {
		l := listing{ctx: ctx, dir: s.dir, opts: opts, yield: yield}
		at := opts.Prefix[:strings.LastIndexByte(opts.Prefix, '/')+1]
		folder := strings.TrimSuffix(at, "/")
		switch {
		case ctx.Err() != nil:
			l.fail(ctx.Err())
			return
		case at == "":
			folder = "."
		case !entry(at).isIn("", opts.StartAfter):
			return // the whole folder is before StartAfter
		case blob.ValidateKey(folder) != nil:
			return // no key can be in this folder
		}
		root, err := openFolder(s.root, folder)
		if err != nil {
			if !isAbsent(err) {
				l.fail(err)
			}
			return
		}
		defer func() { _ = root.Close() }()
		l.walk(root, at)
	}
}

// listing is one walk over the tree.
type listing struct {
	ctx   context.Context //nolint:containedctx // used only during the call that created the listing
	dir   string
	opts  blob.ListOptions
	yield func(blob.Object, error) bool
}

// entry is the name of a file in a folder, or of a subfolder with a trailing slash.
type entry string

func (e entry) isFolder() bool { return strings.HasSuffix(string(e), "/") }

// walk yields the objects of a folder. The parameter "at" is the prefix of their keys. walk returns false when the
// listing has ended.
func (l *listing) walk(folder *os.Root, at string) bool {
	entries, err := l.read(folder, at)
	if err != nil {
		return l.fail(err)
	}
	for _, e := range entries {
		if err := l.ctx.Err(); err != nil {
			return l.fail(err)
		}
		if e.isFolder() {
			if !l.descend(folder, at, e) {
				return false
			}
			continue
		}
		info, err := folder.Lstat(string(e))
		switch {
		case errors.Is(err, fs.ErrNotExist): // just deleted
		case err != nil:
			return l.fail(err)
		case info.Mode().IsRegular() && !l.yield(object(at+string(e), info, 0), nil):
			return false
		}
	}
	return true
}

func (l *listing) descend(folder *os.Root, at string, e entry) bool {
	below, err := openFolder(folder, strings.TrimSuffix(string(e), "/"))
	if isAbsent(err) { // just pruned
		return true
	}
	if err != nil {
		return l.fail(err)
	}
	defer func() { _ = below.Close() }()
	return l.walk(below, at+string(e))
}

// openFolder opens a folder. For a file it returns ErrNotExist.
func openFolder(root *os.Root, name string) (*os.Root, error) {
	folder, err := root.OpenRoot(name)
	if err == nil {
		return folder, nil
	}
	if info, statErr := root.Stat(name); statErr == nil && !info.IsDir() {
		return nil, &fs.PathError{Op: "open folder", Path: name, Err: fs.ErrNotExist}
	}
	return nil, err
}

// read returns the entries of a folder that belong to the listing, in order.
func (l *listing) read(folder *os.Root, at string) (entries []entry, err error) {
	names, err := l.names(folder, at)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, names.Close()) }()
	prefix, after := within(l.opts, at)
	for {
		batch, err := names.ReadDir(namesAtOnce)
		for _, d := range batch {
			e := entry(d.Name())
			if d.IsDir() {
				e += "/"
			} else if !d.Type().IsRegular() {
				continue
			}
			if e.isIn(prefix, after) && blob.ValidateKey(at+d.Name()) == nil {
				entries = append(entries, e)
			}
		}
		if errors.Is(err, io.EOF) || isAbsent(err) { // absent: another process has pruned the folder
			break
		}
		if err = errors.Join(err, l.ctx.Err()); err != nil {
			return nil, err
		}
	}
	slices.Sort(entries)
	return entries, nil
}

// within returns the prefix and start of a listing relative to a folder. The parameter "at" is the prefix of the keys
// in the folder.
func within(opts blob.ListOptions, at string) (prefix, after string) {
	if strings.HasPrefix(opts.Prefix, at) {
		prefix = opts.Prefix[len(at):]
	}
	if strings.HasPrefix(opts.StartAfter, at) {
		after = opts.StartAfter[len(at):]
	}
	return prefix, after
}

// isIn reports whether a file belongs to a listing. For a folder, it reports whether the folder may
// contain such files.
func (e entry) isIn(prefix, after string) bool {
	name := string(e)
	if e.isFolder() {
		return (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name)) &&
			(name > after || strings.HasPrefix(after, name))
	}
	return strings.HasPrefix(name, prefix) && name > after
}

// names opens a folder so that reading it returns only names. Reading a folder that [os.Root] has opened also stats
// each entry, although a listing may skip most of them.
func (l *listing) names(folder *os.Root, at string) (*os.File, error) {
	f, err := folder.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var dup int
	var failed error
	if err := conn.Control(func(fd uintptr) {
		dup, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, os.NewSyscallError("dup", failed)
	}
	return os.NewFile(uintptr(dup), filepath.Join(l.dir, filepath.FromSlash(at))), nil
}

// fail ends the listing with an error.
func (l *listing) fail(err error) bool {
	l.yield(blob.Object{}, fmt.Errorf("list objects with prefix %q in %s: %w%s", l.opts.Prefix, l.dir, err, advice(err)))
	return false
}
