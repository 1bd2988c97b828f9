package state

import (
	"iter"
	"math"
	"reflect"
	"slices"
)

// Rows contains rows of any tables: a delta, or a whole state. Its zero value is empty.
// [List] and [Set] access the rows of one table.
type Rows struct {
	lists []any // one list for each table, in the order of the declarations; shorter if the last tables have no rows
}

// List returns the rows of the table with row type R.
func List[R any](rows *Rows) []*R { return rowsOf[R](rows.at(positions[reflect.TypeFor[R]()])) }

// Set replaces the rows of the table with row type R. It returns rows.
func Set[R any](rows *Rows, list []*R) *Rows {
	rows.set(positions[reflect.TypeFor[R]()], listOf(list))
	return rows
}

// NewRows returns rows with one list for each of the [Declarations].
func NewRows(lists []any) *Rows { return &Rows{lists} }

func (r *Rows) at(i int) any {
	if i < len(r.lists) {
		return r.lists[i]
	}
	return nil
}

func (r *Rows) set(i int, list any) {
	if missing := len(declarations) - len(r.lists); missing > 0 {
		r.lists = append(slices.Clip(r.lists), make([]any, missing)...)
	}
	r.lists[i] = list
}

// Lists yields the list of each table that has rows, in the order of [Declarations].
func (r *Rows) Lists(yield func(*Declaration, any) bool) {
	for i, list := range r.lists {
		if list != nil && !yield(declarations[i], list) {
			return
		}
	}
}

// mapped calls the parameter convert for each list of r, and returns the results of these calls.
func (r *Rows) mapped(convert func(i int, d *Declaration, list any) any) *Rows {
	out := &Rows{make([]any, len(r.lists))}
	for i, list := range r.lists {
		if list != nil {
			out.lists[i] = convert(i, declarations[i], list)
		}
	}
	return out
}

// Len returns the number of rows.
func (r *Rows) Len() int {
	n := 0
	for d, list := range r.Lists {
		n += d.Len(list)
	}
	return n
}

// MinSeq returns the least sequence number of the rows of tables with history, or the greatest int64 if those tables
// have no rows.
func (r *Rows) MinSeq() int64 {
	least := int64(math.MaxInt64)
	for d, list := range r.Lists {
		if !d.History {
			continue
		}
		for row := range d.Each(list) {
			least = min(least, row.RowMeta().Seq)
		}
	}
	return least
}

// Merge merges rows: for each key, the row with the greatest sequence number wins. It keeps
// tombstones.
func Merge(all []*Rows) (*Rows, error) {
	if len(all) == 1 {
		return all[0], nil
	}
	merged := make([]any, len(declarations))
	for i, d := range declarations {
		var lists []any
		for _, rows := range all {
			if list := rows.at(i); list != nil {
				lists = append(lists, list)
			}
		}
		var err error
		if merged[i], err = d.Merge(lists); err != nil {
			return nil, err
		}
	}
	return &Rows{merged}, nil
}

// Without returns the rows of r without those whose keys occur in the parameter newer.
func (r *Rows) Without(newer *Rows) *Rows {
	return r.mapped(func(i int, d *Declaration, list any) any { return d.without(list, newer.at(i)) })
}

// PageRows is the maximum number of rows in a file of a paged table. A merge keeps one whole file of each sorted run
// in memory.
const PageRows = 1 << 14

// Chunks yields the rows of the tables with history in chunks. A chunk has up to n rows of each table, but at most
// [PageRows] rows of a paged table.
func (r *Rows) Chunks(n int) iter.Seq[*Rows] {
	return func(yield func(*Rows) bool) {
		rest := slices.Clone(r.lists)
		for {
			chunk := (&Rows{rest}).mapped(func(i int, d *Declaration, list any) (head any) {
				switch {
				case d.Paged:
					head, rest[i] = d.cut(list, min(n, PageRows))
				case d.History:
					head, rest[i] = d.cut(list, n)
				}
				return head
			})
			if chunk.Len() == 0 || !yield(chunk) {
				return
			}
		}
	}
}

// Reopening returns the rows of the tables with [Declaration.Reopens]. If a row of these tables is in history, the live
// state may get a newer version of the row.
func (r *Rows) Reopening() *Rows {
	return r.mapped(func(_ int, d *Declaration, list any) any {
		if d.Reopens {
			return list
		}
		return nil
	})
}

// WithoutSuperseded returns the rows of history without those that the live state has superseded: it omits every row
// whose key also has a row in the live state.
func (r *Rows) WithoutSuperseded(live *State) *Rows {
	return r.mapped(func(i int, d *Declaration, list any) any {
		if !d.Reopens {
			return list
		}
		return d.only(list, func(row Record) bool { return !live.stores[i].has(row) })
	})
}

// KeptFrom returns the rows of history except the rows of runs whose ids are below runID.
func (r *Rows) KeptFrom(runID string) *Rows {
	if runID == "" {
		return r
	}
	return r.mapped(func(_ int, d *Declaration, list any) any {
		if !d.History || d.Run == nil {
			return list
		}
		return d.only(list, func(row Record) bool { return d.Text(d.Run, row) >= runID })
	})
}

// OfRun returns the rows that history stores about one run.
func (r *Rows) OfRun(runID string) *Rows {
	return r.mapped(func(_ int, d *Declaration, list any) any {
		if !d.OfRun() {
			return nil
		}
		return d.only(list, func(row Record) bool { return d.Text(d.Run, row) == runID })
	})
}

// Paged separates the rows of paged tables from the others.
func (r *Rows) Paged() (paged, others *Rows) {
	only := func(is bool) *Rows {
		return r.mapped(func(_ int, d *Declaration, list any) any {
			if d.Paged == is {
				return list
			}
			return nil
		})
	}
	return only(true), only(false)
}
