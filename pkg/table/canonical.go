package table

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Canonical returns the row as one line of JSON: every column in the table's order, NULL
// as null, times in RFC 3339 with microseconds. Two rows are equal if and only if their canonical texts are equal.
func (t *Table[R]) Canonical(row *R) string {
	v := reflect.ValueOf(row).Elem()
	line := []byte{'{'}
	for i := range t.Columns {
		c := &t.Columns[i]
		if i > 0 {
			line = append(line, ',')
		}
		line = append(strconv.AppendQuote(line, c.Name), ':')
		line = append(line, c.json(v)...)
	}
	return string(append(line, '}'))
}

func (c *Column) json(row reflect.Value) string {
	v := c.Of(row)
	if c.Nullable && v.IsZero() {
		return "null"
	}
	switch c.Type {
	case Integer, Bigint:
		return strconv.FormatInt(v.Int(), 10)
	case Boolean:
		return strconv.FormatBool(v.Bool())
	case Timestamp:
		return strconv.Quote(event.Time(v.Int()).String())
	case Varchar:
	}
	quoted, err := json.Marshal(v.String())
	if err != nil {
		panic(err) // cannot happen: every string is encodable
	}
	return string(quoted)
}

// Diff compares two sets of rows, which may be in any order, and yields a readable line for each difference. The line
// contains the key of the row and, for a row that is in both sets, both values of each differing column. For a row
// that is in one set only, the line says which set lacks it, and contains the whole row. If the sets are equal, Diff
// yields nothing.
func (t *Table[R]) Diff(want, got []*R) iter.Seq[string] {
	return func(yield func(string) bool) {
		a, errA := t.sorted(want)
		b, errB := t.sorted(got)
		if err := errors.Join(errA, errB); err != nil {
			yield(fmt.Sprintf("%s: cannot be compared: %v", t.Name, err))
			return
		}
		for len(a) > 0 || len(b) > 0 {
			var line string
			line, a, b = t.diffNext(a, b)
			if line != "" && !yield(line) {
				return
			}
		}
	}
}

// diffNext compares the first rows of two sorted lists. It returns a line that describes the difference, or "" if the
// rows are equal, and the rows that remain to be compared.
func (t *Table[R]) diffNext(a, b []*R) (line string, restA, restB []*R) {
	var order int
	switch {
	case len(a) == 0:
		order = 1
	case len(b) == 0:
		order = -1
	default:
		order = t.Compare(a[0], b[0])
	}
	switch {
	case order < 0:
		return t.Name + " " + t.Key(a[0]) + ": missing, want " + t.Canonical(a[0]), a[1:], b
	case order > 0:
		return t.Name + " " + t.Key(b[0]) + ": unexpected, got " + t.Canonical(b[0]), a, b[1:]
	case *a[0] == *b[0]:
		return "", a[1:], b[1:]
	}
	return t.Name + " " + t.Key(a[0]) + ": " + t.diffColumns(a[0], b[0]), a[1:], b[1:]
}

func (t *Table[R]) diffColumns(want, got *R) string {
	a, b := reflect.ValueOf(want).Elem(), reflect.ValueOf(got).Elem()
	var parts []string
	for i := range t.Columns {
		c := &t.Columns[i]
		if wanted, has := c.json(a), c.json(b); wanted != has {
			parts = append(parts, c.Name+" is "+has+", want "+wanted)
		}
	}
	return strings.Join(parts, "; ")
}
