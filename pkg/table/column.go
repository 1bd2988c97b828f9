package table

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
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
	// Dict means that texts of the column occur repeatedly. Files store such a column with a dictionary.
	Dict bool

	field int // index of the field in the row
	inner int // index of the field within Meta, or -1
}

// Of returns the column's field in a row. The row is a struct.
func (c *Column) Of(row reflect.Value) reflect.Value {
	v := row.Field(c.field)
	if c.inner >= 0 {
		return v.Field(c.inner)
	}
	return v
}

// Required reports whether every file must have the column.
func (c *Column) Required() bool {
	return c.Key || c.Name == "row_seq" || c.Name == "deleted"
}

func (c *Column) compare(a, b reflect.Value) int {
	if c.Type == Varchar {
		return strings.Compare(c.Of(a).String(), c.Of(b).String())
	}
	return cmp.Compare(c.Of(a).Int(), c.Of(b).Int())
}

// columnsOf returns the columns that the field tags of a row type define.
func columnsOf(rowType reflect.Type) []Column {
	columns := make([]Column, 0, rowType.NumField()+8)
	for i := range rowType.NumField() {
		field := rowType.Field(i)
		if field.Type != reflect.TypeFor[Meta]() {
			columns = append(columns, columnOf(field, i, -1))
			continue
		}
		for j := range field.Type.NumField() {
			columns = append(columns, columnOf(field.Type.Field(j), i, j))
		}
	}
	return columns
}

func columnOf(field reflect.StructField, outer, inner int) Column {
	name, options, _ := strings.Cut(field.Tag.Get("col"), ",")
	if name == "" {
		panic("table: field " + field.Name + " has no col tag")
	}
	c := Column{Name: name, Type: typeOf(field), field: outer, inner: inner}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "key":
			c.Key = true
		case "null":
			c.Nullable = true
		case "dict":
			c.Dict = true
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
