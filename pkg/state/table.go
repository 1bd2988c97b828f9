package state

import (
	"hash/maphash"
	"iter"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/servo-orchestration/servo/pkg/table"
)

// Row is a pointer to a row type R with [Meta] embedded and a primary key of type K.
type Row[K comparable, R any] interface {
	*R
	Key() K
	RowMeta() *Meta
}

// indexed is a row type whose rows are in indexes. reindex updates the indexes after the receiver has replaced the row
// old, which may be nil. The receiver may be a tombstone.
type indexed[R any] interface {
	reindex(s *State, old *R)
}

// Table is a copy-on-write table in the order of its primary key. A row in a table never
// changes: a change is a new row. A table is safe for concurrent reading. A writer needs its own
// copy of the state.
//
// Table is an interface to save build time. Every package that uses a generic type compiles the methods of this type,
// and those of the trees and codecs on which it is built. Compiling them again in each package took most of the time
// of a build.
type Table[K, R comparable] interface {
	// Len returns the number of rows.
	Len() int
	// Get returns the row with this key, or nil.
	Get(key K) *R
	// Ascend calls yield for the rows in order, beginning with the first key that is not less than the parameter
	// `from`, until yield returns false.
	Ascend(from K, yield func(*R) bool)
	// Ceiling returns the row with the smallest key that is not less than the given key, or nil.
	Ceiling(key K) *R
	// Floor returns the row with the greatest key that is not greater than the given key, or nil.
	Floor(key K) *R
	// All calls yield for every row in order, until yield returns false. It has the form of an iterator: for row :=
	// range t.All.
	All(yield func(*R) bool)
	// Last returns the row with the greatest key, or nil.
	Last() *R
	// Put writes a row, or deletes it if the row is a tombstone, and records the change.
	Put(row *R)
	// Changed returns the rows that were put since the last [State.Drain], including tombstones, in
	// the order of their keys.
	Changed() []*R
	// Rows returns all rows in order.
	Rows() []*R
}

// rowTable implements [Table] and store for a row type.
type rowTable[K, R comparable, P Row[K, R]] struct {
	decl    *declared[K, R, P]
	owner   *State
	rows    *btree.BTreeG[item[K, R]] // before the first row: decl.none, which all empty tables share
	changed map[K]*R                  // nil: none
}

// stored is a row type that has a table.
type stored interface {
	// newTable returns a zero table of the row type.
	newTable() store
}

type item[K comparable, R any] struct {
	key K
	row *R
}

// store is a [Table] of any row type. Lists of its rows have type any, as in [Declaration].
type store interface {
	declare(tag string) *Declaration
	open(owner *State, d *Declaration)
	copyFor(owner *State, field any) store
	drain()
	load(list any)
	evict(c *cut) any
	has(row Record) bool
	list() any
	changes() any
	Len() int
}

// open makes the zero table an empty table of a state.
func (t *rowTable[K, R, P]) open(owner *State, d *Declaration) {
	t.decl, t.owner = d.lists.(*declared[K, R, P]), owner //nolint:errcheck // declare has set this type
	t.rows = t.decl.none
}

// copyFor returns a copy of the table for another state, without the record of changes. It also sets a field of the
// other state's Tables to the copy; field is a pointer to this field. A state is copied at each commit, and setting
// the field by reflection would cost thirty times as much.
func (t *rowTable[K, R, P]) copyFor(owner *State, field any) store {
	c := &rowTable[K, R, P]{decl: t.decl, owner: owner, rows: t.decl.none}
	if t.rows.Len() > 0 {
		c.rows = t.rows.Copy()
	}
	*field.(*Table[K, R]) = c //nolint:errcheck // both types are declared from the same field
	return c
}

func (t *rowTable[K, R, P]) Len() int { return t.rows.Len() }

func (t *rowTable[K, R, P]) Get(key K) *R {
	it, _ := t.rows.Get(item[K, R]{key: key})
	return it.row
}

func (t *rowTable[K, R, P]) Ascend(from K, yield func(*R) bool) {
	t.rows.Ascend(item[K, R]{key: from}, func(it item[K, R]) bool { return yield(it.row) })
}

func (t *rowTable[K, R, P]) Ceiling(key K) (row *R) {
	t.rows.Ascend(item[K, R]{key: key}, func(it item[K, R]) bool {
		row = it.row
		return false
	})
	return row
}

func (t *rowTable[K, R, P]) Floor(key K) (row *R) {
	t.rows.Descend(item[K, R]{key: key}, func(it item[K, R]) bool {
		row = it.row
		return false
	})
	return row
}

func (t *rowTable[K, R, P]) All(yield func(*R) bool) {
	t.rows.Scan(func(it item[K, R]) bool { return yield(it.row) })
}

func (t *rowTable[K, R, P]) Last() *R {
	it, _ := t.rows.Max()
	return it.row
}

func (t *rowTable[K, R, P]) Put(row *R) {
	key := P(row).Key()
	t.apply(key, row)
	if t.changed == nil {
		t.changed = map[K]*R{}
	}
	t.changed[key] = row
}

// apply writes a row as Put does, but does not record the change.
func (t *rowTable[K, R, P]) apply(key K, row *R) {
	var old item[K, R]
	switch deleted := P(row).RowMeta().Deleted; {
	case !deleted:
		if t.rows == t.decl.none {
			t.rows = t.decl.newTree()
		}
		old, _ = t.rows.Set(item[K, R]{key, row})
	case t.rows != t.decl.none:
		old, _ = t.rows.Delete(item[K, R]{key: key})
	}
	if t.decl.indexed {
		any(row).(indexed[R]).reindex(t.owner, old.row) //nolint:errcheck // see indexed
	}
}

func (t *rowTable[K, R, P]) load(list any) {
	for _, row := range rowsOf[R](list) {
		t.apply(P(row).Key(), row)
	}
}

func (t *rowTable[K, R, P]) Changed() []*R {
	if len(t.changed) == 0 {
		return nil
	}
	keys := make([]K, 0, len(t.changed))
	for key := range t.changed {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, t.decl.compare)
	rows := make([]*R, len(keys))
	for i, key := range keys {
		rows[i] = t.changed[key]
	}
	return rows
}

func (t *rowTable[K, R, P]) Rows() []*R {
	rows := make([]*R, 0, t.Len())
	for row := range t.All {
		rows = append(rows, row)
	}
	return rows
}

func (t *rowTable[K, R, P]) drain()       { clear(t.changed) }
func (t *rowTable[K, R, P]) list() any    { return listOf(t.Rows()) }
func (t *rowTable[K, R, P]) changes() any { return listOf(t.Changed()) }

func (t *rowTable[K, R, P]) has(row Record) bool {
	own, ok := row.(P)
	return ok && t.Get(own.Key()) != nil
}

// declared implements the operations on lists of one table.
type declared[K, R comparable, P Row[K, R]] struct {
	*table.Table[R]
	keyType[K]
	info    *Declaration
	indexed bool                      // the row type implements indexed
	none    *btree.BTreeG[item[K, R]] // always empty
}

// newTree returns an empty tree of rows.
func (d *declared[K, R, P]) newTree() *btree.BTreeG[item[K, R]] {
	less := func(a, b item[K, R]) bool { return d.compare(a.key, b.key) < 0 }
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

func (*rowTable[K, R, P]) declare(tag string) *Declaration {
	name, options, _ := strings.Cut(tag, ",")
	own := &declared[K, R, P]{Table: table.Of[R](name), keyType: keyTypeOf[K]()}
	_, own.indexed = any(P(nil)).(indexed[R])
	own.none = own.newTree()
	d := &Declaration{Schema: &own.Schema, lists: own}
	d.setOptions(options)
	own.info = d
	if _, byRow := any(P(nil)).(evictable); d.History && !byRow && !d.OfRun() {
		panic("state: table " + name + " has history, but neither a run in its key nor a method evictable")
	}
	return d
}

// rowsOf returns the rows of a list. It panics if the list belongs to another table.
func rowsOf[R any](list any) []*R {
	if list == nil {
		return nil
	}
	return list.([]*R) //nolint:errcheck // a wrong type is a bug of the caller
}

// listOf returns rows as a list.
func listOf[R any](rows []*R) any {
	if len(rows) == 0 {
		return nil
	}
	return rows
}

// Len implements the interface lists, as the methods below do.
func (*declared[K, R, P]) Len(list any) int { return len(rowsOf[R](list)) }

func (*declared[K, R, P]) Each(list any) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for _, row := range rowsOf[R](list) {
			if !yield(P(row)) {
				return
			}
		}
	}
}

func (d *declared[K, R, P]) Encode(f table.Format, list any) ([]byte, error) {
	return d.Table.Encode(f, rowsOf[R](list))
}

func (d *declared[K, R, P]) Decode(f table.Format, data []byte) (any, error) {
	rows, err := d.Table.Decode(f, data)
	return listOf(rows), err
}

func (d *declared[K, R, P]) DecodePart(p table.Parts, part int, within []table.Range) (any, error) {
	rows, err := d.Table.DecodePart(p, part, within)
	return listOf(rows), err
}

func (d *declared[K, R, P]) Merge(lists []any) (any, error) {
	typed := make([][]*R, len(lists))
	for i, list := range lists {
		typed[i] = rowsOf[R](list)
	}
	rows, err := d.Table.Merge(typed...)
	return listOf(rows), err
}

func (*declared[K, R, P]) Hash(seed maphash.Seed, list any) (sum uint64) {
	for _, row := range rowsOf[R](list) {
		sum += maphash.Comparable(seed, *row)
	}
	return sum
}

func (*declared[K, R, P]) only(list any, keep func(Record) bool) any {
	var kept []*R
	for _, row := range rowsOf[R](list) {
		if keep(P(row)) {
			kept = append(kept, row)
		}
	}
	return listOf(kept)
}

func (*declared[K, R, P]) cut(list any, n int) (head, tail any) {
	rows := rowsOf[R](list)
	n = min(n, len(rows))
	return listOf(rows[:n]), listOf(rows[n:])
}

func (d *declared[K, R, P]) without(list, newer any) any {
	return listOf(d.Without(rowsOf[R](list), rowsOf[R](newer)))
}

// diff compares the rows of two tables. In the usual case, the tables are equal. Both list each key once, in ascending
// order, so diff first compares the rows at equal positions.
func (d *declared[K, R, P]) diff(want, got any) iter.Seq[string] {
	a, b := rowsOf[R](want), rowsOf[R](got)
	if slices.EqualFunc(a, b, func(one, other *R) bool { return one == other || *one == *other }) {
		return func(func(string) bool) {}
	}
	return d.Diff(a, b)
}
