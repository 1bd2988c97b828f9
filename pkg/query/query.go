// Package query answers SQL over one revision of a domain, with DuckDB in this
// process reading the Parquet files themselves.
//
// Every projection table is a view of its name that holds the current rows:
// the greatest row_seq of each key, deletions left out. [Script] is the same
// views as text, for any DuckDB. The outputs of assets are views too, in a
// schema a namespace: "raw.orders" is what raw/orders holds.
//
// What runs is confined. DuckDB may open the files of the revision and of the
// assets' outputs and nothing else: no other file, no network, no extension; its
// settings are locked. Statements that write files are refused before they run.
// Tables, views and variables that a statement makes live in memory, until Close.
package query

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/servo-orchestration/servo/pkg/filecheck"
	"github.com/servo-orchestration/servo/pkg/table"
)

// Limits of what one DB reads and runs.
const (
	MaxFiles    = 200_000
	MaxSQLBytes = 1 << 20
)

// Source is what to query: the files of one revision.
type Source struct {
	// Tables are the projection tables, by name. One that is not there is empty.
	Tables map[string]Table
	// Outputs is the folder under which the assets' outputs lie: the blob store's
	// root, as an absolute path. Empty: assets have no views.
	Outputs string
	// AllowedDirs are more folders that SQL may read, as absolute paths.
	AllowedDirs []string
	// Checked remembers the files that were found whole; nil: nothing is remembered between sessions.
	Checked *filecheck.Cache
}

// Options bound what a query may use.
type Options struct {
	// MemoryBytes is the most memory that DuckDB takes; 0 means 1 GiB. It does not
	// spill to disk.
	MemoryBytes int64
	// Threads is how many threads it runs; 0 means one for each core.
	Threads int
}

// DB is one session over one revision. It is safe for concurrent use, but runs
// one statement at a time.
type DB struct {
	mu        sync.Mutex
	connector *duckdb.Connector
	conn      *duckdb.Conn
	assets    []*asset
	views     bool // assets have views
	tables    map[string]Table
	checked   *filecheck.Cache

	openMu sync.Mutex
	open   map[*Rows]struct{}
}

// Open prepares the views of a revision. The files must stay until Close.
func Open(ctx context.Context, source Source, opts Options) (_ *DB, err error) {
	if err := source.check(); err != nil {
		return nil, fmt.Errorf("open query: %w", err)
	}
	db := &DB{open: map[*Rows]struct{}{}, tables: source.Tables, checked: source.Checked}
	if db.checked == nil {
		db.checked = filecheck.New()
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open query: %w", err), db.Close())
		}
	}()
	if db.connector, err = duckdb.NewConnector("", nil); err != nil {
		return nil, err
	}
	conn, err := db.connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	db.conn, _ = conn.(*duckdb.Conn) // it is no other type
	if err := db.settings(ctx, opts); err != nil {
		return nil, err
	}
	if err := db.checkTables(ctx, ""); err != nil {
		return nil, err
	}
	for _, d := range table.All() {
		view, err := createView(d, source.Tables[d.Name])
		if err != nil {
			return nil, err
		}
		if err := db.exec(ctx, view); err != nil {
			return nil, fmt.Errorf("table %s: %w", d.Name, err)
		}
	}
	if err := db.loadAssets(ctx, source); err != nil {
		return nil, err
	}
	return db, db.confine(ctx, source)
}

// Close ends the session, and closes rows that are still open.
func (db *DB) Close() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.openMu.Lock()
	open := slices.Collect(maps.Keys(db.open))
	db.openMu.Unlock()
	var err error
	for _, rows := range open {
		err = errors.Join(err, rows.Close())
	}
	if db.conn != nil {
		err = errors.Join(err, db.conn.Close())
		db.conn = nil
	}
	if db.connector != nil {
		err = errors.Join(err, db.connector.Close())
		db.connector = nil
	}
	return err
}

// check finds what DuckDB would complain about less clearly.
func (s Source) check() error {
	known := map[string]bool{}
	for _, d := range table.All() {
		known[d.Name] = true
	}
	files := 0
	for name, t := range s.Tables {
		if !known[name] {
			return fmt.Errorf("there is no table %q", name)
		}
		if files += len(t.Files); files > MaxFiles {
			return fmt.Errorf("the revision has more than %d files: compact it", MaxFiles)
		}
		for _, f := range t.Files {
			if !filepath.IsAbs(f.Path) {
				return fmt.Errorf("table %s: the path %q is not absolute", name, f.Path)
			}
		}
	}
	for _, dir := range append(slices.Clone(s.AllowedDirs), s.Outputs) {
		if dir != "" && !filepath.IsAbs(dir) {
			return fmt.Errorf("the folder %q is not an absolute path", dir)
		}
	}
	return nil
}

func (db *DB) settings(ctx context.Context, opts Options) error {
	memory := opts.MemoryBytes
	if memory <= 0 {
		memory = 1 << 30
	}
	settings := []string{
		"SET TimeZone = 'UTC'",
		"SET autoinstall_known_extensions = false",
		"SET autoload_known_extensions = false",
		"SET temp_directory = ''",
		"SET memory_limit = '" + strconv.FormatInt(memory, 10) + "B'",
	}
	if opts.Threads > 0 {
		settings = append(settings, "SET threads = "+strconv.Itoa(opts.Threads))
	}
	return db.exec(ctx, settings...)
}

// confine names the files that may be opened, and locks the settings. Files and
// not their folders: DuckDB would let statements write into those.
func (db *DB) confine(ctx context.Context, source Source) error {
	var paths []string
	for _, t := range source.Tables {
		paths = append(paths, pathsOf(t.Files)...)
	}
	for _, a := range db.assets {
		paths = append(paths, pathsOf(a.files)...)
	}
	slices.Sort(paths)
	return db.exec(
		ctx,
		"SET allowed_paths = "+quoteList(paths),
		"SET allowed_directories = "+quoteList(source.AllowedDirs),
		"SET enable_external_access = false",
		"SET lock_configuration = true",
	)
}

// exec runs statements of our own.
func (db *DB) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := db.conn.ExecContext(ctx, statement, nil); err != nil {
			return err
		}
	}
	return nil
}

// Query runs one statement or several, with a ";" between them, and gives the
// rows of the last. The arguments are for its parameters, in order. The caller
// closes the rows. If ctx ends, what runs is interrupted.
func (db *DB) Query(ctx context.Context, sql string, args ...any) (*Rows, error) {
	if len(sql) > MaxSQLBytes {
		return nil, fmt.Errorf("query: the SQL has %d bytes, the limit is %d", len(sql), MaxSQLBytes)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.conn == nil {
		return nil, errors.New("query: the session is closed")
	}
	rows, err := db.run(ctx, sql, args)
	if err == nil {
		return rows, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("query: %w", context.Cause(ctx))
	}
	if hint := db.hint(sql); hint != "" {
		return nil, fmt.Errorf("query: %w\n%s", err, hint)
	}
	return nil, fmt.Errorf("query: %w", err)
}

func (db *DB) run(ctx context.Context, sql string, args []any) (*Rows, error) {
	statements := split(sql)
	if len(statements) == 0 {
		return nil, errors.New("there is no statement")
	}
	if err := permitText(sql); err != nil {
		return nil, err
	}
	if err := db.checkTables(ctx, strings.ToLower(sql)); err != nil {
		return nil, err
	}
	if err := db.createAssetViews(ctx, sql); err != nil {
		return nil, err
	}
	for _, statement := range statements[:len(statements)-1] {
		rows, err := db.runOne(ctx, statement, nil)
		if err != nil {
			return nil, err
		}
		if err := rows.Close(); err != nil {
			return nil, err
		}
	}
	return db.runOne(ctx, statements[len(statements)-1], args)
}

func (db *DB) runOne(ctx context.Context, sql string, args []any) (*Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	values, err := db.parameters(args)
	if err != nil {
		return nil, err
	}
	prepared, err := db.conn.Prepare(sql)
	if err != nil && isCompound(err) {
		return db.runCompound(ctx, sql, values)
	}
	if err != nil {
		return nil, err
	}
	statement, ok := prepared.(*duckdb.Stmt)
	if !ok {
		return nil, fmt.Errorf("prepare gave a %T", prepared)
	}
	kind, err := permit(statement, sql)
	if err != nil {
		return nil, errors.Join(err, statement.Close())
	}
	rows, err := statement.QueryContext(ctx, values)
	if err != nil {
		return nil, errors.Join(err, statement.Close())
	}
	result := db.newRows(ctx, rows, statement)
	result.Changes = changes(kind)
	return result, nil
}

// parameters are arguments as the driver binds them.
func (db *DB) parameters(args []any) ([]driver.NamedValue, error) {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
		err := db.conn.CheckNamedValue(&values[i])
		if errors.Is(err, driver.ErrSkip) { // no type of DuckDB's own
			values[i].Value, err = driver.DefaultParameterConverter.ConvertValue(arg)
		}
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i+1, err)
		}
	}
	return values, nil
}

// runCompound runs what DuckDB makes several statements of, such as PIVOT.
func (db *DB) runCompound(ctx context.Context, sql string, args []driver.NamedValue) (*Rows, error) {
	if err := permitWords(sql); err != nil {
		return nil, err
	}
	rows, err := db.conn.QueryContext(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return db.newRows(ctx, rows, io.NopCloser(strings.NewReader(""))), nil
}
