package table

import (
	"cmp"
	"fmt"
	"slices"
)

// Merge gives the current rows of a table: for each key the row with the
// greatest Seq in any of the files, unless that row is a deletion. The order of
// the files does not matter. Rows are shared with the files, not copied.
//
// Two different rows with one key and one Seq cannot come about: they are an
// error that names the key, and the files are corrupt.
func (t *Table[R]) Merge(files ...[]*R) ([]*R, error) {
	merged, err := t.MergeDeltas(files...)
	if err != nil {
		return nil, err
	}
	live := make([]*R, 0, len(merged))
	for _, row := range merged {
		if !t.metaOf(row).Deleted {
			live = append(live, row)
		}
	}
	return live, nil
}

// MergeDeltas is Merge that keeps deletions, for what is merged again later: a
// deletion must outlive every older row of its key in files not given here.
func (t *Table[R]) MergeDeltas(files ...[]*R) ([]*R, error) {
	lists := make([][]*R, 0, len(files))
	for _, rows := range files {
		sorted, err := t.sorted(rows)
		if err != nil {
			return nil, fmt.Errorf("merge %s: %w", t.name, err)
		}
		lists = append(lists, sorted)
	}
	if len(lists) == 0 {
		return nil, nil
	}
	// Always the two shortest: so a large base is gone through once.
	for len(lists) > 1 {
		slices.SortStableFunc(lists, func(a, b []*R) int { return cmp.Compare(len(a), len(b)) })
		merged, err := t.mergeTwo(lists[0], lists[1])
		if err != nil {
			return nil, fmt.Errorf("merge %s: %w", t.name, err)
		}
		lists = append(lists[2:], merged)
	}
	return lists[0], nil
}

// Without gives the rows whose keys none of others has: rows itself where that is all.
func (t *Table[R]) Without(rows, others []*R) []*R {
	if len(rows) == 0 || len(others) == 0 {
		return rows
	}
	if !slices.IsSortedFunc(others, t.Compare) {
		others = slices.SortedFunc(slices.Values(others), t.Compare)
	}
	has := func(row *R) bool {
		_, found := slices.BinarySearchFunc(others, row, t.Compare)
		return found
	}
	if !slices.ContainsFunc(rows, has) {
		return rows
	}
	return slices.DeleteFunc(slices.Clone(rows), has)
}

func (t *Table[R]) mergeTwo(a, b []*R) ([]*R, error) {
	merged := make([]*R, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		order := t.Compare(a[0], b[0])
		switch {
		case order < 0:
			merged, a = append(merged, a[0]), a[1:]
		case order > 0:
			merged, b = append(merged, b[0]), b[1:]
		default:
			newer, err := t.newer(a[0], b[0])
			if err != nil {
				return nil, err
			}
			merged, a, b = append(merged, newer), a[1:], b[1:]
		}
	}
	return append(append(merged, a...), b...), nil
}

// newer decides between two rows with one key.
func (t *Table[R]) newer(a, b *R) (*R, error) {
	switch seqA, seqB := t.metaOf(a).Seq, t.metaOf(b).Seq; {
	case seqA > seqB:
		return a, nil
	case seqA < seqB:
		return b, nil
	case *a != *b:
		return nil, fmt.Errorf("two different rows have the key %s and row_seq %d: a file is corrupt; run 'servo admin verify'", t.Key(a), seqA)
	}
	return a, nil
}
