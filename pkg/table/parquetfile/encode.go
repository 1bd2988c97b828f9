package parquetfile

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Encode implements [table.Format].
func (f *Format) Encode(s *table.Schema, n int, row func(i int) reflect.Value) ([]byte, error) {
	if n > MaxRows {
		return nil, fmt.Errorf("%d rows exceed the limit of %d: split them", n, MaxRows)
	}
	form := f.layout(s)
	w := writers.Get().(*writer) //nolint:errcheck // the pool contains only writers
	data, err := w.write(form, n, row)
	w.release()
	if err == nil && data == nil {
		data, err = encodeLarge(form, n, row)
	}
	if err == nil && len(data) > MaxFileBytes {
		return nil, fmt.Errorf("%d bytes exceed the limit of %d: split the rows", len(data), MaxFileBytes)
	}
	return data, err
}

// encodeLarge returns a file with n rows, written by Arrow's writer.
func encodeLarge(form *layout, n int, row func(i int) reflect.Value) ([]byte, error) {
	var out bytes.Buffer
	w, err := file.NewParquetWriterWithError(&out, form.root, file.WithWriterProps(form.props))
	if err != nil {
		return nil, err
	}
	// text must not be nil: if all texts of a column are empty, its bounds must be empty texts, and not NULL.
	e := encoder{columns: form.columns, text: make([]byte, 0, 1)}
	for from := 0; from < n; from += rowGroupRows {
		e.rows = e.rows[:0]
		for i := from; i < min(from+rowGroupRows, n); i++ {
			e.rows = append(e.rows, row(i))
		}
		if err := e.writeGroup(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// encoder writes row groups column by column. It reuses its buffers for the next column.
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
		panic(fmt.Sprintf("parquetfile: no writer for %T", out))
	}
	return err
}

// values yields the column's values except NULLs, and collects the definition levels in e.defs.
func (e *encoder) values(c *column) func(yield func(reflect.Value) bool) {
	return func(yield func(reflect.Value) bool) {
		e.defs = e.defs[:0]
		for _, row := range e.rows {
			v := c.Of(row)
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

// gatherText copies the column's texts into one buffer, e.text. The elements of e.bytes refer to this buffer.
func (e *encoder) gatherText(c *column) error {
	size := 0
	for _, row := range e.rows {
		size += c.Of(row).Len()
	}
	// Grow the buffer before copying: the values refer to it, so it must not be reallocated.
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
