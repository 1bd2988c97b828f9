// Package table stores the rows of the projections as Parquet: it encodes and
// decodes one file, merges the files of one table, and renders a row in a
// canonical text for comparing states.
//
// The schema of a table is its row type in package state: the columns come in
// the order of the fields, so the primary key first and the columns of
// [state.Meta] last. A file holds each key once, in ascending order of the key
// (text bytewise), and the same rows always give the same bytes.
//
// A file of another build reads too: a column that it lacks reads as zero, and
// one that this build does not know is ignored. Only the primary key, row_seq
// and deleted must be there. docs/format/tables.md describes the files for
// people who write readers of their own.
package table

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/servo-orchestration/servo/pkg/state"
)

// Limits of a file. Encode and Decode refuse what exceeds them.
const (
	MaxRows      = 50_000_000
	MaxFileBytes = 2 << 30
	// MaxTextBytes bounds the text that one file decodes to.
	MaxTextBytes = 8 << 30
)

// rowGroupRows is what DuckDB likes: one row group is one unit of its work.
const rowGroupRows = 122_880

// Row is any row of a projection table, or of the archive.
type Row interface {
	state.Run | state.Task | state.Dep | state.Timer | state.Dispatch | state.Attempt | state.Heartbeat |
		state.RunKey | state.RunKeyConflict | state.Limit | state.Partition | state.Entry | Line
}

// Table encodes, decodes and merges the rows of one projection table. It is
// immutable and safe for concurrent use. Making one reads the row type by
// reflection, so make it once and keep it.
type Table[R Row] struct {
	name    string
	columns []column
	keys    []column // the columns of the primary key
	meta    int      // the field that holds the state.Meta; -1: it has none
	root    *schema.GroupNode
	props   *parquet.WriterProperties
}

// Of is the table whose rows are R.
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

// Name is the table's name, as in the key layout and in SQL.
func (t *Table[R]) Name() string { return t.name }

// Columns are the table's columns in the order of the file.
func (t *Table[R]) Columns() []Column { return publicColumns(t.columns) }

// Key names a row for people: "run_id=01J…, task_key=raw/orders".
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

// Description is a table without its rows: what a reader of the files needs.
type Description struct {
	Name    string
	Columns []Column
}

// Keys are the names of the columns of the primary key.
func (d Description) Keys() []string {
	var names []string
	for _, c := range d.Columns {
		if c.Key {
			names = append(names, c.Name)
		}
	}
	return names
}

// All describes every projection table. The result is shared, and not to be
// changed.
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

// nameOf is the name of the table that has these rows.
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
	panic(fmt.Sprintf("table: %v is no row", rowType))
}
