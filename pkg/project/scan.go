package project

import "github.com/servo-orchestration/servo/pkg/sqltext"

// trimQuery returns the SQL without leading and trailing space and comments, and without trailing semicolons. If
// nothing remains, it returns "". start is the offset of the query in the SQL. Semicolons between statements stay, so
// that the parser rejects several statements.
func trimQuery(sql string) (query string, start int) {
	first, last := -1, 0
	for i := 0; i < len(sql); {
		next, blank := sqltext.Token(sql, i)
		if !blank && sql[i] != ';' {
			if first < 0 {
				first = i
			}
			last = next
		}
		i = next
	}
	if first < 0 {
		return "", 0
	}
	return sql[first:last], first
}
