// Package parquetfile stores the rows of a table as a Parquet file. This package is not a stable
// API.
package parquetfile

import (
	"sync"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Limits of a file. Encode and Decode reject larger files.
const (
	MaxRows      = 50_000_000
	MaxFileBytes = 2 << 30
	// MaxTextBytes is the maximum size of all text in a file, after decoding.
	MaxTextBytes = 8 << 30
)

// rowGroupRows is the number of rows in a row group. Row groups are small, because a reader that needs one run, one
// asset or one page decodes whole row groups. DuckDB processes row groups in parallel. The number of rows should be a
// multiple of 2,048, the size of DuckDB's vectors.
const rowGroupRows = 2048

// createdBy is the name of the program that writes the files. Each file records this name.
const createdBy = "servo"

// Format is the [table.Format] of Parquet files. It is safe for concurrent use. Its zero value
// is ready for use.
type Format struct{ layouts sync.Map }

// layout is the part of the format that all files of a table share.
type layout struct {
	root  *schema.GroupNode
	props *parquet.WriterProperties

	columns []column
	sorted  []int  // the indexes of the columns of the key
	schema  []byte // the start of the footer
}

// layout returns the layout of a table's files. It caches layouts, because making one is slow.
func (f *Format) layout(s *table.Schema) *layout {
	if known, ok := f.layouts.Load(s); ok {
		return known.(*layout) //nolint:errcheck // the map contains only layouts
	}
	made := &layout{root: parquetSchema(s.Name, s.Columns), props: writerProperties(s.Name, s.Columns)}
	for i, c := range s.Columns {
		made.columns = append(made.columns, column{Column: c, physical: physicalType(c.Type), bounded: statistics(&c)})
		if c.Key {
			made.sorted = append(made.sorted, i)
		}
	}
	made.schema = schemaOf(s.Name, made.columns)
	f.layouts.Store(s, made)
	return made
}

// statistics reports whether row groups store the column's minimum and maximum, so that readers can skip row groups.
// The statistics are stored for keys, runs, times and row_seq. Most files are small, so statistics of other columns
// would only enlarge them.
func statistics(c *table.Column) bool {
	return c.Key || c.Type == table.Timestamp || c.Name == "run_id" || c.Name == "row_seq"
}

// parquetSchema returns the schema of a table. Its root has the table's name, so that
// Decode can reject files of other tables.
func parquetSchema(name string, columns []table.Column) *schema.GroupNode {
	fields := make(schema.FieldList, len(columns))
	for i, c := range columns {
		repetition := parquet.Repetitions.Required
		if c.Nullable {
			repetition = parquet.Repetitions.Optional
		}
		physical, logical := parquetType(c.Type)
		fields[i] = schema.MustPrimitive(schema.NewPrimitiveNodeLogical(c.Name, repetition, logical, physical, -1, -1))
	}
	return schema.MustGroup(schema.NewGroupNode(name, parquet.Repetitions.Required, fields, -1))
}

func parquetType(t table.Type) (parquet.Type, schema.LogicalType) {
	switch t {
	case table.Varchar:
		return parquet.Types.ByteArray, schema.StringLogicalType{}
	case table.Integer:
		return parquet.Types.Int32, schema.NoLogicalType{}
	case table.Bigint:
		return parquet.Types.Int64, schema.NoLogicalType{}
	case table.Boolean:
		return parquet.Types.Boolean, schema.NoLogicalType{}
	case table.Timestamp:
		return parquet.Types.Int64, schema.NewTimestampLogicalType(true, schema.TimeUnitMicros)
	}
	panic("parquetfile: unknown type " + string(t))
}

func writerProperties(name string, columns []table.Column) *parquet.WriterProperties {
	var sorted []parquet.SortingColumn
	options := []parquet.WriterProperty{
		parquet.WithCreatedBy(createdBy),
		parquet.WithRootName(name),
		parquet.WithRootRepetition(parquet.Repetitions.Required),
		parquet.WithCompression(compress.Codecs.Zstd),
		parquet.WithDictionaryDefault(false),
		parquet.WithMaxRowGroupLength(rowGroupRows),
	}
	for i, c := range columns {
		options = append(options, parquet.WithStatsFor(c.Name, statistics(&c)))
		if c.Dict {
			options = append(options, parquet.WithDictionaryFor(c.Name, true))
		}
		if c.Key {
			sorted = append(sorted, parquet.SortingColumn{ColumnIdx: int32(i)})
		}
	}
	return parquet.NewWriterProperties(append(options, parquet.WithSortingColumns(sorted))...)
}
