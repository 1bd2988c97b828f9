// Package sqltext reads SQL as a text, without parsing it: it finds comments and literals as DuckDB does, and calls of
// functions that users must not call. It also parses the names of types. This package is not a stable API.
package sqltext

import (
	"regexp"
	"strings"
)

// Token returns the end of the token at offset i, and whether the token is blank: white space or a comment. A literal,
// a quoted name and a comment are one token each. Any other token is one byte long.
func Token(sql string, i int) (end int, blank bool) {
	rest := sql[i:]
	switch c := rest[0]; {
	case strings.ContainsRune(" \t\r\n\f\v", rune(c)):
		return i + 1, true
	case strings.HasPrefix(rest, "--"):
		return i + lineComment(rest), true
	case strings.HasPrefix(rest, "/*"):
		return i + blockComment(rest), true
	case c == '\'' && i > 0 && (sql[i-1] == 'e' || sql[i-1] == 'E') && !inName(sql, i-1):
		return i + escaped(rest), false
	case c == '\'' || c == '"':
		return i + upTo(rest, 1, string(c)), false // a literal with a doubled quote is read as two adjacent literals
	case c == '$' && !inName(sql, i):
		if tag := dollarTag(rest); tag != "" {
			return i + upTo(rest, len(tag), tag), false
		}
	}
	return i + 1, false
}

// inName reports whether the character before i is part of a name or a number.
func inName(sql string, i int) bool {
	if i == 0 {
		return false
	}
	c := sql[i-1]
	return c == '_' || c == '$' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// upTo searches text[from:] for the first occurrence of mark, and returns the offset in text at which it ends. If there
// is none, upTo returns the length of text.
func upTo(text string, from int, mark string) int {
	if at := strings.Index(text[from:], mark); at >= 0 {
		return from + at + len(mark)
	}
	return len(text)
}

// lineComment returns the length of a comment that ends with its line. A carriage return ends a line, too.
func lineComment(text string) int {
	if at := strings.IndexAny(text, "\r\n"); at >= 0 {
		return at + 1
	}
	return len(text)
}

// blockComment returns the length of a comment. Comments can be nested.
func blockComment(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(text)
}

// escaped returns the length of a literal with backslash escapes: the part of E'…' that begins at the quote. If
// another quote follows the closing quote, directly or after a line break, the literal continues, and its further
// text has escapes, too.
func escaped(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '\'':
			next := continued.FindStringIndex(text[i:])
			if next == nil {
				return i + 1
			}
			i += next[1] - 1
		}
	}
	return len(text)
}

// continued matches a quote, and the text up to a second quote with which the literal continues.
var continued = regexp.MustCompile(`^'(?:(?:[ \t\f]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f]|--[^\n\r]*[\n\r])*)?'`)

// dollarTag returns the opening quote of a dollar-quoted literal, $$ or $tag$, or "" if the text begins with none.
func dollarTag(text string) string {
	for i := 1; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '$':
			return text[:i+1]
		case c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9' && i > 1, c >= 0x80:
		default:
			return ""
		}
	}
	return ""
}

// HasUnicodeSpace reports whether a text may contain a character beyond ASCII that DuckDB reads as a space. Token
// treats such a character as part of a name, so it can misread the literals of the text.
func HasUnicodeSpace(sql string) bool { return unicodeSpace.MatchString(sql) }

var unicodeSpace = regexp.MustCompile(`[\x{a0}\x{2000}-\x{200d}\x{202f}\x{205f}\x{2060}\x{3000}\x{feff}]`)

// forbiddenCall matches a call of a forbidden function: the function's name, an optional quotation mark, any space
// and comments, and an opening bracket. All characters that are not printable ASCII count as space, so the pattern
// accepts every space of DuckDB.
var forbiddenCall = regexp.MustCompile(`(?is)\b(query|json_execute_serialized_sql|(?:en|dis)able_(?:logging|profil\w*|peg_parser))\b"?` +
	`(?:[^\x21-\x7e]|/\*.*?\*/|--[^\n\r]*[\n\r])*\(`)

// Forbidden describes a call that users' SQL must not contain.
type Forbidden struct {
	At              int // the offset in the text
	Message, Action string
}

// FindForbidden returns the first call of a function that users' SQL must not call, or nil. These functions
//   - end the process: if DuckDB cannot write the log file of enable_logging, it ends the process;
//   - write files: enable_profiling replaces a file in any folder that the sandbox allows;
//   - change how DuckDB parses later statements: enable_peg_parser;
//   - execute generated SQL, which could call one of the others: query and json_execute_serialized_sql.
func FindForbidden(sql string) *Forbidden {
	at := forbiddenCall.FindStringSubmatchIndex(code(sql))
	if at == nil {
		return nil
	}
	name, action := strings.ToLower(sql[at[2]:at[3]]), "remove the call"
	if name == "query" {
		action = "write the SQL itself"
	}
	return &Forbidden{at[2], "a query may not call " + name + "()", action}
}

// code replaces comments and literals by spaces, one for each byte. It returns the text itself if Token could misread
// it.
func code(sql string) string {
	if HasUnicodeSpace(sql) {
		return sql
	}
	out := []byte(sql)
	for i := 0; i < len(sql); {
		end, blank := Token(sql, i)
		if blank || sql[i] == '\'' || end > i+1 && sql[i] == '$' {
			for j := i; j < end; j++ {
				out[j] = ' '
			}
		}
		i = end
	}
	return string(out)
}
