// Package arrowipc writes the rows of a query as an Arrow IPC stream. This package is not a stable API.
package arrowipc

import (
	"fmt"
	"io"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/query/render"
	"github.com/servo-orchestration/servo/pkg/sqltext"
)

// MediaType is the media type of an Arrow IPC stream.
const MediaType = "application/vnd.apache.arrow.stream"

// A record batch ends when it has maxBatchRows rows, or about maxBatchBytes bytes. The writer and the reader each
// hold one batch in memory.
const (
	maxBatchRows  = 4096
	maxBatchBytes = 1 << 20
)

// Write writes rows as a stream. Their cells must be as [query.Rows.All] yields them. If Write returns an error, the
// stream has no end marker, so that no reader mistakes it for the whole result.
func Write(w io.Writer, columns []query.Column, rows iter.Seq2[[]any, error]) error {
	schema := schemaOf(columns)
	out := ipc.NewWriter(w, ipc.WithSchema(schema))
	b := &batch{builder: array.NewRecordBuilder(memory.DefaultAllocator, schema)}
	defer b.builder.Release()
	for row, err := range rows {
		if err != nil {
			return err
		}
		if err := b.add(row, columns); err != nil {
			return err
		}
		if b.rows >= maxBatchRows || b.bytes >= maxBatchBytes {
			if err := b.flush(out); err != nil {
				return err
			}
		}
	}
	if err := b.flush(out); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("end the Arrow stream: %w", err)
	}
	return nil
}

// batch is the record batch that is being filled.
type batch struct {
	builder *array.RecordBuilder
	rows    int
	bytes   int // the approximate size of the cells
}

func (b *batch) add(row []any, columns []query.Column) error {
	for i, cell := range row {
		if err := b.append(b.builder.Field(i), cell); err != nil {
			return fmt.Errorf("column %s of type %s: %w: cast it to VARCHAR", columns[i].Name, columns[i].Type, err)
		}
	}
	b.rows++
	return nil
}

func (b *batch) flush(out *ipc.Writer) error {
	if b.rows == 0 {
		return nil
	}
	record := b.builder.NewRecordBatch()
	defer record.Release()
	b.rows, b.bytes = 0, 0
	if err := out.Write(record); err != nil {
		return fmt.Errorf("write an Arrow record batch: %w", err)
	}
	return nil
}

// schemaOf returns the schema of a result. Columns with the same name get distinct names, as in the other formats.
func schemaOf(columns []query.Column) *arrow.Schema {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	fields := make([]arrow.Field, len(columns))
	for i, name := range render.Distinct(names) {
		fields[i] = arrow.Field{Name: name, Type: typeOf(sqltext.ParseType(columns[i].Type)), Nullable: true}
	}
	return arrow.NewSchema(fields, nil)
}

// maxDigits is the maximum number of digits of a decimal with 128 bits.
const maxDigits = 38

// scalars maps DuckDB's scalar types to Arrow types. The values of a scalar type that is not listed here are written
// as text.
var scalars = map[string]arrow.DataType{
	"BOOLEAN": arrow.FixedWidthTypes.Boolean,
	"TINYINT": arrow.PrimitiveTypes.Int8, "SMALLINT": arrow.PrimitiveTypes.Int16, "INTEGER": arrow.PrimitiveTypes.Int32, "BIGINT": arrow.PrimitiveTypes.Int64,
	"UTINYINT": arrow.PrimitiveTypes.Uint8, "USMALLINT": arrow.PrimitiveTypes.Uint16, "UINTEGER": arrow.PrimitiveTypes.Uint32, "UBIGINT": arrow.PrimitiveTypes.Uint64,
	"FLOAT": arrow.PrimitiveTypes.Float32, "DOUBLE": arrow.PrimitiveTypes.Float64,
	"HUGEINT": &arrow.Decimal128Type{Precision: maxDigits}, "UHUGEINT": &arrow.Decimal128Type{Precision: maxDigits},
	"BLOB": arrow.BinaryTypes.Binary, "DATE": arrow.FixedWidthTypes.Date32, "TIME": arrow.FixedWidthTypes.Time64us,
	"TIMESTAMP":    &arrow.TimestampType{Unit: arrow.Microsecond},
	"TIMESTAMP_S":  &arrow.TimestampType{Unit: arrow.Second},
	"TIMESTAMP_MS": &arrow.TimestampType{Unit: arrow.Millisecond},
	"TIMESTAMP_NS": &arrow.TimestampType{Unit: arrow.Nanosecond},
	"TIMESTAMPTZ":  arrow.FixedWidthTypes.Timestamp_us,
}

// typeOf returns the Arrow type of a column.
func typeOf(t sqltext.Type) arrow.DataType {
	switch {
	case t.Name == "LIST" && len(t.Parts) == 1:
		return arrow.ListOf(typeOf(t.Parts[0]))
	case t.Name == "MAP" && len(t.Parts) == 2: //nolint:mnd // the key and the value
		return arrow.MapOf(arrow.BinaryTypes.String, typeOf(t.Parts[1]))
	case t.Name == "STRUCT" && len(t.Parts) > 0:
		fields := make([]arrow.Field, len(t.Parts))
		for i, part := range t.Parts {
			fields[i] = arrow.Field{Name: t.Fields[i], Type: typeOf(part), Nullable: true}
		}
		return arrow.StructOf(fields...)
	case t.Name == "DECIMAL" && t.Width > 0:
		return &arrow.Decimal128Type{Precision: t.Width, Scale: t.Scale}
	}
	if scalar, ok := scalars[t.Name]; ok {
		return scalar
	}
	return arrow.BinaryTypes.String
}
