package state

import (
	"cmp"
	"slices"

	"github.com/tidwall/btree"
)

// Row is a row of a table with primary key K: a pointer to R with [Meta] embedded.
type Row[K comparable, R any] interface {
	*R
	Key() K
	RowMeta() *Meta
}

// Table is a copy-on-write table in the order of its primary key. A row is
// never changed once it is in a table: a change is a new row. It is safe for
// concurrent reading; a writer works on a copy of its own.
type Table[K comparable, R any, P Row[K, R]] struct {
	rows    *btree.BTreeG[item[K, R]]
	compare func(a, b K) int
	changed map[K]*R
}

type item[K comparable, R any] struct {
	key K
	row *R
}

func newTable[K comparable, R any, P Row[K, R]](compare func(a, b K) int) Table[K, R, P] {
	less := func(a, b item[K, R]) bool { return compare(a.key, b.key) < 0 }
	return Table[K, R, P]{
		rows:    btree.NewBTreeGOptions(less, btree.Options{NoLocks: true}),
		compare: compare,
		changed: map[K]*R{},
	}
}

// Len is the number of rows.
func (t *Table[K, R, P]) Len() int { return t.rows.Len() }

// Get is the row with this key, or nil.
func (t *Table[K, R, P]) Get(key K) *R {
	it, _ := t.rows.Get(item[K, R]{key: key})
	return it.row
}

// Ascend calls yield for the rows from key on, in order, until it returns false.
func (t *Table[K, R, P]) Ascend(from K, yield func(*R) bool) {
	t.rows.Ascend(item[K, R]{key: from}, func(it item[K, R]) bool { return yield(it.row) })
}

// All calls yield for every row in order, until it returns false. It has the
// form of an iterator: for row := range t.All.
func (t *Table[K, R, P]) All(yield func(*R) bool) {
	t.rows.Scan(func(it item[K, R]) bool { return yield(it.row) })
}

// set puts a row, or takes it out when it is marked deleted, and gives the row
// that was there. The change is recorded.
func (t *Table[K, R, P]) set(row *R) (old *R) {
	key := P(row).Key()
	old = t.load(row)
	t.changed[key] = row
	return old
}

// load is set without a record of it: for rows that are stored already.
func (t *Table[K, R, P]) load(row *R) (old *R) {
	key := P(row).Key()
	var was item[K, R]
	if P(row).RowMeta().Deleted {
		was, _ = t.rows.Delete(item[K, R]{key: key})
	} else {
		was, _ = t.rows.Set(item[K, R]{key, row})
	}
	return was.row
}

// remove takes a row out without a record of it.
func (t *Table[K, R, P]) remove(key K) { t.rows.Delete(item[K, R]{key: key}) }

// Changed are the rows that were put since the last [State.Drain], tombstones
// included, in the order of their keys.
func (t *Table[K, R, P]) Changed() []*R {
	if len(t.changed) == 0 {
		return nil
	}
	keys := make([]K, 0, len(t.changed))
	for key := range t.changed {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, t.compare)
	rows := make([]*R, len(keys))
	for i, key := range keys {
		rows[i] = t.changed[key]
	}
	return rows
}

// Rows are all rows in order.
func (t *Table[K, R, P]) Rows() []*R {
	rows := make([]*R, 0, t.Len())
	for row := range t.All {
		rows = append(rows, row)
	}
	return rows
}

func (t *Table[K, R, P]) copy() Table[K, R, P] {
	return Table[K, R, P]{rows: t.rows.Copy(), compare: t.compare, changed: map[K]*R{}}
}

// Key2 is a primary key of two columns.
type Key2 struct{ A, B string }

// Key3 is a primary key of three columns.
type Key3 struct{ A, B, C string }

// AttemptKey is the primary key of attempts.
type AttemptKey struct {
	RunID, TaskKey string
	Attempt        int32
}

func compare2(a, b Key2) int { return cmp.Or(cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B)) }

func compare3(a, b Key3) int {
	return cmp.Or(cmp.Compare(a.A, b.A), cmp.Compare(a.B, b.B), cmp.Compare(a.C, b.C))
}

func compareAttempt(a, b AttemptKey) int {
	return cmp.Or(cmp.Compare(a.RunID, b.RunID), cmp.Compare(a.TaskKey, b.TaskKey), cmp.Compare(a.Attempt, b.Attempt))
}

// RowMeta gives access to the columns that every row has.
func (m *Meta) RowMeta() *Meta { return m }

// Key is the primary key.
func (r *Run) Key() string { return r.RunID }

// Key is the primary key.
func (r *Task) Key() Key2 { return Key2{r.RunID, r.TaskKey} }

// Key is the primary key.
func (r *Dep) Key() Key3 { return Key3{r.RunID, r.Upstream, r.Downstream} }

// Key is the primary key.
func (r *Timer) Key() string { return r.TimerID }

// Key is the primary key.
func (r *Dispatch) Key() string { return r.DispatchID }

// Key is the primary key.
func (r *Attempt) Key() AttemptKey { return AttemptKey{r.RunID, r.TaskKey, r.Attempt} }

// Key is the primary key.
func (r *Heartbeat) Key() Key2 { return Key2{r.RunID, r.TaskKey} }

// Key is the primary key.
func (r *RunKey) Key() string { return r.RunKey }

// Key is the primary key.
func (r *RunKeyConflict) Key() Key2 { return Key2{r.RunKey, r.RunID} }

// Key is the primary key.
func (r *Limit) Key() Key2 { return Key2{r.Scope, r.Name} }

// Key is the primary key.
func (r *Partition) Key() Key2 { return Key2{r.AssetKey, r.PartitionKey} }

// Key is the primary key.
func (r *Entry) Key() Key2 { return Key2{r.Entry, r.Group} }
