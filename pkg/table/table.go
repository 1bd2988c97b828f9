// Package table stores the rows of the projections as Parquet. It encodes and decodes
// files, merges the files of one table, and renders rows as canonical text for comparing
// states.
//
// The schema of a table is its row type in package state. Columns have the order of the
// fields: the primary key first, the columns of [state.Meta] last. A file contains each
// key once, in ascending order (text bytewise). The same rows always produce the same
// bytes.
//
// Files of other builds can be read: missing columns read as zero, and unknown columns
// are ignored. Only the primary key, row_seq and deleted are required.
// docs/format/tables.md specifies the files for authors of other readers.
package table

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of a file. Encode and Decode reject larger files.
const (
	MaxRows      = 50_000_000
	MaxFileBytes = 2 << 30
	// MaxTextBytes is the maximum text in a file, after decoding.
	MaxTextBytes = 8 << 30
)

// rowGroupRows is the number of rows in a row group, the default of DuckDB, which
// processes row groups in parallel.
const rowGroupRows = 122_880

// Row is a row of a projection table or of the archive.
type Row interface {
	state.Run | state.Task | state.Dep | state.Timer | state.Dispatch | state.Attempt | state.Heartbeat |
		state.RunKey | state.RunKeyConflict | state.Limit | state.Partition | state.Entry | Line
}

// Table encodes, decodes and merges the rows of one table. It is immutable and safe for
// concurrent use. Of reflects on the row type, so call it once and keep the result.
type Table[R Row] struct {
	name    string
	columns []column
	keys    []column // the columns of the primary key
	meta    int      // index of the field of type state.Meta, or -1
	root    *schema.GroupNode
	props   *parquet.WriterProperties
}

// Of returns the table with rows of type R.
func Of[R Row]() *Table[R] {
	rowType := reflect.TypeFor[R]()
	t := &Table[R]{name: nameOf(rowType), columns: columnsOf(rowType)}
	for _, c := range t.columns {
		if c.Key {
			t.keys = append(t.keys, c)
		}
	}
	t.meta = -1
	if field, ok := rowType.FieldByName("Meta"); ok {
		t.meta = field.Index[0]
	}
	if len(t.keys) == 0 || (t.meta < 0) != (rowType == reflect.TypeFor[Line]()) {
		panic(fmt.Sprintf("table: %v has no key or no Meta", rowType))
	}
	t.root = parquetSchema(t.name, t.columns)
	t.props = writerProperties(t.name, t.columns)
	return t
}

// Name returns the table's name, as used in object keys and in SQL.
func (t *Table[R]) Name() string { return t.name }

// Columns returns the table's columns in the order of the file.
func (t *Table[R]) Columns() []Column { return publicColumns(t.columns) }

// Key returns the primary key of a row in readable form:
// "run_id=01J…, task_key=raw/orders".
func (t *Table[R]) Key(row *R) string {
	v := reflect.ValueOf(row).Elem()
	var text []byte
	for i, c := range t.keys {
		if i > 0 {
			text = append(text, ", "...)
		}
		text = append(append(text, c.Name...), '=')
		text = fmt.Append(text, c.of(v).Interface())
	}
	return string(text)
}

// Compare orders rows by primary key: text bytewise, numbers by value.
func (t *Table[R]) Compare(a, b *R) int {
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	for i := range t.keys {
		if order := t.keys[i].compare(va, vb); order != 0 {
			return order
		}
	}
	return 0
}

func (t *Table[R]) metaOf(row *R) *state.Meta {
	meta, ok := reflect.TypeAssert[*state.Meta](reflect.ValueOf(row).Elem().Field(t.meta).Addr())
	if !ok {
		panic("table: the field Meta of " + t.name + " is not a state.Meta")
	}
	return meta
}

// Description describes the schema of a table.
type Description struct {
	Name    string
	Columns []Column
}

// Keys returns the names of the columns of the primary key.
func (d Description) Keys() []string {
	var names []string
	for _, c := range d.Columns {
		if c.Key {
			names = append(names, c.Name)
		}
	}
	return names
}

// All returns the descriptions of all projection tables. Callers must not modify them.
var All = sync.OnceValue(func() []Description {
	return []Description{
		describe[state.Run](),
		describe[state.Task](),
		describe[state.Dep](),
		describe[state.Timer](),
		describe[state.Dispatch](),
		describe[state.Attempt](),
		describe[state.Heartbeat](),
		describe[state.RunKey](),
		describe[state.RunKeyConflict](),
		describe[state.Limit](),
		describe[state.Partition](),
		describe[state.Entry](),
	}
})

func describe[R Row]() Description {
	rowType := reflect.TypeFor[R]()
	return Description{Name: nameOf(rowType), Columns: publicColumns(columnsOf(rowType))}
}

// nameOf returns the name of the table with rows of this type.
func nameOf(rowType reflect.Type) string {
	switch rowType {
	case reflect.TypeFor[state.Run]():
		return "runs"
	case reflect.TypeFor[state.Task]():
		return "tasks"
	case reflect.TypeFor[state.Dep]():
		return "dep_satisfaction"
	case reflect.TypeFor[state.Timer]():
		return "timers"
	case reflect.TypeFor[state.Dispatch]():
		return "dispatch_outbox"
	case reflect.TypeFor[state.Attempt]():
		return "attempts"
	case reflect.TypeFor[state.Heartbeat]():
		return "heartbeats"
	case reflect.TypeFor[state.RunKey]():
		return "run_keys"
	case reflect.TypeFor[state.RunKeyConflict]():
		return "run_key_conflicts"
	case reflect.TypeFor[state.Limit]():
		return "limits"
	case reflect.TypeFor[state.Partition]():
		return "partition_status"
	case reflect.TypeFor[state.Entry]():
		return "ledger_entries"
	case reflect.TypeFor[Line]():
		return "ledger_archive"
	}
	panic(fmt.Sprintf("table: %v is not a row type", rowType))
}
