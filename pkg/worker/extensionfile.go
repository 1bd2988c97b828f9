package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ExtensionSuffix is the suffix of the names of extension files.
const ExtensionSuffix = ".duckdb_extension"

// ExtensionOfFile returns the extension to which a file name belongs, or "" if Servo supports no such extension.
func ExtensionOfFile(path string) string {
	name, found := strings.CutSuffix(filepath.Base(path), ExtensionSuffix)
	for extension, known := range fileNames {
		if found && known == name {
			return extension
		}
	}
	return ""
}

// ExtensionFile describes the file of an extension.
type ExtensionFile struct {
	Platform string // for example linux_amd64
	// DuckDB is the version of DuckDB that loads the file, such as 1.5.6. Version is the version of the extension.
	DuckDB, Version string
}

// An extension's file ends with eight fields of 32 bytes, in reverse order, followed by the signature.
const (
	footerField     = 32
	footerFields    = 8
	footerSignature = 256
)

// ReadExtension reads the description at the end of an extension's file. DuckDB verifies the signature when it loads
// the file.
func ReadExtension(path string) (*ExtensionFile, error) {
	f, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, fmt.Errorf("read extension: %w", err)
	}
	defer f.Close()
	footer := make([]byte, footerField*footerFields)
	if _, err := f.Seek(-int64(len(footer)+footerSignature), io.SeekEnd); err != nil {
		return nil, notExtension(path)
	}
	if _, err := io.ReadFull(f, footer); err != nil {
		return nil, notExtension(path)
	}
	field := func(i int) string {
		at := (footerFields - i) * footerField
		return string(bytes.TrimRight(footer[at:at+footerField], "\x00"))
	}
	const magic = "4"
	if field(1) != magic || field(2) == "" || !strings.HasPrefix(field(3), "v") {
		return nil, notExtension(path)
	}
	return &ExtensionFile{Platform: field(2), DuckDB: strings.TrimPrefix(field(3), "v"), Version: field(4)}, nil
}

func notExtension(path string) error {
	return fmt.Errorf("%s is not an extension of DuckDB: it must be a file that ends in %s, uncompressed", path, ExtensionSuffix)
}

// Extensions manages the files of extensions in a folder.
type Extensions struct {
	// Dir is the absolute folder.
	Dir string
	d   *database
	// Version and Platform are those of this program's DuckDB.
	Version, Platform string
}

// OpenExtensions opens a folder of extensions. The parameter scratch is an empty folder for working files.
func OpenExtensions(ctx context.Context, dir, scratch string) (*Extensions, error) {
	d, err := openDatabase(ctx, scratch, bindMemory, 1)
	if err != nil {
		return nil, err
	}
	e := &Extensions{Dir: dir, d: d}
	if e.Version, e.Platform, err = d.build(ctx); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return e, nil
}

// Close closes DuckDB.
func (e *Extensions) Close() error { return e.d.close() }

// Load loads a file into DuckDB, which verifies the signature, the version and the platform of the file.
func (e *Extensions) Load(ctx context.Context, path string) error {
	if _, err := e.d.exec(ctx, "LOAD "+quote(path)); err != nil {
		return errors.New(notLoadable(path, err))
	}
	return nil
}

// Fetch downloads an extension from a repository into the folder. If repository is empty, Fetch uses DuckDB's own
// repository. No other function of Servo downloads an extension.
func (e *Extensions) Fetch(ctx context.Context, extension, repository string) (path string, err error) {
	if _, err := e.d.exec(ctx, "SET extension_directory = "+quote(e.Dir)); err != nil {
		return "", fmt.Errorf("fetch %s: %w", extension, err)
	}
	statement := "FORCE INSTALL " + quoteName(fileNames[extension])
	if repository != "" {
		statement += " FROM " + quote(repository)
	}
	if _, err := e.d.exec(ctx, statement); err != nil {
		message := err.Error()
		if known, ok := asQueryError(err, ""); ok {
			message, _, _ = strings.Cut(known.message, "\n")
		}
		return "", fmt.Errorf("fetch %s for DuckDB %s, %s: %s", extension, e.Version, e.Platform, message)
	}
	return ExtensionPath(e.Dir, extension, e.Version, e.Platform), nil
}
