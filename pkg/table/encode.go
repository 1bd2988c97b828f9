package table

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
)

// Encode returns rows as a Parquet file, sorted by primary key. It does not modify rows.
// The same rows in any order produce the same bytes. Encode rejects duplicate keys and
// text that is not UTF-8.
func (t *Table[R]) Encode(rows []*R) ([]byte, error) {
	if len(rows) > MaxRows {
		return nil, fmt.Errorf("encode %s: %d rows exceed the limit of %d: split them", t.name, len(rows), MaxRows)
	}
	sorted, err := t.sorted(rows)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.name, err)
	}
	var out bytes.Buffer
	w, err := file.NewParquetWriterWithError(&out, t.root, file.WithWriterProps(t.props))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.name, err)
	}
	e := encoder{columns: t.columns}
	for group := range slices.Chunk(sorted, rowGroupRows) {
		e.rows = e.rows[:0]
		for _, row := range group {
			e.rows = append(e.rows, reflect.ValueOf(row).Elem())
		}
		if err := e.writeGroup(w); err != nil {
			return nil, fmt.Errorf("encode %s: %w", t.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("encode %s: %w", t.name, err)
	}
	if out.Len() > MaxFileBytes {
		return nil, fmt.Errorf("encode %s: %d bytes exceed the limit of %d: split the rows", t.name, out.Len(), MaxFileBytes)
	}
	return out.Bytes(), nil
}

// sorted returns the rows in ascending order of their keys, without a copy if they are
// already sorted. It rejects duplicate keys.
func (t *Table[R]) sorted(rows []*R) ([]*R, error) {
	if !slices.IsSortedFunc(rows, t.Compare) {
		rows = slices.SortedFunc(slices.Values(rows), t.Compare)
	}
	for i := 1; i < len(rows); i++ {
		if t.Compare(rows[i-1], rows[i]) == 0 {
			return nil, fmt.Errorf("two rows have the key %s", t.Key(rows[i]))
		}
	}
	return rows, nil
}

// encoder writes row groups column by column. It reuses its buffers for each column.
type encoder struct {
	columns []column
	rows    []reflect.Value

	defs  []int16
	text  []byte
	bytes []parquet.ByteArray
	i32   []int32
	i64   []int64
	bools []bool
}

func (e *encoder) writeGroup(w *file.Writer) error {
	group, err := w.AppendRowGroupChecked()
	if err != nil {
		return err
	}
	for i := range e.columns {
		out, err := group.NextColumn()
		if err != nil {
			return err
		}
		if err := e.writeColumn(out, &e.columns[i]); err != nil {
			return fmt.Errorf("column %s: %w", e.columns[i].Name, err)
		}
		if err := out.Close(); err != nil {
			return fmt.Errorf("column %s: %w", e.columns[i].Name, err)
		}
	}
	return group.Close()
}

func (e *encoder) writeColumn(out file.ColumnChunkWriter, c *column) error {
	var err error
	switch out := out.(type) {
	case *file.ByteArrayColumnChunkWriter:
		if err := e.gatherText(c); err != nil {
			return err
		}
		_, err = out.WriteBatch(e.bytes, e.levels(c), nil)
	case *file.Int32ColumnChunkWriter:
		e.i32 = e.i32[:0]
		for v := range e.values(c) {
			e.i32 = append(e.i32, int32(v.Int()))
		}
		_, err = out.WriteBatch(e.i32, e.levels(c), nil)
	case *file.Int64ColumnChunkWriter:
		e.i64 = e.i64[:0]
		for v := range e.values(c) {
			e.i64 = append(e.i64, v.Int())
		}
		_, err = out.WriteBatch(e.i64, e.levels(c), nil)
	case *file.BooleanColumnChunkWriter:
		e.bools = e.bools[:0]
		for v := range e.values(c) {
			e.bools = append(e.bools, v.Bool())
		}
		_, err = out.WriteBatch(e.bools, e.levels(c), nil)
	default:
		panic(fmt.Sprintf("table: no writer for %T", out))
	}
	return err
}

// values yields the column's values except NULLs, and sets the definition levels.
func (e *encoder) values(c *column) func(yield func(reflect.Value) bool) {
	return func(yield func(reflect.Value) bool) {
		e.defs = e.defs[:0]
		for _, row := range e.rows {
			v := c.of(row)
			if c.Nullable {
				if v.IsZero() {
					e.defs = append(e.defs, 0)
					continue
				}
				e.defs = append(e.defs, 1)
			}
			if !yield(v) {
				return
			}
		}
	}
}

// levels returns the Parquet definition levels: nil for a column that is not nullable.
func (e *encoder) levels(c *column) []int16 {
	if c.Nullable {
		return e.defs
	}
	return nil
}

// gatherText copies the column's text into one buffer, and points bytes into it.
func (e *encoder) gatherText(c *column) error {
	size := 0
	for _, row := range e.rows {
		size += c.of(row).Len()
	}
	// Grow first: the values point into the buffer, so it must not be reallocated.
	e.text = slices.Grow(e.text[:0], size)
	e.bytes = e.bytes[:0]
	for v := range e.values(c) {
		value := v.String()
		if !utf8.ValidString(value) {
			return fmt.Errorf("%.80q is not UTF-8", value)
		}
		start := len(e.text)
		e.text = append(e.text, value...)
		e.bytes = append(e.bytes, e.text[start:len(e.text):len(e.text)])
	}
	return nil
}
