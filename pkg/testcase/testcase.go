// Package testcase represents unit tests of queries as data: the rows that a query reads, and the rows that it is
// expected to return. It compares rows and describes how they differ. It reads no files and executes no SQL. This
// package is not a stable API.
package testcase

import (
	"fmt"
	"strings"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Place is a position in a file of the project. Line and Column count from 1. Column counts characters, not bytes.
type Place struct {
	File         string
	Line, Column int
}

// String returns "file:line:column".
func (p Place) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Test is a unit test of the query of one asset.
type Test struct {
	At    Place
	Name  string
	Asset ids.AssetKey
	// Partition is the partition that the query computes. It is empty for an unpartitioned asset.
	Partition ids.Partition
	// Period is the period of the partition. It is nil if the asset has no time dimension.
	Period *plan.Period
	// Vars are the values of all variables that the query reads.
	Vars map[string]plan.Var
	// Given has one item for each asset that the query reads.
	Given  []Given
	Expect Expect
}

// Given contains the rows of an asset that a query reads. The rows are given inline, in a CSV file,
// or by a query.
type Given struct {
	At    Place
	Asset ids.AssetKey
	Rows  []Row
	// SQL is a query that returns the rows. It starts at SQLAt. If SQL is empty, Rows contains the rows.
	SQL   string
	SQLAt Place
}

// Row is one given or expected row. It contains only the columns that the test file names.
type Row struct {
	At    Place
	Cells []Cell
}

// Cell is a value of a column. NameAt is the place of the column's name.
type Cell struct {
	Name       string
	NameAt, At Place
	Value      Value
}

// Expect is the expected result of a query: rows or an error.
type Expect struct {
	At Place
	// Rows are the expected rows. All rows have the columns of the first row. If Rows is nil, the test expects an error,
	// or only outcomes of checks.
	Rows []Row
	// RowsAt is where the file lists the expected rows.
	RowsAt Place
	// Ordered means that the query must return the rows in this order.
	Ordered bool
	// Error is a part of the message of the expected error.
	Error string
	// Checks are the expected outcomes of the asset's checks when they run on the rows of the query.
	Checks []ExpectedCheck
}

// ExpectedCheck is the expected outcome of a check.
type ExpectedCheck struct {
	At     Place
	Name   string
	Passed bool
}

// Status is the outcome of a test.
type Status string

// Outcomes of tests.
const (
	Passed Status = "passed"
	// Failed means that the query did not return the expected rows, or that it failed.
	Failed Status = "failed"
	// Invalid means that the test itself is wrong, for example because it names an unknown column.
	Invalid Status = "invalid"
)

// Result is the outcome of a test.
type Result struct {
	Test   *Test
	Status Status
	// At is the place of the problem if the test is invalid, and the place of the test otherwise.
	At Place
	// Message explains why the test did not pass, in one line or more. Suggestion tells the user what to do.
	Message, Suggestion string
	// Diff contains the rows that differ. It is nil if the rows are as expected, or if the test ended before they were
	// compared.
	Diff *Diff
	// Actual are the rows that the query returned, if Diff is set.
	Actual *Actual
}

// Problem is the error of an invalid test.
type Problem struct {
	At                  Place
	Message, Suggestion string
}

// Error returns the place, the message and the suggestion.
func (p *Problem) Error() string {
	text := p.At.String() + ": " + p.Message
	if p.Suggestion != "" {
		text += ": " + p.Suggestion
	}
	return text
}

// Cell returns the cell of a column, or nil if the row has none. Names of columns are case-insensitive, as in SQL.
func (r *Row) Cell(name string) *Cell {
	for i := range r.Cells {
		if strings.EqualFold(r.Cells[i].Name, name) {
			return &r.Cells[i]
		}
	}
	return nil
}
