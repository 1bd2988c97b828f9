package worker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/duckdb/duckdb-go/v2"

	"github.com/servo-orchestration/servo/pkg/plan"
)

// With the setting errors_as_json, DuckDB returns its errors as JSON: kind, message and position in
// the statement.

// queryError is an error of DuckDB.
type queryError struct {
	// kind is DuckDB's error type, such as Binder, Conversion or Out of Memory.
	kind    string
	message string
	// position is the byte offset of the error in the statement; -1: unknown.
	position int
	// place is "file:line:column: ", and snippet shows the line. If the place is unknown, both are empty.
	place, snippet string
}

// Error formats the error as DuckDB does.
func (e *queryError) Error() string {
	text := e.place + e.kind + " Error: " + e.message
	if e.snippet != "" {
		text += "\n\n" + e.snippet
	}
	return text
}

// asQueryError converts an error of DuckDB, and reports whether err is one.
func asQueryError(err error, statement string) (*queryError, bool) {
	if known, ok := errors.AsType[*queryError](err); ok {
		return known, true
	}
	of, ok := errors.AsType[*duckdb.Error](err)
	if !ok {
		return nil, false
	}
	var fields struct {
		Kind     string `json:"exception_type"`
		Message  string `json:"exception_message"`
		Position string `json:"position"`
	}
	at := strings.IndexByte(of.Msg, '{')
	if at < 0 || json.Unmarshal([]byte(of.Msg[at:]), &fields) != nil || fields.Kind == "" {
		kind, message, found := strings.Cut(of.Msg, " Error: ")
		if !found {
			kind, message = "DuckDB", of.Msg
		}
		return &queryError{kind: kind, message: message, position: -1}, true
	}
	e := &queryError{kind: fields.Kind, message: withoutExtensionAdvice(strings.TrimRight(fields.Message, "\n")), position: -1}
	if position, err := strconv.Atoi(fields.Position); err == nil {
		e.position = position
		if e.kind == kindParser || e.kind == kindSyntax { // for these errors, DuckDB counts characters instead of bytes
			e.position = byteOffset(statement, position)
		}
	}
	return e, true
}

// loadWithCommand is advice for data that no query can read.
const loadWithCommand = "load the data with a command, which writes Parquet, CSV or JSON files, and select from its asset"

// withoutExtensionAdvice replaces DuckDB's advice to install or load an extension. A user cannot follow this advice,
// because queries run without network and with a locked configuration.
func withoutExtensionAdvice(message string) string {
	message, _, found := strings.Cut(message, "\n\nPlease try installing")
	if !found {
		return message
	}
	return strings.TrimSuffix(message, ".") + "\n\nThe query cannot use this extension: " + loadWithCommand
}

// remoteFile reports whether DuckDB has refused to read a URL.
func remoteFile(message string) bool {
	_, rest, found := strings.Cut(message, "Cannot access file \"")
	name, _, _ := strings.Cut(rest, "\"")
	return found && strings.Contains(name, "://")
}

// byteOffset returns the byte offset of the n-th character of a text.
func byteOffset(text string, characters int) int {
	for i := range text {
		if characters <= 0 {
			return i
		}
		characters--
	}
	return len(text)
}

// Error types that are handled specially.
const (
	kindParser     = "Parser"
	kindSyntax     = "Syntax"
	kindPermission = "Permission"
	kindMemory     = "Out of Memory"
	kindConversion = "Conversion"
)

// final reports whether the error is permanent, so that a retry of the query would fail in the same way.
func (e *queryError) final() bool {
	return slices.Contains([]string{kindParser, kindSyntax, "Binder", "Catalog", kindPermission, "Not implemented"}, e.kind)
}

// statement is the SQL that DuckDB executes: the user's query with absolute paths, and the text that the worker adds
// before and after it.
type statement struct {
	text string
	// start and length locate the query in the text, in bytes.
	start, length int
	query         *resolvedQuery
}

// resolvedQuery is a query with absolute paths.
type resolvedQuery struct {
	text string
	// written is the query as the user wrote it. edits are the insertions into that query, in order of their offsets.
	written string
	edits   []edit
	// paths are the files that the query names in literals. The field reads is true if the query may read files that are
	// not its inputs.
	paths []string
	reads bool
	// literals are the paths and URLs that are complete literals of the query, and not only the beginning of an
	// expression. tables are the tables with a schema that the query reads, in lower case.
	literals []literal
	tables   []string
}

// literal is a path in a query, and its offset in bytes.
type literal struct {
	path string
	at   int
}

// within returns the query with text before and after it.
func (q *resolvedQuery) within(before, after string) statement {
	return statement{before + q.text + after, len(before), len(q.text), q}
}

// description returns the statement that describes the columns of the query. The brackets make further statements
// after the query a syntax error.
func (q *resolvedQuery) description() statement { return q.within("DESCRIBE (", "\n)") }

// within returns the statement with text before and after it.
func (s *statement) within(before, after string) statement {
	return statement{before + s.text + after, len(before) + s.start, s.length, s.query}
}

// origin converts a position in the statement to an offset in the user's query. It returns -1 if the position is
// outside the query.
func (s *statement) origin(position int) int {
	at := position - s.start
	if position < 0 || at < 0 || at > s.length {
		return -1
	}
	shift := 0
	for _, e := range s.query.edits {
		if at < e.at+shift {
			break
		}
		if at < e.at+shift+len(e.text) {
			return e.at
		}
		shift += len(e.text)
	}
	return min(at-shift, len(s.query.written))
}

// literalIn returns the index of the literal whose path an error message contains in quotes, or -1.
func (q *resolvedQuery) literalIn(message string) int {
	if q == nil {
		return -1
	}
	return slices.IndexFunc(q.literals, func(l literal) bool { return strings.Contains(message, `"`+l.path+`"`) })
}

// explain adds the position in the user's file to an error about the statement.
func (s *statement) explain(err error, source plan.Source) error {
	e, ok := asQueryError(err, s.text)
	if !ok {
		return err
	}
	located := *e
	located.position = -1
	offset := s.origin(e.position)
	if i := s.query.literalIn(e.message); offset < 0 && i >= 0 {
		offset = s.query.literals[i].at
	}
	if offset < 0 {
		if source.File != "" {
			located.place = source.File + ": "
		}
		return &located
	}
	line, column, snippet := locate(s.query.written, offset, source)
	located.snippet = snippet
	if source.File != "" {
		located.place = fmt.Sprintf("%s:%d:%d: ", source.File, line, column)
	}
	return &located
}

// snippetWidth is the maximum length of a snippet, in characters.
const snippetWidth = 120

// locate converts an offset in the query to the line and the column in the source file. It also returns a snippet
// that marks the position.
func locate(query string, offset int, source plan.Source) (line, column int, snippet string) {
	start := strings.LastIndexByte(query[:offset], '\n') + 1
	text, _, _ := strings.Cut(query[start:], "\n")
	before := utf8.RuneCountInString(query[start:offset])
	line = cmp.Or(source.Line, 1) + strings.Count(query[:offset], "\n")
	column = before + 1
	if start == 0 {
		column += max(source.Column-1, 0)
	}
	shown := []rune(strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' ' // a tab would move the mark
		}
		return r
	}, strings.TrimRight(text, "\r")))
	if from := before - snippetWidth/2; from > 0 && len(shown) > snippetWidth {
		shown, before = append([]rune("…"), shown[from:]...), before-from+1
	}
	if len(shown) > snippetWidth {
		shown = append(shown[:snippetWidth], '…')
	}
	prefix := fmt.Sprintf("LINE %d: ", line)
	return line, column, prefix + string(shown) + "\n" + strings.Repeat(" ", len(prefix)+before) + "^"
}
