package testcase

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of the text of a diff.
const (
	maxShownRows   = 10 // maximum number of shown rows of each kind
	maxShownFields = 40 // maximum number of shown characters of a value
)

// String formats the diff as a table with one row per line. Expected rows begin with "-", and actual rows with "+". A
// line below the two rows of a change marks the fields that differ.
func (d *Diff) String() string {
	t := diffTable{widths: make([]int, len(d.Columns))}
	t.add(' ', d.Columns)
	if d.Moved != nil {
		t.change(*d.Moved)
	}
	for _, change := range d.Changed[:min(len(d.Changed), maxShownRows)] {
		t.change(change)
	}
	t.rows('-', d.Missing)
	t.rows('+', d.Unexpected)
	return d.Summary() + "\n" + t.String() + d.rest()
}

// Summary returns the numbers of differences as one line of text.
func (d *Diff) Summary() string {
	if d.Moved != nil {
		return fmt.Sprintf("the rows are in another order, from row %d on", d.Moved.Row)
	}
	var parts []string
	for _, part := range []struct {
		count int
		what  string
	}{{len(d.Changed), "different"}, {len(d.Missing), "missing"}, {len(d.Unexpected), "unexpected"}} {
		if part.count > 0 {
			parts = append(parts, rows(part.count, part.what))
		}
	}
	return strings.Join(parts, ", ")
}

func rows(n int, what string) string {
	if n == 1 {
		return "1 " + what + " row"
	}
	return fmt.Sprintf("%d %s rows", n, what)
}

// rest returns a line with the number of rows that the text omits, or "".
func (d *Diff) rest() string {
	if more := max(0, len(d.Changed)-maxShownRows) + max(0, len(d.Missing)-maxShownRows) + max(0, len(d.Unexpected)-maxShownRows); more > 0 {
		return "\n… and " + rows(more, "more")
	}
	return ""
}

// diffTable formats rows with aligned columns.
type diffTable struct {
	lines  []diffLine
	widths []int
}

type diffLine struct {
	sign  rune
	texts []string
}

func (t *diffTable) add(sign rune, texts []string) {
	for i, text := range texts {
		t.widths[i] = max(t.widths[i], utf8.RuneCountInString(text))
	}
	t.lines = append(t.lines, diffLine{sign, texts})
}

// change adds an expected row, the actual row, and a line with marks below the fields that differ.
func (t *diffTable) change(c Change) {
	expected, actual, marks := make([]string, len(c.Differs)), make([]string, len(c.Differs)), make([]string, len(c.Differs))
	for i, differs := range c.Differs {
		from := 0
		if differs {
			from = firstShown(c.Expected[i].Text, c.Actual[i].Text)
		}
		expected[i], actual[i] = c.Expected[i].after(from), c.Actual[i].after(from)
		if differs {
			marks[i] = strings.Repeat("^", max(utf8.RuneCountInString(expected[i]), utf8.RuneCountInString(actual[i])))
		}
	}
	t.add('-', expected)
	t.add('+', actual)
	t.add(' ', marks)
}

// firstShown returns the position from which two texts must be shown, so that the first difference is visible after
// both are shortened: 0 if the difference is near the beginning, or else a few characters before the difference.
func firstShown(a, b string) int {
	x, y := []rune(a), []rune(b)
	same := 0
	for same < min(len(x), len(y)) && x[same] == y[same] {
		same++
	}
	const before = 10
	if same < maxShownFields-before {
		return 0
	}
	return same - before
}

// after returns the value on one line, beginning with the character at the given index.
func (f Field) after(start int) string {
	runes := []rune(f.Text)
	if f.Null || start == 0 || start >= len(runes) {
		return f.shown()
	}
	return "…" + Field{Text: string(runes[start:])}.shown()
}

func (t *diffTable) rows(sign rune, rows [][]Field) {
	for _, row := range rows[:min(len(rows), maxShownRows)] {
		texts := make([]string, len(row))
		for i, f := range row {
			texts[i] = f.shown()
		}
		t.add(sign, texts)
	}
}

// String returns the lines, without spaces at their ends.
func (t *diffTable) String() string {
	lines := make([]string, len(t.lines))
	for i, line := range t.lines {
		var b strings.Builder
		b.WriteRune(line.sign)
		for j, text := range line.texts {
			b.WriteString("  " + text + strings.Repeat(" ", t.widths[j]-utf8.RuneCountInString(text)))
		}
		lines[i] = strings.TrimRight(b.String(), " ")
	}
	return strings.Join(lines, "\n")
}

// shown returns the value on one line, shortened. It puts quotes around a text that could be mistaken for NULL or
// another value.
func (f Field) shown() string {
	if f.Null {
		return "NULL"
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' {
			return '␣'
		}
		return r
	}, f.Text)
	if text == "" || text == "NULL" || strings.TrimSpace(text) != text {
		text = `"` + text + `"`
	}
	if runes := []rune(text); len(runes) > maxShownFields {
		return string(runes[:maxShownFields-1]) + "…"
	}
	return text
}
