package query

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/duckdb/duckdb-go/v2"
)

// exportTable is the table of a catalog that says that [Export] wrote it.
const exportTable = "servo_export"

// Export writes a DuckDB database with a view for each asset that choose accepts, over the files of
// the outputs: tables that any DuckDB on this machine can read. It replaces the file at once, and
// only one that Export has written. The views need a folder beside the file, with links to outputs.
// Export keeps the folder of the file that it replaces, for processes that have opened it. It returns
// the assets that have a view, as namespace/name: not those without rows.
func Export(ctx context.Context, source Source, revision int64, now time.Time, file string, choose func(asset string) bool) (views []string, err error) {
	before, err := ownCatalog(ctx, file)
	if err != nil {
		return nil, err
	}
	all := file + ".links"
	if err := os.Mkdir(all, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // others may read the catalog
		return nil, fmt.Errorf("link the outputs: %w", err)
	}
	if source.Links, err = os.MkdirTemp(all, strconv.FormatInt(revision, 10)+"-"); err != nil {
		return nil, fmt.Errorf("link the outputs: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(source.Links)
		}
		_ = os.Remove(source.Links) // if no view needs links
		_ = os.Remove(all)
	}()
	views, statements, err := exportViews(ctx, source, choose)
	if err != nil {
		return nil, err
	}
	links := filepath.Base(source.Links)
	statements = append(statements, fmt.Sprintf("CREATE TABLE %s AS SELECT %d AS revision, TIMESTAMP %s AS exported_at, %s AS links",
		exportTable, revision, quoteText(now.UTC().Format(time.DateTime)), quoteText(links)))
	if err := replaceCatalog(ctx, file, statements); err != nil {
		return nil, err
	}
	return views, removeLinks(all, now.Add(-time.Hour), links, before)
}

// exportViews returns the statements that create the views.
func exportViews(ctx context.Context, source Source, choose func(asset string) bool) (views, statements []string, err error) {
	db, err := Open(ctx, source, Options{})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	for _, a := range db.assets {
		key := a.namespace + "/" + a.name
		switch {
		case a.namespace == QuarantineSchema || !choose(key):
			continue
		case len(a.files) == 0 && (a.problem == "" || a.problem == noParquet):
			continue // its outputs have no rows
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
	if len(views) == 0 {
		return nil, nil, errors.New("none of the assets has an output with rows: run them first")
	}
	return views, statements, nil
}

// replaceCatalog creates a database and gives it its name when it is complete.
func replaceCatalog(ctx context.Context, file string, statements []string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".servo-export-")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	temporary := filepath.Join(dir, "catalog")
	connector, err := duckdb.NewConnector(temporary, nil)
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	catalog := sql.OpenDB(connector)
	for _, statement := range statements {
		if _, err := catalog.ExecContext(ctx, statement); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", file, err), catalog.Close())
		}
	}
	if err := catalog.Close(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(temporary, file)
}

// ownCatalog returns the name of the folder of links of an existing catalog. It returns an error if the
// file is something else, if somebody has added tables to it, or if a process is writing to it.
func ownCatalog(ctx context.Context, file string) (links string, err error) {
	if _, err := os.Lstat(file + ".wal"); err == nil {
		return "", fmt.Errorf("%s.wal exists: a process writes to %s: close it, or choose another file", file, file)
	}
	if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	foreign := fmt.Errorf("%s holds something that `servo export` did not write: choose another file", file)
	connector, err := duckdb.NewConnector(file+"?access_mode=read_only", nil)
	if err != nil {
		return "", fmt.Errorf("%w: %w", foreign, err)
	}
	catalog := sql.OpenDB(connector)
	defer func() { err = errors.Join(err, catalog.Close()) }()
	var tables string
	if err := catalog.QueryRowContext(ctx, "SELECT coalesce(string_agg(table_name), '') FROM duckdb_tables()").Scan(&tables); err != nil || tables != exportTable {
		return "", foreign
	}
	if err := catalog.QueryRowContext(ctx, "SELECT links FROM "+exportTable).Scan(&links); err != nil {
		return "", foreign
	}
	return links, nil
}

// removeLinks removes the folders of links that no catalog needs. Another export may be writing those
// that are new.
func removeLinks(folder string, before time.Time, keep ...string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("remove old links: %w", err)
	}
	for _, e := range entries {
		info, infoErr := e.Info()
		if infoErr == nil && !slices.Contains(keep, e.Name()) && info.ModTime().Before(before) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(folder, e.Name())))
		}
	}
	return err
}
