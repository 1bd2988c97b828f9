// Package query runs SQL over one revision of a domain. DuckDB runs in this process and reads
// the Parquet files directly. This package is not a stable API.
//
// Every projection table is a view of the current rows: for each key, the row with the greatest row_seq, unless that
// row is a deletion. [Script] returns the same views as SQL for any DuckDB. Outputs of assets are also views, with
// the namespace as schema: raw.orders is the output of raw/orders.
//
// Queries are sandboxed. DuckDB can open the files of the revision, of the assets' outputs and of [Source.AllowedDirs],
// but no other file, no network and no extension. Its settings are locked. Statements that write files are rejected
// before they run. Tables, views and variables that a statement creates are in memory until Close.
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
	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of a session.
const (
	MaxFiles    = 200_000
	MaxSQLBytes = 1 << 20
)

// Source describes the data to query: the files of one revision.
type Source struct {
	// Tables are the projection tables, by name. A table that is not in the map is empty.
	Tables map[string]Table
	// Outputs is the folder that contains the assets' outputs: the root of the object store,
	// as an absolute path. Empty: assets have no views.
	Outputs string
	// Declared returns the declarations of a release. Its parameter "keys" is a function that returns the keys that a
	// key set has at this revision. If Declared is nil, the views of assets show all materialized partitions, without
	// partition columns.
	Declared func(ctx context.Context, release string, keys func(set string) ([]string, error)) (*Declarations, error)
	// Links is a folder for symbolic links, as an absolute path, which the caller removes after Close. Empty: there are
	// no links, so a filter on a partition column cannot skip files.
	Links string
	// SQL contains all statements that the session will run. The session then reads the commit markers only of assets that
	// the SQL mentions and, if the SQL lists views, of the newest outputs of other assets. "": the statements are not known
	// yet.
	SQL string
	// AllowedDirs are further folders that SQL may read, as absolute paths.
	AllowedDirs []string
	// Checked caches the files whose checksums were verified. Nil: each session verifies
	// them.
	Checked *filecheck.Cache

	exported []Exported // set by [Export]: the views show these assets, not those in the tables
}

// Options limit the resources of a query.
type Options struct {
	// MemoryBytes limits DuckDB's memory; 0 means 1 GiB. DuckDB does not spill to disk.
	MemoryBytes int64
	// Threads is the number of DuckDB's threads; 0 means one per core.
	Threads int
}

// DB is one session over one revision. It is safe for concurrent use, but runs
// one statement at a time.
type DB struct {
	mu        sync.Mutex
	connector *duckdb.Connector
	conn      *duckdb.Conn
	assets    []*asset
	views     bool // false: the session has no outputs, or reads an export
	tables    map[string]Table
	checked   *filecheck.Cache
	links     string // the folder for symbolic links
	linked    int    // number of folders that were created in that folder

	openMu sync.Mutex
	open   map[*Rows]struct{}
}

// Open creates the views of a revision. The caller must keep the files until Close.
func Open(ctx context.Context, source Source, opts Options) (_ *DB, err error) {
	if err := source.check(); err != nil {
		return nil, fmt.Errorf("open query: %w", err)
	}
	db := &DB{open: map[*Rows]struct{}{}, tables: source.Tables, checked: source.Checked, links: source.Links}
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
	db.conn, _ = conn.(*duckdb.Conn) // a connection of DuckDB always has this type
	if err := db.settings(ctx, opts); err != nil {
		return nil, err
	}
	if err := db.checkTables(ctx, ""); err != nil {
		return nil, err
	}
	for _, d := range state.Declarations() {
		view, err := createView(d.Schema, source.Tables[d.Name])
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

// Close ends the session and closes rows that are still open.
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

// check rejects invalid sources, because DuckDB's errors would be less clear.
func (s Source) check() error {
	known := map[string]bool{}
	for _, d := range state.Declarations() {
		known[d.Name] = true
	}
	files := 0
	for name, t := range s.Tables {
		if !known[name] {
			return fmt.Errorf("unknown table %q", name)
		}
		if files += len(t.Files); files > MaxFiles {
			return fmt.Errorf("the revision has more than %d files: run `servo admin rebuild` to merge the state into few files", MaxFiles)
		}
		for _, f := range t.Files {
			if !filepath.IsAbs(f.Path) {
				return fmt.Errorf("table %s: path %q is not absolute", name, f.Path)
			}
		}
	}
	for _, dir := range append(slices.Clone(s.AllowedDirs), s.Outputs, s.Links) {
		if dir != "" && !filepath.IsAbs(dir) {
			return fmt.Errorf("folder %q is not an absolute path", dir)
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

// confine restricts DuckDB to the files of the session and locks its settings. It allows single files, because
// statements could write into an allowed folder.
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

// exec runs statements that this package has written.
func (db *DB) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := db.conn.ExecContext(ctx, statement, nil); err != nil {
			return err
		}
	}
	return nil
}

// Query runs statements separated by ";" and returns the rows of the last one. The arguments
// are bound to the parameters of the last statement, in order. The caller must close the rows.
// When ctx ends, Query returns and the running statement is interrupted. DuckDB cannot be
// interrupted while it prepares a statement: the session is then busy until DuckDB returns, and
// Close waits for it.
func (db *DB) Query(ctx context.Context, sql string, args ...any) (*Rows, error) {
	return db.start(ctx, sql, args, 0)
}

// QueryAtMost is like [DB.Query], but DuckDB computes at most maxRows rows of each query. If maxRows is more than
// 10,000, the rows count against the session's memory limit. Results of [DB.Query] do not count.
func (db *DB) QueryAtMost(ctx context.Context, maxRows int, sql string) (*Rows, error) {
	return db.start(ctx, sql, nil, maxRows)
}

// start runs statements in another goroutine. If maxRows is positive, queries compute at most this number of rows.
func (db *DB) start(ctx context.Context, sql string, args []any, maxRows int) (*Rows, error) {
	if len(sql) > MaxSQLBytes {
		return nil, fmt.Errorf("query: the SQL has %d bytes: at most %d are allowed", len(sql), MaxSQLBytes)
	}
	if strings.Contains(sql, "\x00") {
		return nil, errors.New("query: the SQL contains a NUL character: remove it, because DuckDB would ignore the text after it")
	}
	if err := checkNesting(sql); err != nil {
		return nil, fmt.Errorf("query: %w", err)
	}
	type answer struct {
		rows *Rows
		err  error
	}
	answers := make(chan answer)
	go func() {
		rows, err := db.query(ctx, sql, args, maxRows)
		select {
		case answers <- answer{rows, err}:
		case <-ctx.Done():
			if rows != nil {
				_ = rows.Close() // the caller no longer waits for the rows
			}
		}
	}()
	select {
	case a := <-answers:
		return a.rows, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("query: %w", context.Cause(ctx))
	}
}

// query does the work of start. Unlike start, it returns only after DuckDB has returned, even if ctx has ended.
func (db *DB) query(ctx context.Context, sql string, args []any, maxRows int) (*Rows, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.conn == nil {
		return nil, errors.New("query: the session is closed")
	}
	rows, err := db.run(ctx, sql, args, maxRows)
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

func (db *DB) run(ctx context.Context, sql string, args []any, maxRows int) (*Rows, error) {
	statements := split(sql)
	if len(statements) == 0 {
		return nil, errors.New("the SQL contains no statement")
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
		rows, err := db.runStatement(ctx, statement, nil, maxRows)
		if err != nil {
			return nil, err
		}
		if err := rows.Close(); err != nil {
			return nil, err
		}
	}
	return db.runStatement(ctx, statements[len(statements)-1], args, maxRows)
}

// runOne runs a statement that this package has written.
func (db *DB) runOne(ctx context.Context, sql string) (*Rows, error) {
	return db.runStatement(ctx, sql, nil, 0)
}

func (db *DB) runStatement(ctx context.Context, sql string, args []any, maxRows int) (*Rows, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	values, err := db.parameters(args)
	if err != nil {
		return nil, err
	}
	prepared, err := db.prepare(ctx, sql)
	if err != nil && isCompound(err) {
		return db.runCompound(ctx, sql, values, maxRows)
	}
	if err != nil {
		return nil, err
	}
	statement, ok := prepared.(*duckdb.Stmt)
	if !ok {
		return nil, fmt.Errorf("prepare returned a %T", prepared)
	}
	kind, err := permit(statement, sql)
	if err != nil {
		return nil, errors.Join(err, statement.Close())
	}
	if maxRows > 0 && kind == duckdb.STATEMENT_TYPE_SELECT {
		return db.runLimited(ctx, statement, sql, values, maxRows)
	}
	if kind == duckdb.STATEMENT_TYPE_TRANSACTION {
		db.forgetViews()
	}
	return db.runDirectly(ctx, statement, values, hasEffect(kind))
}

func (db *DB) runDirectly(ctx context.Context, statement *duckdb.Stmt, values []driver.NamedValue, changes bool) (*Rows, error) {
	rows, err := statement.QueryContext(ctx, values)
	if err != nil {
		return nil, errors.Join(err, statement.Close())
	}
	result := db.newRows(ctx, rows, statement)
	result.Changes = changes
	return result, nil
}

// prepare prepares one statement.
func (db *DB) prepare(ctx context.Context, sql string) (driver.Stmt, error) {
	prepared, err := db.conn.Prepare(sql)
	if err == nil && ctx.Err() != nil {
		return nil, errors.Join(ctx.Err(), prepared.Close())
	}
	return prepared, err
}

// parameters converts arguments to values of the driver.
func (db *DB) parameters(args []any) ([]driver.NamedValue, error) {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
		err := db.conn.CheckNamedValue(&values[i])
		if errors.Is(err, driver.ErrSkip) { // DuckDB has no type for the value
			values[i].Value, err = driver.DefaultParameterConverter.ConvertValue(arg)
		}
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i+1, err)
		}
	}
	return values, nil
}

// runCompound runs a statement that DuckDB expands into several statements, for example PIVOT.
func (db *DB) runCompound(ctx context.Context, sql string, args []driver.NamedValue, maxRows int) (*Rows, error) {
	if err := permitWords(sql); err != nil {
		return nil, err
	}
	switch {
	case maxRows > 0 && !isStored(sql, maxRows):
		sql = limited(sql, maxRows)
	case maxRows > 0:
		if _, err := db.conn.ExecContext(ctx, storing(sql, maxRows), args); err != nil {
			return nil, err
		}
		return db.readStored(ctx)
	}
	rows, err := db.conn.QueryContext(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return db.newRows(ctx, rows, io.NopCloser(strings.NewReader(""))), nil
}
