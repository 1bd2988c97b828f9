package project

import "strings"

// trimQuery is a text of SQL without the space and comments around it and the
// semicolons after it, and where in the text it starts. It is the empty query
// when there is nothing else. Semicolons between statements stay: the parser
// refuses them.
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

// token is the end of what starts at i, and whether it is part of a query: all
// but space, comments and semicolons is.
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
		return until(sql, i+1, string(c)), true // a doubled quote is two strings in a row here
	case c == '$' && !inName(sql, i):
		if tag, ok := dollarTag(rest); ok {
			return until(sql, i+len(tag), tag), true
		}
	}
	return i + 1, true
}

// inName reports whether what is at i goes on with a name or a number.
func inName(sql string, i int) bool {
	if i == 0 {
		return false
	}
	c := sql[i-1]
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// until is the end of the first mark at or after i, or of the text.
func until(sql string, i int, mark string) int {
	if at := strings.Index(sql[i:], mark); at >= 0 {
		return i + at + len(mark)
	}
	return len(sql)
}

// blockComment is the end of a comment, which may have others inside.
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

// escapedString is the end of a string that has backslashes: E'…'.
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

// dollarTag is the mark of a dollar-quoted string: $$ or $tag$.
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
