package query

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/duckdb/duckdb-go/v2"
)

const (
	// storedTable is the temporary table that holds the rows of a query.
	storedTable = "servo_result"
	// maxUnstored is the number of rows up to which a result is not stored: storing takes longer than computing the rows.
	maxUnstored = 10_000
)

// limited returns a query for the first rows of a query. DuckDB keeps the order of the rows.
func limited(sql string, maxRows int) string {
	return "FROM (" + sql + "\n) LIMIT " + strconv.Itoa(maxRows)
}

// storing returns the statement that stores the first rows of a query.
func storing(sql string, maxRows int) string {
	return "CREATE OR REPLACE TEMP TABLE " + storedTable + " AS " + limited(sql, maxRows)
}

// isStored reports whether the rows of a query are first stored in a table. DuckDB counts the memory of a table, but not
// the memory of a result. A query that may list tables must not find this table.
func isStored(sql string, maxRows int) bool { return maxRows > maxUnstored && !listsViews(sql) }

// runLimited runs a prepared query, but returns at most maxRows rows.
func (db *DB) runLimited(ctx context.Context, statement *duckdb.Stmt, sql string, values []driver.NamedValue, maxRows int) (_ *Rows, err error) {
	stored := isStored(sql, maxRows)
	first := limited(sql, maxRows)
	if stored {
		first = storing(sql, maxRows)
	}
	prepared, err := db.prepare(ctx, first)
	if err != nil { // the query cannot be a part of another one
		return db.runDirectly(ctx, statement, values, false)
	}
	names, err := columnNames(statement)
	if err = errors.Join(err, statement.Close()); err != nil {
		return nil, errors.Join(err, prepared.Close())
	}
	var rows *Rows
	if !stored {
		rows, err = db.runPrepared(ctx, prepared, values)
	} else if err = db.finish(ctx, prepared, values); err == nil {
		rows, err = db.readStored(ctx)
	}
	if err != nil {
		return nil, err
	}
	if len(names) == len(rows.Columns) { // the columns of a table, or of a query in brackets, have distinct names
		for i, name := range names {
			rows.Columns[i].Name = name
		}
	}
	return rows, nil
}

// finish executes a statement without reading rows, and closes it.
func (db *DB) finish(ctx context.Context, prepared driver.Stmt, values []driver.NamedValue) error {
	statement, ok := prepared.(*duckdb.Stmt)
	if !ok {
		return errors.Join(fmt.Errorf("prepare returned a %T", prepared), prepared.Close())
	}
	_, err := statement.ExecContext(ctx, values)
	if err != nil && strings.Contains(err.Error(), "Out of Memory Error") { // DuckDB's advice does not apply to a session
		err = fmt.Errorf("the query and its result need too much memory: select fewer rows or columns: %w", err)
	}
	return errors.Join(err, statement.Close())
}

// readStored returns the rows of the table, and deletes the table.
func (db *DB) readStored(ctx context.Context) (*Rows, error) {
	prepared, err := db.prepare(ctx, "FROM temp."+storedTable)
	if err != nil {
		return nil, err
	}
	rows, err := db.runPrepared(ctx, prepared, nil)
	if err != nil {
		return nil, err
	}
	if err := db.exec(ctx, "DROP TABLE temp."+storedTable); err != nil {
		return nil, errors.Join(err, rows.Close())
	}
	return rows, nil
}

// runPrepared runs a query that this package has written.
func (db *DB) runPrepared(ctx context.Context, prepared driver.Stmt, values []driver.NamedValue) (*Rows, error) {
	statement, ok := prepared.(*duckdb.Stmt)
	if !ok {
		return nil, errors.Join(fmt.Errorf("prepare returned a %T", prepared), prepared.Close())
	}
	return db.runDirectly(ctx, statement, values, false)
}

func columnNames(statement *duckdb.Stmt) ([]string, error) {
	n, err := statement.ColumnCount()
	if err != nil {
		return nil, err
	}
	names := make([]string, n)
	for i := range names {
		if names[i], err = statement.ColumnName(i); err != nil {
			return nil, err
		}
	}
	return names, nil
}
