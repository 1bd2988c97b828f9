package query

import (
	"fmt"

	"github.com/servo-orchestration/servo/pkg/sqltext"
)

// Limits of the nesting of brackets in SQL. The time that DuckDB needs to prepare an expression grows with the third
// power of its depth, and DuckDB cannot be interrupted while it prepares. At these limits, preparing a statement
// takes a few seconds.
const (
	// MaxNesting is the greatest depth of nested brackets.
	MaxNesting = 100
	// maxNestingWork limits the sum, over all opening brackets, of the square of the depth.
	maxNestingWork = 10_000_000
)

// checkNesting rejects SQL whose brackets are nested too deeply. Brackets in string literals, quoted names and
// comments do not count, unless the text has Unicode spaces: then, checkNesting cannot distinguish literals from
// code.
func checkNesting(sql string) error {
	literals := !sqltext.HasUnicodeSpace(sql)
	depth, work, line := 0, 0, 1
	for i := 0; i < len(sql); {
		switch sql[i] {
		case '(', '[', '{':
			depth++
			work += depth * depth
		case ')', ']', '}':
			depth = max(depth-1, 0)
		case ';':
			depth = 0
		case '\n':
			line++
		}
		if depth > MaxNesting {
			return fmt.Errorf("line %d: brackets are nested more than %d deep: split the expression or the subquery", line, MaxNesting)
		}
		if work > maxNestingWork {
			return fmt.Errorf("line %d: the SQL contains too many deeply nested brackets: split it into several queries", line)
		}
		end := i + 1
		if literals {
			end, _ = sqltext.Token(sql, i)
		}
		for _, c := range []byte(sql[i+1 : end]) { // the rest of a literal or a comment
			if c == '\n' {
				line++
			}
		}
		i = end
	}
	return nil
}
