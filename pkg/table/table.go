// Package table describes tables by their row types, and compares, merges and encodes their rows. It is pure and knows
// no table by name: package state declares them. This package is not a stable API.
//
// The schema of a table is its row type. Columns have the order of the fields: the primary key first, the columns of
// [Meta] last. An encoded file contains each key once, in ascending order. Texts are ordered byte by byte. The same
// rows always produce the same bytes.
//
// Files of other builds can be read: a missing column has zero values, and unknown columns are ignored. Only the
// primary key, row_seq and deleted are required. docs/format/tables.md specifies the files for authors of other
// readers.
package table

import (
	"fmt"
	"reflect"
	"slices"
)

// Meta contains the columns that every row of every projection table has.
type Meta struct {
	Tenant    string `col:"tenant_id,dict"`
	Workspace string `col:"workspace_id,dict"`
	// Version is the ULID of the event that last changed the row. It is for audits only.
	Version string `col:"row_version"`
	// Seq is that event's number in the fold sequence. In a merge, the row with the greatest Seq wins.
	Seq     int64 `col:"row_seq"`
	Deleted bool  `col:"deleted"`
}

// RowMeta returns m, so that generic code can access the columns that every row has.
func (m *Meta) RowMeta() *Meta { return m }

// Schema describes a table. Callers must not modify it.
type Schema struct {
	// Name is the table's name, as used in object keys and in SQL.
	Name string
	// Columns are the table's columns, in the order in which files store them.
	Columns []Column

	keys []Column // the columns of the primary key
	meta int      // index of the field of type Meta, or -1
}

// Keys returns the names of the columns of the primary key.
func (s *Schema) Keys() []string {
	var names []string
	for _, c := range s.keys {
		names = append(names, c.Name)
	}
	return names
}

// Column returns the column with a name, or nil if the table has none.
func (s *Schema) Column(name string) *Column {
	for i := range s.Columns {
		if s.Columns[i].Name == name {
			return &s.Columns[i]
		}
	}
	return nil
}

// Table encodes, decodes, compares and merges the rows of one table. It is immutable and safe for concurrent use. The
// function [Of] reads the row type by reflection, which is slow: call it once for each table, and keep the result.
type Table[R comparable] struct{ Schema }

// Of returns the table with a name and with rows of type R. Each field of R has a tag such as `col:"name,key"`. After
// the name of the column, the tag may contain "key" for a part of the primary key (in order), "null" if the zero
// value means that the value is missing and is stored as NULL, and "dict" for texts that occur repeatedly.
func Of[R comparable](name string) *Table[R] {
	rowType := reflect.TypeFor[R]()
	t := &Table[R]{Schema{Name: name, Columns: columnsOf(rowType), meta: -1}}
	for _, c := range t.Columns {
		if c.Key {
			t.keys = append(t.keys, c)
		}
	}
	if field, ok := rowType.FieldByName("Meta"); ok {
		t.meta = field.Index[0]
	}
	if len(t.keys) == 0 {
		panic(fmt.Sprintf("table: %v has no key", rowType))
	}
	return t
}

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
		text = fmt.Append(text, c.Of(v).Interface())
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

func (t *Table[R]) metaOf(row *R) *Meta {
	meta, ok := reflect.TypeAssert[*Meta](reflect.ValueOf(row).Elem().Field(t.meta).Addr())
	if !ok {
		panic("table: the field Meta of " + t.Name + " is not a table.Meta")
	}
	return meta
}

// sorted returns the rows in ascending order of their keys. If they are already sorted, it returns rows itself and
// not a copy. It rejects duplicate keys.
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
