package query

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/duckdb/duckdb-go/v2"
)

// permit lets a statement run that reads, or that changes only what is in
// memory. DuckDB itself says what kind of statement it is.
func permit(statement *duckdb.Stmt, sql string) (duckdb.StmtType, error) {
	kind, err := statement.StatementType()
	if err != nil {
		return kind, err
	}
	switch kind {
	case duckdb.STATEMENT_TYPE_SELECT, duckdb.STATEMENT_TYPE_INSERT, duckdb.STATEMENT_TYPE_UPDATE,
		duckdb.STATEMENT_TYPE_DELETE, duckdb.STATEMENT_TYPE_CREATE, duckdb.STATEMENT_TYPE_CREATE_FUNC,
		duckdb.STATEMENT_TYPE_ALTER, duckdb.STATEMENT_TYPE_DROP, duckdb.STATEMENT_TYPE_TRANSACTION,
		duckdb.STATEMENT_TYPE_SET, duckdb.STATEMENT_TYPE_VARIABLE_SET, duckdb.STATEMENT_TYPE_RELATION:
		return kind, nil
	case duckdb.STATEMENT_TYPE_EXPLAIN: // EXPLAIN ANALYZE runs what it explains
		return kind, permitWords(sql)
	default:
		return kind, refusal()
	}
}

// changes reports whether a kind of statement is there for what it does, and not for its
// rows.
func changes(kind duckdb.StmtType) bool {
	switch kind {
	case duckdb.STATEMENT_TYPE_SELECT, duckdb.STATEMENT_TYPE_EXPLAIN, duckdb.STATEMENT_TYPE_RELATION:
		return false
	default:
		return true
	}
}

// Statements cuts SQL into its statements, to be run one by one.
func Statements(sql string) []string { return split(sql) }

// permitText refuses, before DuckDB sees it, what no kind of statement tells
// apart: turning DuckDB's logging on, which a SELECT can, ends the process when
// the log's file may not be written; and what runs SQL that another expression
// made, which could hide just that. The words are refused even as plain text.
func permitText(sql string) error {
	logging := regexp.MustCompile(`(?i)enable_logging|json_execute_serialized_sql|u&["']`)
	dynamic := regexp.MustCompile(`(?is)\bquery\b"?(\s|/\*.*?\*/|--[^\n]*\n)*\(`)
	if found := logging.FindString(sql); found != "" {
		return fmt.Errorf("a query may not use %s", found)
	}
	if dynamic.MatchString(sql) {
		return errors.New("a query may not call query(): write the SQL itself")
	}
	return nil
}

func refusal() error {
	return errors.New("a query only reads: COPY, EXPORT, ATTACH, PREPARE, CALL, PRAGMA and the like are refused; " +
		"to write a result to a file, use the output format csv or json")
}

// permitWords is permit for what DuckDB does not tell the kind of: it refuses
// the words of a statement that writes, even where they are only text.
func permitWords(sql string) error {
	words := regexp.MustCompile(`(?i)\b(copy|export|import|attach|detach|prepare|execute|install|load|call|pragma|checkpoint|vacuum)\b`)
	if words.MatchString(sql) {
		return refusal()
	}
	return nil
}

// isCompound reports that DuckDB took one statement for several. The driver has
// no error value for it.
func isCompound(err error) bool {
	return strings.Contains(err.Error(), "missing context for multi-statement query")
}

// split cuts SQL at the semicolons that are not in text, names or comments.
// Where it errs DuckDB refuses the pieces, since each must be one statement.
func split(sql string) []string {
	var statements []string
	start := 0
	substance := false // something other than space and comments
	for i := 0; i < len(sql); {
		if sql[i] == ';' {
			if substance {
				statements = append(statements, sql[start:i])
			}
			i++
			start, substance = i, false
			continue
		}
		end, blank := skip(sql, i)
		substance = substance || !blank
		i = end
	}
	if substance {
		statements = append(statements, sql[start:])
	}
	return statements
}

// skip is the end of the token at i, and whether it means nothing.
func skip(sql string, i int) (end int, blank bool) {
	rest := sql[i:]
	switch {
	case strings.HasPrefix(rest, "--"):
		return i + upTo(rest, "\n", 2), true
	case strings.HasPrefix(rest, "/*"):
		return i + comment(rest), true
	case rest[0] == '\'':
		escapes := i > 0 && (sql[i-1] == 'e' || sql[i-1] == 'E') && (i == 1 || !isWord(sql[i-2]))
		return i + quoted(rest, '\'', escapes), false
	case rest[0] == '"':
		return i + quoted(rest, '"', false), false
	case rest[0] == '$' && (i == 0 || !isWord(sql[i-1])):
		if tag := regexp.MustCompile(`^\$([A-Za-z_][A-Za-z0-9_]*)?\$`).FindString(rest); tag != "" {
			return i + upTo(rest, tag, len(tag)), false
		}
	}
	return i + 1, strings.TrimSpace(rest[:1]) == ""
}

// upTo is the length of text through the next mark after from.
func upTo(text, mark string, from int) int {
	if at := strings.Index(text[from:], mark); at >= 0 {
		return from + at + len(mark)
	}
	return len(text)
}

// comment is the length of a comment, which may hold others.
func comment(text string) int {
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

// quoted is the length of a quoted text, whose quote doubled is itself.
func quoted(text string, quote byte, escapes bool) int {
	for i := 1; i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\':
			i++
		case text[i] == quote && i+1 < len(text) && text[i+1] == quote:
			i++
		case text[i] == quote:
			return i + 1
		}
	}
	return len(text)
}

func isWord(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= 0x80
}
