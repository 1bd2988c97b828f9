package query

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/space"
)

// exportTable is the name of a table in each catalog. The table proves that [Export] wrote the catalog.
const exportTable = "servo_export"

// catalogContents is a query that returns a sorted list of everything in a catalog that users can see, except tables.
// It lists views with their definitions, because somebody may have replaced a view.
const catalogContents = `SELECT coalesce(list(item ORDER BY item), []) FROM (
	SELECT sql AS item FROM duckdb_views() WHERE NOT internal
	UNION ALL SELECT 'function ' || schema_name || '.' || function_name FROM duckdb_functions() WHERE NOT internal
	UNION ALL SELECT 'type ' || schema_name || '.' || type_name FROM duckdb_types() WHERE NOT internal
	UNION ALL SELECT 'sequence ' || schema_name || '.' || sequence_name FROM duckdb_sequences())`

// Exported is an asset that a catalog shows.
type Exported struct {
	// View is the name of the view, as namespace/name. Exported assets are sorted by this name.
	View string
	// Columns are the columns that readers get from the keys of partitions.
	Columns []space.Column
	Outputs []ExportedOutput
}

// ExportedOutput is an output of an asset.
type ExportedOutput struct {
	Partition, MaterializationID string
	// URI is the object key of the output's folder.
	URI string
}

// links returns the name of the folder with the links to the output. All partitions of a batch have the same
// materialization, so the name also contains a hash of the partition.
func (o *ExportedOutput) links() string {
	sum := sha256.Sum256([]byte(o.Partition))
	return o.MaterializationID + "-" + hex.EncodeToString(sum[:8])
}

// Catalog describes the contents of a catalog, and when it was made.
type Catalog struct {
	// Outputs is the folder of the object store, as an absolute path.
	Outputs string
	Assets  []Exported
	// Checked caches the files whose checksums were verified. It may be nil.
	Checked  *filecheck.Cache
	Revision int64
	At       time.Time
	// Empty allows a catalog without views. If Empty is not set, such a catalog is an error.
	Empty bool
}

// Export writes a DuckDB database with one view for each asset. The view reads the files of the asset's outputs. Any
// DuckDB on this machine can read these views. Export replaces an existing file atomically, and only if an earlier
// export has written it. The views need a folder beside the file, with links to outputs. Links that only earlier files
// need are kept for an hour, for processes that have opened such a file. Export returns the names of the views. An
// asset without rows has no view. If Export returns an error, the file is unchanged.
func Export(ctx context.Context, c Catalog, file string) (views []string, err error) {
	if strings.Contains(file, "?") {
		return nil, fmt.Errorf("write %s: DuckDB cannot write files whose path contains a question mark: choose another file", file)
	}
	if err := ownCatalog(ctx, file); err != nil {
		return nil, err
	}
	links := file + ".links"
	if err := os.Mkdir(links, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // others may read the catalog
		return nil, fmt.Errorf("link the outputs: %w", err)
	}
	removeAbandoned(filepath.Dir(file), c.At)
	defer func() { _ = os.Remove(links) }() // succeeds only if the folder is empty
	views, statements, err := exportViews(ctx, c, links)
	if err != nil {
		return nil, err
	}
	about := fmt.Sprintf("CREATE TABLE %s AS SELECT %d AS revision, TIMESTAMP %s AS exported_at, (%s) AS contents",
		exportTable, c.Revision, quoteText(c.At.UTC().Format(time.DateTime)), catalogContents)
	if err := replaceCatalog(ctx, file, statements, about); err != nil {
		return nil, err
	}
	_ = retireLinks(links, c) // the file is complete, and the next export retires the links
	return views, nil
}

// exportViews returns the names of the views of a catalog, and the statements that create them.
func exportViews(ctx context.Context, c Catalog, links string) (views, statements []string, err error) {
	source := Source{Outputs: c.Outputs, Links: links, Checked: c.Checked, exported: append([]Exported{}, c.Assets...)}
	db, err := Open(ctx, source, Options{})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, a := range db.assets {
		key := a.namespace + "/" + a.name
		switch {
		case len(a.files) == 0 && (a.problem == "" || a.problem == noParquet):
			continue // the outputs of the asset have no rows
		case a.problem != "":
			return nil, nil, fmt.Errorf("asset %s cannot be exported: %s", key, a.problem)
		}
		if err := db.checkOutputs(ctx, a); err != nil {
			return nil, nil, err
		}
		rows, err := db.rows(ctx, a)
		if err != nil {
			return nil, nil, fmt.Errorf("asset %s cannot be exported: %w", key, err)
		}
		name := quoteName(a.namespace)
		statements = append(statements, "CREATE SCHEMA IF NOT EXISTS "+name, "CREATE VIEW "+name+"."+quoteName(a.name)+" AS "+rows)
		views = append(views, key)
	}
	if len(views) == 0 && !c.Empty {
		return nil, nil, errors.New("none of the assets has an output with rows: run them first")
	}
	return views, statements, nil
}

// loadExported finds the files of the assets of an export.
func (db *DB) loadExported(source Source) error {
	total, markers := 0, &markers{root: source.Outputs}
	for _, e := range source.exported {
		a := db.assetOf(e.View, e.Columns)
		for i := range e.Outputs {
			out, before := &e.Outputs[i], len(a.files)
			a.add(markers, out.URI, out.Partition)
			if len(a.parts) > 0 {
				a.parts[len(a.parts)-1].Folder = out.links()
			}
			if total += len(a.files) - before; total > MaxFiles {
				return fmt.Errorf("the outputs have more than %d files: export fewer assets", MaxFiles)
			}
		}
	}
	db.noteProblems()
	return nil
}

// temporaryCatalog is the prefix of the names of the folders in which catalogs are written.
const temporaryCatalog = ".servo-export-"

// removeAbandoned removes the temporary folders of processes that were killed. It keeps folders that are less than an
// hour old, because running exports may use them.
func removeAbandoned(dir string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the caller fails later, when it creates its temporary folder
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && strings.HasPrefix(e.Name(), temporaryCatalog) && now.Sub(info.ModTime()) > retiredFor {
			_ = os.RemoveAll(filepath.Join(dir, e.Name())) // the next export tries to remove it again
		}
	}
}

// replaceCatalog creates a database under a temporary name, and renames it to the given file name when it is complete.
// It executes the statement "last" in a new session, because only a new session returns the definitions of views in
// their final form.
func replaceCatalog(ctx context.Context, file string, statements []string, last string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(file), temporaryCatalog)
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // best effort
	temporary := filepath.Join(dir, "catalog")
	for _, session := range [][]string{statements, {last}} {
		if err := execIn(ctx, temporary, session); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
	}
	return os.Rename(temporary, file)
}

// execIn executes statements in a session of a database.
func execIn(ctx context.Context, file string, statements []string) (err error) {
	db, err := openCatalog(ctx, file, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, statement := range append(statements, "USE memory", "DETACH "+attachedCatalog) {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// attachedCatalog is the name of a catalog in its session. The name contains a space, because no namespace does: a
// schema with the name of its database would be ambiguous.
const attachedCatalog = `"servo catalog"`

// openCatalog opens a session and attaches a database to it. If the driver opened the file itself, it would parse the
// file name as a URL, so the name could not contain % or ?.
func openCatalog(ctx context.Context, file, options string) (_ *sql.DB, err error) {
	connector, err := duckdb.NewConnector("", nil)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1) // USE applies to one connection
	for _, statement := range []string{"ATTACH " + quoteText(file) + " AS " + attachedCatalog + " (TYPE duckdb" + options + ")", "USE " + attachedCatalog} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// ownCatalog returns an error if an existing file is not a catalog, if somebody has added objects to it or changed
// its views, or if a process is writing to it.
func ownCatalog(ctx context.Context, file string) (err error) {
	if _, err := os.Lstat(file + ".wal"); err == nil {
		return fmt.Errorf("%s.wal exists: a process is writing to %s: end that process, or choose another file", file, file)
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	foreign := fmt.Errorf("%s contains data that servo did not write: choose another file", file)
	catalog, err := openCatalog(ctx, file, ", READ_ONLY")
	switch {
	case err != nil && strings.Contains(err.Error(), "Could not set lock on file"): // DuckDB has no error value for this case
		return fmt.Errorf("%s is open in a process that may write to it: close it there, or open it read-only: %w", file, err)
	case err != nil:
		return fmt.Errorf("%w: %w", foreign, err)
	}
	defer func() { err = errors.Join(err, catalog.Close()) }()
	var tables string
	if err := catalog.QueryRowContext(ctx, "SELECT coalesce(string_agg(table_name), '') FROM duckdb_tables()").Scan(&tables); err != nil || tables != exportTable {
		return foreign
	}
	var added string
	err = catalog.QueryRowContext(ctx, "SELECT coalesce(list_filter(("+catalogContents+"), lambda item: NOT list_contains(contents, item))[1], '') FROM "+exportTable).Scan(&added)
	if err != nil {
		return foreign
	}
	if added != "" {
		return fmt.Errorf("objects were added to %s, or a view was changed: %s: choose another file, or delete %s", file, added, file)
	}
	return nil
}

const (
	// retiredName is the name of a file that marks a folder of links as no longer needed. The folder contains the links
	// of one output. The file's modification time is the time of the first export that did not need these links.
	retiredName = "retired"
	// retiredFor is how long Export keeps links that the newest catalog does not need.
	retiredFor = time.Hour
)

// retireLinks marks each folder of links that a new catalog does not need. It removes folders that were marked at
// least an hour ago.
func retireLinks(links string, c Catalog) error {
	needed := map[string]bool{}
	for _, a := range c.Assets {
		for i := range a.Outputs {
			needed[strings.Replace(a.View, "/", ".", 1)+"/"+a.Outputs[i].links()] = true
		}
	}
	folders, err := fs.Glob(os.DirFS(links), "*/*")
	if err != nil {
		return fmt.Errorf("remove old links: %w", err)
	}
	for _, name := range folders {
		folder := filepath.Join(links, filepath.FromSlash(name))
		if retireErr := retire(folder, needed[name], c.At); retireErr != nil {
			err = errors.Join(err, fmt.Errorf("remove old links: %w", retireErr))
		}
		_ = os.Remove(filepath.Dir(folder)) // succeeds only if the folder is empty
	}
	return err
}

func retire(folder string, needed bool, now time.Time) error {
	mark := filepath.Join(folder, retiredName)
	info, err := os.Lstat(mark)
	switch {
	case needed && err == nil:
		return os.Remove(mark)
	case needed && errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			return err
		}
		return os.Chtimes(mark, now, now)
	case err != nil:
		return err
	case now.Sub(info.ModTime()) < retiredFor:
		return nil
	}
	return os.RemoveAll(folder)
}
