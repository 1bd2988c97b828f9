package render

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"strings"
	"unicode"

	"github.com/mattn/go-runewidth"
)

const (
	// sampleRows is the number of rows that determine the widths of a table's columns. A longer cell in a later row is
	// truncated on a terminal; elsewhere, it shifts the rest of its line.
	sampleRows = 1000
	gap        = "  "
	// A text column is never narrowed below an eighth of the terminal's width, because it would be unreadable. This
	// lower limit is at least minWidth and at most mostMinWidth.
	minWidth, mostMinWidth, minShare = 4, 12, 8
	// dots are shown in place of omitted columns.
	dots = "…"
)

type tableWriter struct {
	out    *bufio.Writer
	cells  *runewidth.Condition
	null   string
	cut    bool
	widths []int
	right  []bool
	whole  []bool // the columns that are never truncated
	hidden []bool // the omitted columns
}

// writeTable writes a header and aligned columns: text to the left, numbers to the right.
func writeTable(w io.Writer, result Result, opts Options) error {
	t := &tableWriter{
		out: bufio.NewWriter(w),
		// The default condition of package runewidth depends on environment variables.
		cells: &runewidth.Condition{StrictEmojiNeutral: true},
		null:  opts.Null,
		cut:   opts.Width > 0,
	}
	next, stop := iter.Pull2(result.Rows)
	defer stop()
	var sample [][]any
	var failed error
	for len(sample) < sampleRows {
		row, err, ok := next()
		if failed = err; !ok || err != nil {
			break
		}
		sample = append(sample, row)
	}
	t.measure(result, sample, opts.Width)
	t.header(result.Columns)
	for _, row := range sample {
		t.row(row)
	}
	for failed == nil && len(sample) == sampleRows {
		row, err, ok := next()
		if failed = err; !ok || err != nil {
			break
		}
		t.row(row)
	}
	if shown := t.shown(); shown < len(result.Columns) {
		fmt.Fprintf(t.out, "(%d of %d columns shown; -o json shows all)\n", shown, len(result.Columns))
	}
	return flush(t.out, failed)
}

// shown returns the number of columns that are not omitted.
func (t *tableWriter) shown() int {
	n := 0
	for _, hidden := range t.hidden {
		if !hidden {
			n++
		}
	}
	return n
}

func (t *tableWriter) measure(result Result, rows [][]any, limit int) {
	t.widths = make([]int, len(result.Columns))
	t.right, t.whole, t.hidden = make([]bool, len(result.Columns)), make([]bool, len(result.Columns)), make([]bool, len(result.Columns))
	for i, name := range result.Columns {
		t.widths[i] = t.cells.StringWidth(printable(name))
		numbers, keys, empty, others := 0, 0, 0, 0
		for _, row := range rows {
			t.widths[i] = max(t.widths[i], t.cells.StringWidth(t.show(row[i])))
			switch {
			case numeric(row[i]):
				numbers++
			case isID(row[i]):
				keys++
			case row[i] == "":
				empty++
			case row[i] != nil:
				others++
			}
		}
		t.right[i] = numbers > 0 && keys+empty+others == 0
		t.whole[i] = numbers+keys > 0 && others == 0
	}
	if limit > 0 {
		t.fit(limit, result.Optional)
	}
}

// fit makes the table fit the terminal: it omits optional columns, the last one first, then narrows the widest columns
// of text, and then omits columns in the middle. It never truncates numbers, because a truncated number looks like
// another number. It never truncates columns of ids either, because commands need whole ids.
func (t *tableWriter) fit(limit int, optional []bool) {
	for i := len(optional) - 1; i >= 0 && t.width() > limit; i-- {
		t.hidden[i] = optional[i]
	}
	least := min(max(minWidth, limit/minShare), mostMinWidth)
	for t.width() > limit {
		widest := -1
		for i, width := range t.widths {
			if !t.hidden[i] && !t.whole[i] && width > least && (widest < 0 || width > t.widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			t.omit(limit)
			return
		}
		t.widths[widest]--
	}
}

// width returns the width of a line, in which one column of dots replaces adjacent omitted columns.
func (t *tableWriter) width() int {
	total := -len(gap)
	for i, width := range t.widths {
		switch {
		case !t.hidden[i]:
			total += len(gap) + width
		case i == 0 || !t.hidden[i-1]:
			total += len(gap) + 1
		}
	}
	return total
}

// omit omits columns in the middle until the line fits, but keeps at least two columns.
func (t *tableWriter) omit(limit int) {
	var shown []int
	for i, hidden := range t.hidden {
		if !hidden {
			shown = append(shown, i)
		}
	}
	from, to := len(shown)/2, len(shown)/2 //nolint:mnd // the middle
	for t.width() > limit && to-from < len(shown)-2 {
		if from > len(shown)-to {
			from--
			t.hidden[shown[from]] = true
		} else {
			t.hidden[shown[to]] = true
			to++
		}
	}
}

func (t *tableWriter) header(columns []string) {
	cells := make([]string, len(columns))
	for i, name := range columns {
		cells[i] = printable(name)
	}
	t.line(cells)
}

func (t *tableWriter) row(row []any) {
	cells := make([]string, len(row))
	for i, cell := range row {
		cells[i] = t.show(cell)
	}
	t.line(cells)
}

func (t *tableWriter) line(cells []string) {
	var line strings.Builder
	for i, cell := range cells {
		hidden, first := t.hidden[i], i == 0 || !t.hidden[i-1]
		if i > 0 && (!hidden || first) {
			line.WriteString(gap)
		}
		if hidden {
			if first {
				line.WriteString(dots)
			}
			continue
		}
		if t.cut {
			cell = t.cells.Truncate(cell, t.widths[i], "…")
		}
		padding := strings.Repeat(" ", max(0, t.widths[i]-t.cells.StringWidth(cell)))
		if t.right[i] {
			cell = padding + cell
		} else {
			cell += padding
		}
		line.WriteString(cell)
	}
	t.out.WriteString(strings.TrimRight(line.String(), " ") + "\n") //nolint:errcheck // a bufio.Writer keeps its error for Flush
}

func (t *tableWriter) show(cell any) string {
	if cell == nil {
		return t.null
	}
	return printable(Text(cell))
}

// printable escapes line breaks and control characters, which could control the terminal.
func printable(cell string) string {
	if strings.IndexFunc(cell, unicode.IsControl) < 0 {
		return cell
	}
	var out strings.Builder
	for _, r := range cell {
		switch {
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case r == '\r':
			out.WriteString(`\r`)
		case unicode.IsControl(r):
			out.WriteRune(unicode.ReplacementChar)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}
