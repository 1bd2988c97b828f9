package project

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"
)

// readFile reads a whole file of the project. It reports any problem with the file.
func (l *loader) readFile(name string) (text []byte, ok bool) {
	at := place{file: name}
	info, err := fs.Stat(l.files, name)
	switch {
	case err != nil:
		l.report(at, "", "the file cannot be read: %v", reason(err))
		return nil, false
	case !info.Mode().IsRegular(): // do not open it: a pipe would block
		l.report(at, "", "not a regular file")
		return nil, false
	}
	f, err := l.files.Open(name)
	if err != nil {
		l.report(at, "", "the file cannot be read: %v", reason(err))
		return nil, false
	}
	text, err = io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err = errors.Join(err, f.Close()); err != nil {
		l.report(at, "", "the file cannot be read: %v", reason(err))
		return nil, false
	}
	if len(text) > MaxFileBytes {
		l.report(at, "", "the file is larger than %d bytes", MaxFileBytes)
		return nil, false
	}
	l.read += int64(len(text))
	text = bytes.TrimPrefix(text, byteOrderMark)
	return text, l.checkText(name, text)
}

// byteOrderMark is a mark that some editors write at the beginning of UTF-8 text.
var byteOrderMark = []byte("\xef\xbb\xbf")

// checkText reports a file that is not text.
func (l *loader) checkText(name string, text []byte) bool {
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			l.report(offsetPlace(name, text, i), "save it as UTF-8", "byte 0x%02x is not UTF-8", text[i])
			return false
		case r == 0:
			l.report(offsetPlace(name, text, i), "", "the file contains a zero byte, so it is not text")
			return false
		}
		i += size
	}
	return true
}

// reason returns an error without its path, because the problem already names the file.
func reason(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// offsetPlace returns the position of a byte in a text.
func offsetPlace(name string, text []byte, offset int) place {
	before := text[:min(max(offset, 0), len(text))]
	lineStart := bytes.LastIndexByte(before, '\n') + 1
	return place{file: name, line: bytes.Count(before, []byte{'\n'}) + 1, column: utf8.RuneCount(before[lineStart:]) + 1}
}

var errEnough = errors.New("enough")

// readAssets reads every file below assets/.
func (l *loader) readAssets(ctx context.Context) error {
	if _, err := fs.Stat(l.files, AssetsDir); err != nil {
		at := place{file: AssetsDir}
		if errors.Is(err, fs.ErrNotExist) {
			l.report(at, "put .sql and .yaml files into it", "the project has no assets folder")
		} else {
			l.report(at, "", "the folder cannot be read: %v", reason(err))
		}
		return nil
	}
	return l.walk(ctx, AssetsDir, l.visit)
}

// walk visits the files and folders below a folder.
func (l *loader) walk(ctx context.Context, dir string, visit func(name string, entry fs.DirEntry) error) error {
	count := 0
	err := fs.WalkDir(l.files, dir, func(name string, entry fs.DirEntry, err error) error {
		if count++; count > MaxFiles {
			l.report(place{file: dir}, "", "the folder has more than %d files and folders", MaxFiles)
			return errEnough
		}
		if ctx.Err() != nil {
			return fmt.Errorf("read project: %w", context.Cause(ctx))
		}
		if err != nil {
			l.report(place{file: name}, "", "the folder cannot be read: %v", reason(err))
			return fs.SkipDir
		}
		return visit(name, entry)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// visit reads a file if its name shows that it declares assets.
func (l *loader) visit(name string, entry fs.DirEntry) error {
	hidden := strings.HasPrefix(path.Base(name), ".")
	switch {
	case entry.IsDir() && hidden:
		return fs.SkipDir
	case entry.IsDir() || hidden:
		return nil
	}
	extension := path.Ext(name)
	declares := extension == ".sql" || extension == ".yaml" || extension == ".yml"
	if entry.Type()&fs.ModeSymlink != 0 && !l.leadsToFile(name, declares) {
		return nil
	}
	if !declares {
		if lower := strings.ToLower(extension); lower == ".sql" || lower == ".yaml" || lower == ".yml" {
			l.report(place{file: name}, "rename it", "the name ends in %s, so the file declares no asset; expected %s", extension, lower)
		}
		return nil
	}
	text, ok := l.readFile(name)
	if !ok {
		return nil
	}
	if l.read > MaxTotalBytes {
		l.report(place{file: AssetsDir}, "", "the files together are larger than %d bytes", MaxTotalBytes)
		return errEnough
	}
	if extension == ".sql" {
		l.readSQLAsset(name, text)
	} else {
		l.readYAMLAssets(name, text)
	}
	if len(l.assets) > MaxAssets {
		l.report(place{file: AssetsDir}, "split the project", "the project has more than %d assets", MaxAssets)
		return errEnough
	}
	return nil
}

// leadsToFile reports whether a symbolic link points to a file of the project. Links to folders are not followed,
// because a file below such a link would have two names, and would declare two assets.
func (l *loader) leadsToFile(name string, declares bool) bool {
	info, err := fs.Stat(l.files, name)
	switch {
	case err != nil && declares:
		l.report(place{file: name}, "copy the file into the project", "the symbolic link points outside the project or is broken")
		return false
	case err == nil && info.IsDir():
		l.report(place{file: name}, "move the folder to where the link is", "symbolic links to folders are not followed")
		return false
	}
	return err == nil
}
