package query

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/servo-orchestration/servo/pkg/sqltext"
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

// hasEffect reports whether a kind of statement is executed for its effect, and not for its rows.
func hasEffect(kind duckdb.StmtType) bool {
	switch kind {
	case duckdb.STATEMENT_TYPE_SELECT, duckdb.STATEMENT_TYPE_EXPLAIN, duckdb.STATEMENT_TYPE_RELATION:
		return false
	default:
		return true
	}
}

// Statements splits SQL into statements, to be run one by one.
func Statements(sql string) []string { return split(sql) }

// Complete reports whether the last statement of a SQL text ends with a semicolon, which only spaces and comments may
// follow. A semicolon within a literal or a comment ends no statement.
func Complete(sql string) bool {
	const mark = "\nx" // if the text has an open literal or comment, the token of the x begins before the x
	text := sql + mark
	ended := false
	for i := 0; i < len(text); {
		end, blank := sqltext.Token(text, i)
		switch {
		case end == len(text):
			return ended && i == end-1
		case !blank:
			ended = text[i] == ';'
		}
		i = end
	}
	return false
}

// permitText rejects dangerous SQL that the function permit accepts. permit knows only the kind of a statement, but
// even a SELECT can call functions that end the process or write files.
func permitText(sql string) error {
	if found := sqltext.FindForbidden(sql); found != nil {
		return fmt.Errorf("%s: %s", found.Message, found.Action)
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
		end, blank := sqltext.Token(sql, i)
		substance = substance || !blank
		i = end
	}
	if substance {
		statements = append(statements, sql[start:])
	}
	return statements
}
