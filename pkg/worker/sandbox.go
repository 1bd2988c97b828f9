package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// maxDataEntries bounds the files and folders of the data folders, which are listed for
// each query that reads files.
const maxDataEntries = 200_000

// sandbox is what a query may read. DuckDB compares real paths: a symbolic link opens
// only what the query may read anyway.
type sandbox struct {
	directories []string // with all that is below them
	files       []string // and patterns of files
}

func (s *sandbox) add(other sandbox) {
	s.directories = append(s.directories, other.directories...)
	s.files = append(s.files, other.files...)
}

// lock confines the database to the sandbox, for good.
func (d *database) lock(ctx context.Context, s sandbox) error {
	for _, statement := range []string{
		"SET allowed_directories = " + quoteList(s.directories),
		"SET allowed_paths = " + quoteList(s.files),
		"SET enable_external_access = false",
		"SET lock_configuration = true",
	} {
		if _, err := d.exec(ctx, statement); err != nil {
			return sqlFailure(fmt.Errorf("prepare the query: %w", err))
		}
	}
	return nil
}

// projectFiles returns what a query may read of the project: its data folders, without
// names that begin with a dot and without the state folder. A query that names no files
// reads nothing of the project, and then the folders are not listed.
func (a *attempt) projectFiles(t *work, query *resolvedQuery) (sandbox, error) {
	if t.root == "" || !query.reads {
		return sandbox{}, nil
	}
	root, err := filepath.EvalSymlinks(t.root)
	if err != nil {
		return sandbox{}, fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("find the project's folder: %w", err))
	}
	l := lister{root: root, left: maxDataEntries, state: a.w.stateFolder()}
	var readable sandbox
	for _, name := range t.plan.DataFolders() {
		found, err := l.dataFolder(name)
		if err != nil {
			return sandbox{}, err
		}
		readable.add(found)
		for _, path := range query.paths {
			if below(filepath.Join(t.root, name), path) && l.mayName(filepath.Join(root, strings.TrimPrefix(path, t.root))) {
				readable.files = append(readable.files, path)
			}
		}
	}
	return readable, nil
}

// stateFolder is the folder of a store of files, nil for other stores.
func (w *Worker) stateFolder() fs.FileInfo {
	local, ok := w.cfg.Store.(blob.Local)
	if !ok {
		return nil
	}
	info, err := os.Stat(filepath.Dir(local.Path("x")))
	if err != nil {
		return nil // reading inputs from it fails, and says why
	}
	return info
}

// lister lists data folders.
type lister struct {
	root  string // of the project, without symbolic links
	state fs.FileInfo
	left  int // entries that may still be listed
}

func (l *lister) dataFolder(name string) (sandbox, error) {
	if !plan.ValidDataFolder(name) {
		return sandbox{}, refuse(CodePlanUnreadable, "the data folder %.200q is not a folder below the project's", name)
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(l.root, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sandbox{directories: []string{filepath.Join(l.root, name)}}, nil
	case err != nil:
		return sandbox{}, refuse(CodeInvalidInput, "open the data folder %s: %w", name, err)
	}
	relative, err := filepath.Rel(l.root, dir)
	if err != nil || !plan.ValidDataFolder(filepath.ToSlash(relative)) || l.isState(dir) {
		return sandbox{}, refuse(CodeInvalidInput,
			"the data folder %s is a link to %s: queries read folders of the project, without hidden ones and the state folder", name, dir)
	}
	found, _, err := l.list(dir)
	if err != nil {
		return sandbox{}, refuse(CodeInvalidInput, "list the data folder %s: %w", name, err)
	}
	return found, nil
}

// list returns what may be read below a folder. If that is everything (whole), it is the
// folder itself, so that patterns of every kind work in it.
func (l *lister) list(dir string) (found sandbox, whole bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return sandbox{}, false, err
	}
	if l.left -= len(entries); l.left < 0 {
		return sandbox{}, false, fmt.Errorf("the data folders have more than %d files: name smaller ones under `data` in servo.yaml", maxDataEntries)
	}
	whole = true
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."), entry.IsDir() && l.isState(path):
			whole = false
		case entry.IsDir():
			inner, all, err := l.list(path)
			if err != nil {
				return sandbox{}, false, err
			}
			found.add(inner)
			whole = whole && all
		case entry.Type().IsRegular():
			found.files = append(found.files, path)
		}
	}
	if whole {
		return sandbox{directories: []string{dir}}, true, nil
	}
	return found, false, nil
}

func (l *lister) isState(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && l.state != nil && os.SameFile(info, l.state)
}

// mayName reports whether a query may name a path below a data folder that is a pattern,
// or a file that does not exist: it then fails because there is no file, and not because
// of its rights. DuckDB checks the files that a pattern matches one by one.
func (l *lister) mayName(path string) bool {
	fixed := path
	if i := strings.IndexAny(path, "*?["); i >= 0 {
		fixed = path[:i]
		fixed = fixed[:strings.LastIndexByte(fixed, '/')]
	} else if _, err := os.Lstat(path); err == nil {
		return false // listed, or not to be read
	}
	if relative, err := filepath.Rel(l.root, path); err != nil || hidden(relative) {
		return false
	}
	for dir := fixed; below(l.root, dir); dir = filepath.Dir(dir) {
		info, err := os.Lstat(dir)
		if err == nil && info.Mode()&fs.ModeSymlink != 0 || l.isState(dir) {
			return false
		}
	}
	return true
}

// hidden reports whether a relative path has a name that begins with a dot.
func hidden(relative string) bool {
	for name := range strings.SplitSeq(filepath.ToSlash(relative), "/") {
		if strings.HasPrefix(name, ".") {
			return true
		}
	}
	return false
}

// below reports whether a path lies below a folder.
func below(dir, path string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && relative != "." && filepath.IsLocal(relative)
}
