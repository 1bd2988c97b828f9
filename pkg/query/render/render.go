// Package render writes rows for people and programs: as an aligned table, JSON, CSV or YAML.
// Rows are streamed; only a table buffers some of them, to measure its columns. This package is not
// a stable API.
//
// A cell is nil, a bool, an integer, a float, a string, a [time.Time], a [Number], bytes, a
// list ([]any) or [Fields]; other values are written as text. Times are RFC 3339 in UTC in
// every format.
package render

import (
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// Format is an output format.
type Format string

// Formats.
const (
	Table Format = "table"
	JSON  Format = "json"
	CSV   Format = "csv"
	YAML  Format = "yaml"
)

// Formats returns the names that ParseFormat accepts.
func Formats() []string { return []string{string(Table), string(JSON), string(YAML), string(CSV)} }

// ParseFormat returns the format with the given name.
func ParseFormat(name string) (Format, error) {
	if slices.Contains(Formats(), name) {
		return Format(name), nil
	}
	return "", fmt.Errorf("unknown output format %q: choose one of %s", name, strings.Join(Formats(), ", "))
}

// Result is a table to write.
type Result struct {
	Columns []string
	// Optional marks the columns that a narrow table omits first. Nil: none.
	Optional []bool
	// Rows yields rows with a cell for each column. The sequence ends after an error.
	Rows iter.Seq2[[]any, error]
}

// Of returns a result whose rows are in memory.
func Of(columns []string, rows [][]any) Result {
	return Result{Columns: columns, Rows: func(yield func([]any, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}}
}

// Options control the output.
type Options struct {
	// Format is the output format; empty means Table.
	Format Format
	// Width is the terminal's width in characters; 0 means no limit. A table truncates long
	// cells to fit.
	Width int
	// Null is the text for NULL in a table. CSV leaves the cell empty.
	Null string
}

// Write writes the result. If the rows end with an error, Write writes the rows before it and
// returns the error unchanged.
func Write(w io.Writer, result Result, opts Options) error {
	result.Columns = Distinct(result.Columns)
	result.Rows = checkedRows(result)
	switch opts.Format {
	case Table, "":
		return writeTable(w, result, opts)
	case JSON:
		return writeJSON(w, result)
	case CSV:
		return writeCSV(w, result)
	case YAML:
		return writeYAML(w, result)
	}
	_, err := ParseFormat(string(opts.Format))
	return err
}

// Distinct appends numbers to duplicate names, because names are keys in JSON and YAML.
func Distinct(columns []string) []string {
	seen := make(map[string]int, len(columns))
	names := make([]string, len(columns))
	for i, name := range columns {
		seen[name]++
		for n := seen[name]; n > 1; n++ {
			numbered := name + "_" + strconv.Itoa(n)
			if seen[numbered] == 0 && !slices.Contains(columns, numbered) {
				name = numbered
				seen[name]++
				break
			}
		}
		names[i] = name
	}
	return names
}

// checkedRows returns the rows of a result. If a row has a wrong number of cells, the rows end there with an error.
func checkedRows(result Result) iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		if result.Rows == nil {
			return
		}
		for row, err := range result.Rows {
			if err == nil && len(row) != len(result.Columns) {
				err = fmt.Errorf("a row has %d cells for %d columns", len(row), len(result.Columns))
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}
