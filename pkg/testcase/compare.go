package testcase

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Column is a column of a result, with its SQL type.
type Column struct{ Name, Kind string }

// Field is a value in a result, as DuckDB formats it.
type Field struct {
	Text string
	Null bool
}

// Diff describes how rows differ from the expected ones.
type Diff struct {
	Columns []string
	// Changed contains pairs of an expected and an actual row that are similar.
	Changed []Change
	// Missing are the expected rows that the result lacks. Unexpected are the rows of the result that are not expected.
	Missing, Unexpected [][]Field
	// Moved is set if the rows are the expected ones, but in another order. It describes the first row that is not in
	// its expected place.
	Moved *Change
}

// Change is an expected row, and the actual row that the query returned instead. Row is the number of the expected
// row, from 1.
type Change struct {
	Row              int
	Expected, Actual []Field
	// Differs reports, for each field, whether it differs.
	Differs []bool
}

// Compare compares the rows of a result with the expected ones, and returns nil if they are equal. If ordered is
// false, Compare ignores the order of rows, but each row must occur equally often on both sides. Two floating-point
// numbers are equal if they differ by at most a billionth of the larger one. So only zero is equal to zero.
func Compare(columns []Column, expected, actual [][]Field, ordered bool) *Diff {
	c := comparer{columns: columns}
	d := c.compare(expected, actual)
	if d != nil || !ordered {
		return d
	}
	for i := range expected {
		if change := c.change(i, expected[i], actual[i]); slices.Contains(change.Differs, true) {
			return &Diff{Columns: c.names(), Moved: &change}
		}
	}
	return nil
}

type comparer struct{ columns []Column }

func (c *comparer) names() []string {
	names := make([]string, len(c.columns))
	for i, column := range c.columns {
		names[i] = column.Name
	}
	return names
}

// compare compares rows without regard to their order.
func (c *comparer) compare(expected, actual [][]Field) *Diff {
	missing, unexpected := c.unmatched(expected, actual)
	if len(missing) == 0 && len(unexpected) == 0 {
		return nil
	}
	d := &Diff{Columns: c.names()}
	const most = 10_000 // maximum number of pairs of rows to compare
	if len(missing)*len(unexpected) <= most {
		missing, unexpected = c.pair(d, expected, actual, missing, unexpected)
	}
	for _, i := range missing {
		d.Missing = append(d.Missing, expected[i])
	}
	for _, i := range unexpected {
		d.Unexpected = append(d.Unexpected, actual[i])
	}
	return d
}

// unmatched returns the positions of the expected and of the actual rows that have no equal row on the other side.
func (c *comparer) unmatched(expected, actual [][]Field) (missing, unexpected []int) {
	waiting := map[string][]int{}
	for i, row := range expected {
		key := rowKey(row)
		waiting[key] = append(waiting[key], i)
	}
	found := make([]bool, len(expected))
	for i, row := range actual {
		key := rowKey(row)
		if same := waiting[key]; len(same) > 0 {
			found[same[0]], waiting[key] = true, same[1:]
			continue
		}
		unexpected = append(unexpected, i)
	}
	for i := range expected {
		if !found[i] {
			missing = append(missing, i)
		}
	}
	if slices.ContainsFunc(c.columns, func(column Column) bool { return isFloat(column.Kind) }) {
		return c.nearlyEqual(expected, actual, missing, unexpected)
	}
	return missing, unexpected
}

// nearlyEqual removes pairs of rows that differ only in the last digits of floating-point numbers.
func (c *comparer) nearlyEqual(expected, actual [][]Field, missing, unexpected []int) (stillMissing, stillUnexpected []int) {
	missing = slices.DeleteFunc(missing, func(i int) bool {
		j := slices.IndexFunc(unexpected, func(j int) bool {
			return !slices.Contains(c.change(i, expected[i], actual[j]).Differs, true)
		})
		if j >= 0 {
			unexpected = slices.Delete(unexpected, j, j+1)
		}
		return j >= 0
	})
	return missing, unexpected
}

// pair finds, for each missing row, the unexpected row that has the most fields in common with it, and adds the two
// to d.Changed. It returns the positions of the rows without a counterpart.
func (c *comparer) pair(d *Diff, expected, actual [][]Field, missing, unexpected []int) (stillMissing, stillUnexpected []int) {
	only := len(missing) == 1 && len(unexpected) == 1
	missing = slices.DeleteFunc(missing, func(i int) bool {
		best, most := -1, 0
		var nearest Change
		for j, row := range unexpected {
			change := c.change(i, expected[i], actual[row])
			equal := 0
			for _, differs := range change.Differs {
				if !differs {
					equal++
				}
			}
			if equal > most || best < 0 && only {
				best, most, nearest = j, equal, change
			}
		}
		if best < 0 {
			return false
		}
		d.Changed = append(d.Changed, nearest)
		unexpected = slices.Delete(unexpected, best, best+1)
		return true
	})
	return missing, unexpected
}

// change compares two rows field by field.
func (c *comparer) change(row int, expected, actual []Field) Change {
	change := Change{Row: row + 1, Expected: expected, Actual: actual, Differs: make([]bool, len(c.columns))}
	for i, column := range c.columns {
		change.Differs[i] = !equal(column.Kind, expected[i], actual[i])
	}
	return change
}

func isFloat(kind string) bool { return kind == "DOUBLE" || kind == "FLOAT" }

// tolerance is the maximum difference of equal floating-point numbers, as a fraction of the larger number.
const tolerance = 1e-9

// equal reports whether two values of a type are equal.
func equal(kind string, a, b Field) bool {
	if a == b {
		return true
	}
	if a.Null || b.Null || !isFloat(kind) {
		return false
	}
	x, err := strconv.ParseFloat(a.Text, 64)
	y, other := strconv.ParseFloat(b.Text, 64)
	if err != nil || other != nil || math.IsInf(x, 0) || math.IsInf(y, 0) {
		return false
	}
	return math.Abs(x-y) <= tolerance*max(math.Abs(x), math.Abs(y))
}

// rowKey returns a text for a row. Two rows have the same text only if they are equal.
func rowKey(row []Field) string {
	var b strings.Builder
	for _, f := range row {
		if f.Null {
			b.WriteString("-;")
			continue
		}
		b.WriteString(strconv.Itoa(len(f.Text)))
		b.WriteByte(':')
		b.WriteString(f.Text)
	}
	return b.String()
}
