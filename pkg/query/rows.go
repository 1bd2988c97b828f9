package query

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

// Column is a column of a result.
type Column struct {
	Name string
	// Type is DuckDB's name of the type, for example VARCHAR or DECIMAL(9,2).
	Type string
}

// Rows are the result of a query. DuckDB keeps them in memory until Close.
type Rows struct {
	// Columns are the result's columns.
	Columns []Column
	// Changes reports whether the statement creates or changes something. If it does, the rows only describe the effect.
	Changes bool

	// MaxRowBytes limits the memory of one converted row, in bytes. A larger row causes an error before the row is
	// converted. 0: no limit. Set it before calling All.
	MaxRowBytes int64

	ctx   context.Context //nolint:containedctx // the end of the query's context also ends its rows
	db    *DB
	kinds []kind

	mu        sync.Mutex // DB.Close closes rows that another goroutine may be reading
	rows      driver.Rows
	statement io.Closer
	closed    bool
	sizes     *sizes       // nil until a row is measured
	exact     *exactValues // nil if the driver changes no value, or no row has been read
	started   bool
}

func (db *DB) newRows(ctx context.Context, rows driver.Rows, statement io.Closer) *Rows {
	r := &Rows{ctx: ctx, db: db, rows: rows, statement: statement}
	types, _ := rows.(driver.RowsColumnTypeDatabaseTypeName) // the driver's rows always have this method
	for i, name := range rows.Columns() {
		column := Column{Name: name, Type: types.ColumnTypeDatabaseTypeName(i)}
		r.Columns = append(r.Columns, column)
		r.kinds = append(r.kinds, parseKind(column.Type))
	}
	db.openMu.Lock()
	defer db.openMu.Unlock()
	db.open[r] = struct{}{}
	return r
}

// All yields the rows. Only one call is allowed. A cell is a value that package render accepts: nil, a bool, a number,
// a string, a time.Time for TIMESTAMPTZ, bytes for BLOB, []any for a list, render.Fields for a struct or a map,
// render.Number for DECIMAL and HUGEINT. Types without a time zone (DATE, TIME, TIMESTAMP), UUID and INTERVAL are text.
// The sequence ends after an error.
func (r *Rows) All() iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		values := make([]driver.Value, len(r.Columns))
		for {
			err := r.next(values)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, fmt.Errorf("read the result: %w", explained(err)))
				return
			}
			row := make([]any, len(values))
			for i, value := range values {
				row[i] = r.kinds[i].convert(value)
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

// explained adds advice to errors about values that the driver cannot read: structs whose fields have no names (such as
// ROW(1, 2)), types that the driver does not know, and lists of JSON with huge numbers.
func explained(err error) error {
	for _, unreadable := range []string{"empty name", "unsupported data type", "MAP key type not supported", hugeNumber} {
		if strings.Contains(err.Error(), unreadable) {
			return fmt.Errorf("%w: cast the column to VARCHAR", err)
		}
	}
	return err
}

func (r *Rows) next(values []driver.Value) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errors.New("the result is closed")
	}
	if r.MaxRowBytes <= 0 {
		return r.nextExact(values)
	}
	measured, err := r.measure()
	if err != nil {
		return err
	}
	err = r.nextExact(values)
	if err == nil && !measured {
		return errors.New("DuckDB returned a row that could not be measured: this build is broken, report it")
	}
	return err
}

// nextExact reads the next row. Then it reads again those values of the row that the driver does not return exactly.
// The caller must hold the lock.
func (r *Rows) nextExact(values []driver.Value) (err error) {
	if !r.started {
		r.started = true
		if r.exact, err = newExactValues(r.rows, len(r.Columns)); err != nil {
			return err
		}
	}
	if r.exact == nil {
		return r.rows.Next(values)
	}
	if err := r.exact.read(r.rows, values); err != nil {
		return err
	}
	return r.exact.decode(values)
}

// measure reports whether the result has a next row, and returns an error if that row is too large. The caller must
// hold the lock.
func (r *Rows) measure() (ok bool, err error) {
	if r.sizes == nil {
		if r.sizes, err = newSizes(r.rows, r.MaxRowBytes); err != nil {
			return false, err
		}
	}
	size, ok := r.sizes.next()
	if ok && size > r.MaxRowBytes {
		return true, fmt.Errorf("a row takes more than %d MiB of memory, or has a large map: select fewer columns, or unnest its lists and maps", r.MaxRowBytes>>20)
	}
	return ok, nil
}

// Collect reads all rows and closes the result. It returns an error if the result has more than maxRows rows.
func (r *Rows) Collect(maxRows int) ([][]any, error) {
	var rows [][]any
	for row, err := range r.All() {
		if err == nil && len(rows) == maxRows {
			err = fmt.Errorf("the result has more than %d rows: add a LIMIT", maxRows)
		}
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		rows = append(rows, row)
	}
	return rows, r.Close()
}

// Result returns the rows as input for package render.
func (r *Rows) Result() render.Result {
	names := make([]string, len(r.Columns))
	for i, c := range r.Columns {
		names[i] = c.Name
	}
	return render.Result{Columns: slices.Clip(names), Rows: r.All()}
}

// Close frees the result's memory. A second Close does nothing.
func (r *Rows) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	if r.exact != nil {
		r.exact.close()
	}
	r.db.openMu.Lock()
	delete(r.db.open, r)
	r.db.openMu.Unlock()
	return errors.Join(r.rows.Close(), r.statement.Close())
}
