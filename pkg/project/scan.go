package project

import "strings"

// trimQuery returns the SQL without leading and trailing space and comments, and without trailing semicolons. It also
// returns the offset where the query starts. It returns "" if nothing remains. Semicolons between statements stay, so
// that the parser rejects them.
func trimQuery(sql string) (query string, start int) {
	first, last := -1, 0
	for i := 0; i < len(sql); {
		next, significant := token(sql, i)
		if significant {
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

// token returns the end of the token at i, and whether the token is part of the query. Space, comments and semicolons
// are not part of it.
func token(sql string, i int) (end int, significant bool) {
	rest := sql[i:]
	switch c := rest[0]; {
	case strings.ContainsRune(" \t\r\n\f\v;", rune(c)):
		return i + 1, false
	case strings.HasPrefix(rest, "--"):
		return until(sql, i, "\n"), false
	case strings.HasPrefix(rest, "/*"):
		return blockComment(sql, i), false
	case c == '\'' && i > 0 && (sql[i-1] == 'e' || sql[i-1] == 'E') && !inName(sql, i-1):
		return escapedString(sql, i), true
	case c == '\'' || c == '"':
		return until(sql, i+1, string(c)), true // a string with a doubled quote is read as two adjacent strings
	case c == '$' && !inName(sql, i):
		if tag, ok := dollarTag(rest); ok {
			return until(sql, i+len(tag), tag), true
		}
	}
	return i + 1, true
}

// inName reports whether the character before i is part of a name or a number.
func inName(sql string, i int) bool {
	if i == 0 {
		return false
	}
	c := sql[i-1]
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// until returns the position after the first mark at or after i. If there is none, it returns the end of the text.
func until(sql string, i int, mark string) int {
	if at := strings.Index(sql[i:], mark); at >= 0 {
		return i + at + len(mark)
	}
	return len(sql)
}

// blockComment returns the end of a comment. Comments can be nested.
func blockComment(sql string, i int) int {
	depth := 0
	for i < len(sql) {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(sql[i:], "*/"):
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(sql)
}

// escapedString returns the end of a string with backslash escapes: E'…'.
func escapedString(sql string, i int) int {
	for i++; i < len(sql); i++ {
		switch sql[i] {
		case '\\':
			i++
		case '\'':
			return i + 1
		}
	}
	return len(sql)
}

// dollarTag returns the opening quote of a dollar-quoted string: $$ or $tag$.
func dollarTag(rest string) (string, bool) {
	for i := 1; i < len(rest); i++ {
		c := rest[i]
		switch {
		case c == '$':
			return rest[:i+1], true
		case c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9' && i > 1, c >= 0x80:
		default:
			return "", false
		}
	}
	return "", false
}
