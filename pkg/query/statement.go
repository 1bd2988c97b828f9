package query

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/duckdb/duckdb-go/v2"
)

// permit returns the kind of a statement, as DuckDB reports it. It returns an error unless the statement only reads,
// or only changes data in memory.
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
	case duckdb.STATEMENT_TYPE_EXPLAIN: // EXPLAIN ANALYZE executes the explained statement
		return kind, permitWords(sql)
	default:
		return kind, refusal()
	}
}

// changes reports whether a kind of statement is executed for its effect, and not for its rows.
func changes(kind duckdb.StmtType) bool {
	switch kind {
	case duckdb.STATEMENT_TYPE_SELECT, duckdb.STATEMENT_TYPE_EXPLAIN, duckdb.STATEMENT_TYPE_RELATION:
		return false
	default:
		return true
	}
}

// Statements splits SQL into statements, to be run one by one.
func Statements(sql string) []string { return split(sql) }

// permitText rejects dangerous SQL that permit cannot recognize by the kind of the statement. A SELECT can enable
// DuckDB's logging, which ends the process if the log file is not writable. query() and json_execute_serialized_sql
// execute generated SQL, which could also enable it. permitText rejects these words everywhere, even in string
// literals.
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
	return errors.New("queries are read-only: COPY, EXPORT, ATTACH, PREPARE, CALL, PRAGMA and similar statements are rejected: " +
		"to write a result to a file, use the output format csv or json")
}

// permitWords checks statements whose kind DuckDB does not report, so that permit cannot check them. It rejects the
// keywords of statements that write, even in string literals.
func permitWords(sql string) error {
	words := regexp.MustCompile(`(?i)\b(copy|export|import|attach|detach|prepare|execute|install|load|call|pragma|checkpoint|vacuum)\b`)
	if words.MatchString(sql) {
		return refusal()
	}
	return nil
}

// isCompound reports whether an error means that DuckDB expands the statement into several. The driver has no error
// value for this case, so isCompound compares the message.
func isCompound(err error) bool {
	return strings.Contains(err.Error(), "missing context for multi-statement query")
}

// split splits SQL at the semicolons outside of string literals, quoted names and comments. If it splits at a wrong
// semicolon, the query fails: DuckDB rejects a piece that is not a complete statement.
func split(sql string) []string {
	var statements []string
	start := 0
	substance := false // the statement has something other than space and comments
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

// skip returns the end of the token at position i, and whether the token is blank: white space or a comment.
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

// upTo returns the length of text up to the end of the first mark that begins at the position from or later. Without
// such a mark, it returns the length of text.
func upTo(text, mark string, from int) int {
	if at := strings.Index(text[from:], mark); at >= 0 {
		return from + at + len(mark)
	}
	return len(text)
}

// comment returns the length of a comment. Comments can be nested.
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

// quoted returns the length of a quoted text. A doubled quotation mark does not end the text.
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
