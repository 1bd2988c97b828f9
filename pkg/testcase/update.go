package testcase

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Actual contains the rows that a query returned instead of the expected ones.
type Actual struct {
	Columns []Column
	Rows    [][]Field
}

// Arrange returns the rows of a result in the order in which a test should expect them. If ordered is false, rows
// that the test already expects keep their order, and the other rows follow, sorted.
func Arrange(columns []Column, expected, actual [][]Field, ordered bool) *Actual {
	found := &Actual{Columns: columns}
	if ordered {
		found.Rows = actual
		return found
	}
	c := comparer{columns: columns}
	missing, unexpected := c.unmatched(expected, actual)
	for i, row := range expected {
		if !slices.Contains(missing, i) {
			found.Rows = append(found.Rows, row)
		}
	}
	added := make([][]Field, len(unexpected))
	for i, at := range unexpected {
		added[i] = actual[at]
	}
	slices.SortStableFunc(added, func(a, b []Field) int { return strings.Compare(rowKey(a), rowKey(b)) })
	found.Rows = append(found.Rows, added...)
	return found
}

// lines returns each row as a flow mapping of YAML.
func (a *Actual) lines() []string {
	lines := make([]string, len(a.Rows))
	for i, row := range a.Rows {
		items := make([]string, len(row))
		for j, field := range row {
			name := a.Columns[j].Name
			if !plainText.MatchString(name) {
				name = strconv.Quote(name)
			}
			items[j] = name + ": " + field.yaml(a.Columns[j].Kind)
		}
		lines[i] = "{" + strings.Join(items, ", ") + "}"
	}
	return lines
}

var (
	plainNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`)
	plainDate   = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`)
	plainText   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*$`)
	// keywords have a special meaning in some version of YAML.
	keywords = regexp.MustCompile(`(?i)^(null|true|false|yes|no|on|off|y|n)$`)
)

// yaml returns the field as YAML for a test file. A test that reads this YAML gets the same value.
func (f Field) yaml(kind string) string {
	switch number := kind == "DOUBLE" || kind == "FLOAT" || strings.HasPrefix(kind, "DECIMAL") || strings.HasSuffix(kind, "INT") || kind == "INTEGER"; {
	case f.Null:
		return "null"
	case kind == "BOOLEAN" && (f.Text == "true" || f.Text == "false"), number && plainNumber.MatchString(f.Text), kind == "DATE" && plainDate.MatchString(f.Text):
		return f.Text
	}
	if plainText.MatchString(f.Text) && !keywords.MatchString(f.Text) {
		return f.Text
	}
	return strconv.Quote(f.Text)
}

// Update returns the text of a test file in which the expected rows at a place are replaced by other rows. It keeps
// the style of the list: in brackets, or with one item per line. It does not keep comments between the rows.
func Update(text string, at Place, actual *Actual) (string, error) {
	lines := strings.SplitAfter(text, "\n")
	if at.Line < 1 || at.Line > len(lines) {
		return "", fmt.Errorf("the file has changed: the expected rows are no longer at line %d, column %d", at.Line, at.Column)
	}
	line := []rune(lines[at.Line-1])
	if at.Column < 1 || at.Column > len(line) {
		return "", fmt.Errorf("the file has changed: the expected rows are no longer at line %d, column %d", at.Line, at.Column)
	}
	start := len(strings.Join(lines[:at.Line-1], "")) + len(string(line[:at.Column-1]))
	rows := actual.lines()
	switch text[start] {
	case '[':
		end, err := flowEnd(text, start)
		if err != nil {
			return "", err
		}
		separator := ", "
		if len(rows) > 1 {
			separator = ",\n" + strings.Repeat(" ", at.Column)
		}
		return text[:start] + "[" + strings.Join(rows, separator) + "]" + text[end:], nil
	case '-':
		end := blockEnd(lines, at)
		indent := strings.Repeat(" ", at.Column-1)
		written := "  []"
		if len(rows) > 0 {
			written = "- " + strings.Join(rows, "\n"+indent+"- ")
		}
		if strings.HasSuffix(text[start:end], "\n") {
			written += "\n"
		}
		return text[:start] + written + text[end:], nil
	}
	return "", errors.New("the rows are not a list that begins with [ or -")
}

// flowEnd returns the position after the list in brackets that begins at the given position.
func flowEnd(text string, start int) (int, error) {
	depth := 0
	for i := start; i < len(text); i++ {
		switch c := text[i]; c {
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1, nil
			}
		case '"', '\'':
			if !strings.ContainsRune(" ,[{:\n", rune(text[i-1])) {
				continue // an apostrophe in a text without quotes
			}
			n := closingQuote(text[i:])
			if n < 0 {
				return 0, errors.New("a quote of the rows is not closed")
			}
			i += n
		case '#':
			if strings.ContainsRune(" \n", rune(text[i-1])) {
				n := strings.IndexByte(text[i:], '\n')
				if n < 0 {
					return 0, errors.New("the list of the rows is not closed")
				}
				i += n
			}
		}
	}
	return 0, errors.New("the list of the rows is not closed")
}

// closingQuote returns the position of the quote that closes a quoted text, or -1 if the text is not closed.
func closingQuote(text string) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[0] == '"' && text[i] == '\\':
			i++
		case text[i] != text[0]:
		case text[0] == '\'' && i+1 < len(text) && text[i+1] == '\'':
			i++
		default:
			return i
		}
	}
	return -1
}

// blockEnd returns the position after a list with one item per line. The lines of the list are its items and all
// lines with greater indentation. Blank lines and comments at the end do not belong to the list.
func blockEnd(lines []string, at Place) int {
	last := at.Line // the number of lines up to the end of the list
	for n := at.Line; n < len(lines); n++ {
		content := strings.TrimLeft(lines[n], " ")
		indent := len(lines[n]) - len(content)
		trimmed := strings.TrimSpace(content)
		switch {
		case trimmed == "" || trimmed[0] == '#':
			continue
		case indent < at.Column-1, indent == at.Column-1 && trimmed != "-" && !strings.HasPrefix(trimmed, "- "):
			return len(strings.Join(lines[:last], ""))
		}
		last = n + 1
	}
	return len(strings.Join(lines[:last], ""))
}
