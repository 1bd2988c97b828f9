// Package source creates archives of a project's files, and keeps a cache of unpacked archives. This package is not a
// stable API.
//
// An archive is a tar file that is compressed with zstd. The bytes of the tar file depend only on the names, contents
// and executable bits of the files. The archive is named by the hash of the uncompressed tar file.
package source

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Limits of an archive.
const (
	MaxBytes = 256 << 20 // maximum size of all files together
	MaxFiles = 100_000
	// MaxArchiveBytes is the maximum size of the tar file, which may add headers and padding to each file.
	MaxArchiveBytes = MaxBytes + MaxFiles*4*512
)

// IgnoreFile is the name of a file in the project's folder. It lists the files that the archive of the project omits.
const IgnoreFile = ".servoignore"

// Archive is the archive of a project's files.
type Archive struct {
	// SHA is the hexadecimal SHA-256 of the uncompressed archive.
	SHA string
	// Data is the compressed archive. [Hash] leaves it empty.
	Data  []byte
	Files int
	Bytes int64 // the size of all files together
	names map[string]bool
}

// Has reports whether the archive contains a file.
func (a *Archive) Has(name string) bool { return a.names[name] }

// Build packs the files of a project. It omits files and folders whose names begin with a dot, the folders in skip,
// and files that the ignore file names.
func Build(files fs.FS, skip []string) (*Archive, error) {
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("pack the project's files: %w", err)
	}
	a, err := pack(files, skip, w)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, fmt.Errorf("pack the project's files: %w", err)
	}
	a.Data = packed.Bytes()
	return a, nil
}

// Hash returns the archive of a project's files without [Archive.Data].
func Hash(files fs.FS, skip []string) (*Archive, error) {
	a, err := pack(files, skip, io.Discard)
	if err != nil {
		return nil, fmt.Errorf("hash the project's files: %w", err)
	}
	return a, nil
}

func pack(files fs.FS, skip []string, to io.Writer) (*Archive, error) {
	ignored, err := readIgnore(files)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	buffered := bufio.NewWriterSize(io.MultiWriter(sum, to), 1<<16) //nolint:mnd // bytes
	w := tar.NewWriter(buffered)
	a := &Archive{names: map[string]bool{}}
	err = fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == ".":
			return nil
		case strings.HasPrefix(entry.Name(), ".") || ignored.match(name) || slices.Contains(skip, name):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return nil
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is not a regular file (%s): list it in %s, or replace it with a file", name, entry.Type(), IgnoreFile)
		}
		return a.add(files, name, w)
	})
	if err = errors.Join(err, w.Close(), buffered.Flush()); err != nil {
		return nil, err
	}
	a.SHA = hex.EncodeToString(sum.Sum(nil))
	return a, nil
}

// add adds a file.
func (a *Archive) add(files fs.FS, name string, w *tar.Writer) error {
	info, err := fs.Stat(files, name)
	if err != nil {
		return err
	}
	a.Files++
	a.names[name] = true
	a.Bytes += info.Size()
	if a.Files > MaxFiles || a.Bytes > MaxBytes {
		return fmt.Errorf("the project has more than %d files or %d MiB: list data in %s", MaxFiles, MaxBytes>>20, IgnoreFile) //nolint:mnd // 1 MiB is 1<<20 bytes
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: info.Size(), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if err := w.WriteHeader(header); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	f, err := files.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f) // the copy fails if the file has grown since its size was read
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// ignoreRules are the patterns of an ignore file.
type ignoreRules struct {
	names, paths []*regexp.Regexp
}

// maxIgnoreBytes is the maximum size of the ignore file.
const maxIgnoreBytes = 1 << 20

func readIgnore(files fs.FS) (r ignoreRules, err error) {
	text, err := fs.ReadFile(files, IgnoreFile)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if len(text) > maxIgnoreBytes {
		return r, fmt.Errorf("%s is larger than %d bytes", IgnoreFile, maxIgnoreBytes)
	}
	for i, line := range strings.Split(string(text), "\n") {
		pattern := strings.TrimSpace(line)
		if pattern == "" || strings.HasPrefix(pattern, "#") {
			continue
		}
		if strings.HasPrefix(pattern, "!") || strings.ContainsAny(pattern, `[]\`) {
			return r, fmt.Errorf("%s:%d:1: the pattern %q has one of ! [ ] \\: write names with *, ? and **", IgnoreFile, i+1, pattern)
		}
		pattern = strings.TrimSuffix(pattern, "/")
		expression := regexp.MustCompile("^" + strings.NewReplacer(`\*\*/`, `(?:[^/]+/)*`, `\*\*`, `.+`, `\*`, `[^/]*`, `\?`, `[^/]`).
			Replace(regexp.QuoteMeta(strings.TrimPrefix(pattern, "/"))) + "$")
		if strings.Contains(pattern, "/") {
			r.paths = append(r.paths, expression)
		} else {
			r.names = append(r.names, expression)
		}
	}
	return r, nil
}

// match reports whether the archive omits a file or a folder because of the rules.
func (r ignoreRules) match(name string) bool {
	for _, e := range r.paths {
		if e.MatchString(name) {
			return true
		}
	}
	base := path.Base(name)
	for _, e := range r.names {
		if e.MatchString(base) {
			return true
		}
	}
	return false
}
