package render

import (
	"bufio"
	"io"
	"iter"
	"strings"
	"unicode"

	"github.com/mattn/go-runewidth"
)

const (
	// sampleRows is how many rows decide the widths of a table's columns. A longer
	// cell that comes later is cut on a terminal, and else shifts its line.
	sampleRows = 1000
	gap        = "  "
	// minWidth is what a column keeps when a table is made to fit.
	minWidth = 4
)

type tableWriter struct {
	out    *bufio.Writer
	cells  *runewidth.Condition
	null   string
	cut    bool
	widths []int
	right  []bool
}

// writeTable aligns columns: text to the left, numbers to the right. The first
// line is the columns' names.
func writeTable(w io.Writer, result Result, opts Options) error {
	t := &tableWriter{
		out: bufio.NewWriter(w),
		// Not the package's default, which asks the environment.
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
	t.measure(result.Columns, sample, opts.Width)
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
	return flushed(t.out, failed)
}

func (t *tableWriter) measure(columns []string, rows [][]any, limit int) {
	t.widths = make([]int, len(columns))
	t.right = make([]bool, len(columns))
	for i, name := range columns {
		t.widths[i] = t.cells.StringWidth(printable(name))
		numbers, others := 0, 0
		for _, row := range rows {
			t.widths[i] = max(t.widths[i], t.cells.StringWidth(t.show(row[i])))
			switch {
			case numeric(row[i]):
				numbers++
			case row[i] != nil:
				others++
			}
		}
		t.right[i] = numbers > 0 && others == 0
	}
	if limit > 0 {
		t.fit(limit)
	}
}

// fit narrows the widest columns until the table is as wide as the terminal.
func (t *tableWriter) fit(limit int) {
	total := len(gap) * (len(t.widths) - 1)
	for _, width := range t.widths {
		total += width
	}
	for total > limit {
		widest := 0
		for i, width := range t.widths {
			if width > t.widths[widest] {
				widest = i
			}
		}
		if t.widths[widest] <= minWidth {
			return
		}
		t.widths[widest]--
		total--
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
		if i > 0 {
			line.WriteString(gap)
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
	return printable(text(cell))
}

// printable keeps a cell on its line, and its bytes from steering the terminal.
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
