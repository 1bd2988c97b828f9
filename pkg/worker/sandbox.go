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

// maxDataEntries limits the number of files and folders in the data folders, because the worker lists them for each
// query that reads files.
const maxDataEntries = 200_000

// sandbox lists the files that a query may read. DuckDB resolves symbolic links before it compares paths, so a link
// gives no access to files outside the sandbox.
type sandbox struct {
	directories []string // folders with all their files and subfolders
	files       []string // single files, and patterns of files
}

func (s *sandbox) add(other sandbox) {
	s.directories = append(s.directories, other.directories...)
	s.files = append(s.files, other.files...)
}

// lock irrevocably confines the database to the sandbox.
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

// projectFiles returns the files that a query may read besides its inputs: the files in the project's data folders and
// in the folders of sources.paths, except hidden files and the files in the state folder. If a query reads no files,
// projectFiles does not list the folders.
func (a *attempt) projectFiles(t *work, query *resolvedQuery) (sandbox, error) {
	if t.root == "" || !query.reads {
		return sandbox{}, nil
	}
	if outside := t.plan.SourcePaths(); t.unpacked {
		for _, name := range outside {
			if !filepath.IsAbs(name) {
				return sandbox{}, permanent(CodeSourceDenied,
					"read %s: this worker has only a copy of the project, without the folders around it: write an absolute path in sources.paths of servo.yaml", name)
			}
		}
	}
	return dataFiles(t.root, t.plan.Plan, a.w.stateFolder(), query.paths)
}

// dataFiles returns a sandbox for a query that names the given paths. It contains the project's data folders, and the
// folders outside of the project that sources.paths lists.
func dataFiles(project string, of *plan.Plan, state fs.FileInfo, paths []string) (sandbox, error) {
	root, err := filepath.EvalSymlinks(project)
	if err != nil {
		return sandbox{}, fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("find the project's folder: %w", err))
	}
	l := lister{root: root, left: maxDataEntries, state: state}
	for _, name := range of.SourcePaths() {
		if !filepath.IsAbs(name) {
			name = filepath.Join(root, name)
		}
		l.outside = append(l.outside, filepath.Clean(name))
	}
	var readable sandbox
	for _, dir := range l.outside {
		found, err := l.outsideFolder(dir, paths)
		if err != nil {
			return sandbox{}, err
		}
		readable.add(found)
	}
	for _, name := range of.DataFolders() {
		found, err := l.dataFolder(name)
		if err != nil {
			return sandbox{}, err
		}
		readable.add(found)
		for _, path := range paths {
			if below(filepath.Join(project, name), path) && l.mayName(filepath.Join(root, strings.TrimPrefix(path, project))) {
				readable.files = append(readable.files, path)
			}
		}
	}
	return readable, nil
}

// stateFolder returns the folder of a local store, and nil for other stores.
func (w *Worker) stateFolder() fs.FileInfo {
	local, ok := w.cfg.Store.(blob.Local)
	if !ok {
		return nil
	}
	info, err := os.Stat(filepath.Dir(local.Path("x")))
	if err != nil {
		return nil // a later read of an input from the folder returns this error
	}
	return info
}

// lister lists data folders.
type lister struct {
	root  string // the root of the project, without symbolic links
	state fs.FileInfo
	left  int // number of entries that may still be listed
	// outside are the folders of sources.paths.
	outside []string
}

// outsideFolder returns the readable files of a folder of sources.paths, for a query that names the given paths. As
// in a data folder, queries cannot read hidden files.
func (l *lister) outsideFolder(name string, paths []string) (sandbox, error) {
	dir, err := filepath.EvalSymlinks(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sandbox{directories: []string{name}}, nil
	case err != nil:
		return sandbox{}, permanent(CodeInvalidInput, "open the folder %s of sources.paths: %w", name, err)
	case dir == l.root || below(dir, l.root) || l.isState(dir):
		return sandbox{}, permanent(CodeSourceDenied, "the folder %s of sources.paths contains the project or is the state folder: name a folder beside the project", name)
	}
	inner := lister{root: dir, state: l.state, left: l.left}
	found, _, err := inner.list(dir)
	if l.left = inner.left; err != nil {
		return sandbox{}, permanent(CodeInvalidInput, "list the folder %s of sources.paths: %w", name, err)
	}
	for _, path := range paths {
		if below(name, path) && inner.mayName(filepath.Join(dir, strings.TrimPrefix(path, name))) {
			found.files = append(found.files, path)
		}
	}
	return found, nil
}

// isOutside reports whether dir is a folder of sources.paths, or a folder below it whose relative path has no hidden
// part.
func (l *lister) isOutside(dir string) bool {
	for _, name := range l.outside {
		resolved, err := filepath.EvalSymlinks(name)
		if err != nil {
			continue
		}
		if relative, err := filepath.Rel(resolved, dir); err == nil && (dir == resolved || below(resolved, dir) && !hidden(relative)) {
			return true
		}
	}
	return false
}

func (l *lister) dataFolder(name string) (sandbox, error) {
	if !plan.ValidDataFolder(name) {
		return sandbox{}, permanent(CodePlanUnreadable, "data folder %.200q is not below the project's folder", name)
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(l.root, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sandbox{directories: []string{filepath.Join(l.root, name)}}, nil
	case err != nil:
		return sandbox{}, permanent(CodeInvalidInput, "open the data folder %s: %w", name, err)
	}
	if l.isOutside(dir) {
		return sandbox{}, nil // the link leads to a folder of sources.paths, whose files are readable already
	}
	relative, err := filepath.Rel(l.root, dir)
	if err != nil || !plan.ValidDataFolder(filepath.ToSlash(relative)) || l.isState(dir) {
		return sandbox{}, permanent(CodeInvalidInput,
			"data folder %s is a link to %s: the target must be inside the project or in a folder of sources.paths, not hidden, and not the state folder", name, dir)
	}
	found, _, err := l.list(dir)
	if err != nil {
		return sandbox{}, permanent(CodeInvalidInput, "list the data folder %s: %w", name, err)
	}
	return found, nil
}

// list returns the readable files below a folder. If queries may read all files below it, whole is true, and list
// returns the folder itself, so that queries can use every kind of pattern in it.
func (l *lister) list(dir string) (found sandbox, whole bool, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return sandbox{}, false, err
	}
	if l.left -= len(entries); l.left < 0 {
		return sandbox{}, false, fmt.Errorf("the data folders have more than %d files: name folders with fewer files under `data` in servo.yaml", maxDataEntries)
	}
	whole = true
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		switch {
		case l.isHidden(dir, entry):
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

// mayName reports whether the sandbox should allow a path that a query names, although no file has this name: the path
// is a pattern, or the file does not exist. If the path is allowed, DuckDB reports a missing file instead of a missing
// permission. DuckDB still checks each file that a pattern matches.
func (l *lister) mayName(path string) bool {
	fixed, pattern := fixedFolder(path)
	if pattern != "" {
		g := globber{lister: l, left: 2 * maxDataEntries} // a pattern with ** lists each folder twice
		if g.matchesHidden(fixed, strings.Split(pattern, "/"), false) {
			return false
		}
	} else if _, err := os.Lstat(path); err == nil {
		return false // the file exists: either the sandbox allows it already, or queries must not read it
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

// hidden reports whether a part of a relative path begins with a dot.
func hidden(relative string) bool {
	for name := range strings.SplitSeq(filepath.ToSlash(relative), "/") {
		if strings.HasPrefix(name, ".") {
			return true
		}
	}
	return false
}

// below reports whether a path is below a folder.
func below(dir, path string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && relative != "." && filepath.IsLocal(relative)
}
