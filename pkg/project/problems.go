package project

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one problem in a project's files.
type Problem struct {
	File string `json:"file"`
	// Line and Column are counted from 1. Column counts characters.
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
	// Suggestion is the action that solves the problem, if it is known.
	Suggestion string `json:"suggestion,omitempty"`
}

// String returns "file:line:column: message: suggestion".
func (p Problem) String() string {
	text := fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
	if p.Suggestion != "" {
		text += ": " + p.Suggestion
	}
	return text
}

// Problems lists all problems of a project, by file, line and column.
type Problems []Problem

// Error returns the problems, one per line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Sorted returns the problems by file, line and column, without duplicates. It changes ps.
func (ps Problems) Sorted() Problems {
	slices.SortFunc(ps, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column),
			strings.Compare(a.Message, b.Message))
	})
	return slices.Compact(ps)
}

// report adds a problem.
func (l *loader) report(at place, suggestion, format string, args ...any) {
	l.problems = append(l.problems, Problem{
		File: at.file, Line: max(at.line, 1), Column: max(at.column, 1), Message: fmt.Sprintf(format, args...), Suggestion: suggestion,
	})
}

// didYouMean returns "did you mean WORD?", or "" if word is empty.
func didYouMean(word string) string {
	if word == "" {
		return ""
	}
	return "did you mean " + word + "?"
}
