package table

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/state"
)

// Type is the SQL type of a column.
type Type string

// Column types, with their Parquet types.
const (
	Varchar   Type = "VARCHAR"                  // BYTE_ARRAY, STRING
	Integer   Type = "INTEGER"                  // INT32
	Bigint    Type = "BIGINT"                   // INT64
	Boolean   Type = "BOOLEAN"                  // BOOLEAN
	Timestamp Type = "TIMESTAMP WITH TIME ZONE" // INT64, TIMESTAMP(MICROS, UTC)
)

// Column describes a column of a table.
type Column struct {
	Name string
	Type Type
	// Key means that the column is part of the primary key.
	Key bool
	// Nullable means that the zero value is stored as NULL.
	Nullable bool
}

// column is a Column with the location of its values in a row.
type column struct {
	Column
	dict  bool // encode with a dictionary
	field int  // index of the field in the row
	inner int  // index of the field within Meta, or -1
}

func (c *column) of(row reflect.Value) reflect.Value {
	v := row.Field(c.field)
	if c.inner >= 0 {
		return v.Field(c.inner)
	}
	return v
}

// required reports whether every file must have the column.
func (c *column) required() bool {
	return c.Key || c.Name == "row_seq" || c.Name == "deleted"
}

// statistics reports whether row groups store the column's minimum and maximum, so that
// readers can skip row groups: for keys, runs, times and row_seq. Most files are small,
// so statistics of other columns would only enlarge them.
func (c *column) statistics() bool {
	return c.Key || c.Type == Timestamp || c.Name == "run_id" || c.Name == "row_seq"
}

func (c *column) compare(a, b reflect.Value) int {
	if c.Type == Varchar {
		return strings.Compare(c.of(a).String(), c.of(b).String())
	}
	return cmp.Compare(c.of(a).Int(), c.of(b).Int())
}

func publicColumns(columns []column) []Column {
	public := make([]Column, len(columns))
	for i, c := range columns {
		public[i] = c.Column
	}
	return public
}

// columnsOf returns the columns that the field tags of a row type define: see package
// state.
func columnsOf(rowType reflect.Type) []column {
	columns := make([]column, 0, rowType.NumField()+8)
	for i := range rowType.NumField() {
		field := rowType.Field(i)
		if field.Type != reflect.TypeFor[state.Meta]() {
			columns = append(columns, columnOf(field, i, -1))
			continue
		}
		for j := range field.Type.NumField() {
			columns = append(columns, columnOf(field.Type.Field(j), i, j))
		}
	}
	return columns
}

func columnOf(field reflect.StructField, outer, inner int) column {
	name, options, _ := strings.Cut(field.Tag.Get("col"), ",")
	if name == "" {
		panic("table: field " + field.Name + " has no col tag")
	}
	c := column{Column: Column{Name: name, Type: typeOf(field)}, field: outer, inner: inner}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "key":
			c.Key = true
		case "null":
			c.Nullable = true
		case "dict":
			c.dict = true
		case "":
		default:
			panic(fmt.Sprintf("table: field %s has unknown option %q", field.Name, option))
		}
	}
	return c
}

func typeOf(field reflect.StructField) Type {
	if field.Type == reflect.TypeFor[event.Time]() {
		return Timestamp
	}
	switch field.Type.Kind() {
	case reflect.String:
		return Varchar
	case reflect.Int32:
		return Integer
	case reflect.Int64:
		return Bigint
	case reflect.Bool:
		return Boolean
	default:
		panic(fmt.Sprintf("table: field %s has unsupported type %v", field.Name, field.Type))
	}
}

// parquetSchema returns the schema of a table. Its root has the table's name, so that
// Decode can reject files of other tables.
func parquetSchema(name string, columns []column) *schema.GroupNode {
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

func parquetType(t Type) (parquet.Type, schema.LogicalType) {
	switch t {
	case Varchar:
		return parquet.Types.ByteArray, schema.StringLogicalType{}
	case Integer:
		return parquet.Types.Int32, schema.NoLogicalType{}
	case Bigint:
		return parquet.Types.Int64, schema.NoLogicalType{}
	case Boolean:
		return parquet.Types.Boolean, schema.NoLogicalType{}
	case Timestamp:
		return parquet.Types.Int64, schema.NewTimestampLogicalType(true, schema.TimeUnitMicros)
	}
	panic("table: unknown type " + string(t))
}

func writerProperties(name string, columns []column) *parquet.WriterProperties {
	var sorted []parquet.SortingColumn
	options := []parquet.WriterProperty{
		parquet.WithCreatedBy("servo"),
		parquet.WithRootName(name),
		parquet.WithRootRepetition(parquet.Repetitions.Required),
		parquet.WithCompression(compress.Codecs.Zstd),
		parquet.WithDictionaryDefault(false),
		parquet.WithMaxRowGroupLength(rowGroupRows),
	}
	for i, c := range columns {
		options = append(options, parquet.WithStatsFor(c.Name, c.statistics()))
		if c.dict {
			options = append(options, parquet.WithDictionaryFor(c.Name, true))
		}
		if c.Key {
			sorted = append(sorted, parquet.SortingColumn{ColumnIdx: int32(i)})
		}
	}
	return parquet.NewWriterProperties(append(options, parquet.WithSortingColumns(sorted))...)
}
