package table

import (
	"cmp"
	"fmt"
	"slices"
)

// Merge returns, for each key, the row with the greatest Seq among all files. The order of the files does not matter.
// The result shares its rows with the files. It contains tombstones, because a tombstone must be kept until it has been
// merged with all older rows of its key.
//
// Two different rows with the same key and Seq mean that a file is corrupt. Merge returns
// an error that names the key.
func (t *Table[R]) Merge(files ...[]*R) ([]*R, error) {
	lists := make([][]*R, 0, len(files))
	for _, rows := range files {
		sorted, err := t.sorted(rows)
		if err != nil {
			return nil, fmt.Errorf("merge %s: %w", t.Name, err)
		}
		lists = append(lists, sorted)
	}
	if len(lists) == 0 {
		return nil, nil
	}
	// Merge the two shortest lists first, so that a large base is copied only once.
	for len(lists) > 1 {
		slices.SortStableFunc(lists, func(a, b []*R) int { return cmp.Compare(len(a), len(b)) })
		merged, err := t.mergeTwo(lists[0], lists[1])
		if err != nil {
			return nil, fmt.Errorf("merge %s: %w", t.Name, err)
		}
		lists = append(lists[2:], merged)
	}
	return lists[0], nil
}

// Without returns the rows whose keys do not occur in excluded. If no key of rows occurs in excluded, it returns the
// slice rows itself.
func (t *Table[R]) Without(rows, excluded []*R) []*R {
	if len(rows) == 0 || len(excluded) == 0 {
		return rows
	}
	if !slices.IsSortedFunc(excluded, t.Compare) {
		excluded = slices.SortedFunc(slices.Values(excluded), t.Compare)
	}
	has := func(row *R) bool {
		_, found := slices.BinarySearchFunc(excluded, row, t.Compare)
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

// newer returns one of two rows with the same key: the one with the greater Seq.
func (t *Table[R]) newer(a, b *R) (*R, error) {
	switch seqA, seqB := t.metaOf(a).Seq, t.metaOf(b).Seq; {
	case seqA > seqB:
		return a, nil
	case seqA < seqB:
		return b, nil
	case *a != *b:
		return nil, fmt.Errorf("two different rows have key %s and row_seq %d: a file is corrupt; run `servo admin verify`", t.Key(a), seqA)
	}
	return a, nil
}
