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

// DuckDB reports its errors as JSON (the setting errors_as_json): with the kind of the
// error, the message and a position in the statement.

// queryError is an error of DuckDB.
type queryError struct {
	// kind is DuckDB's name for the error: Binder, Conversion, Out of Memory.
	kind    string
	message string
	// position is where the error is in the statement, in bytes; -1: unknown.
	position int
	// place is "file:line:column: ", and snippet shows the line, where they are known.
	place, snippet string
}

// Error implements error, in DuckDB's words.
func (e *queryError) Error() string {
	text := e.place + e.kind + " Error: " + e.message
	if e.snippet != "" {
		text += "\n\n" + e.snippet
	}
	return text
}

// asQueryError reads an error of DuckDB about a statement.
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
	e := &queryError{kind: fields.Kind, message: strings.TrimRight(fields.Message, "\n"), position: -1}
	if position, err := strconv.Atoi(fields.Position); err == nil {
		e.position = position
		if e.kind == kindParser || e.kind == kindSyntax { // these count characters
			e.position = byteOffset(statement, position)
		}
	}
	return e, true
}

// byteOffset is where a character of a text starts.
func byteOffset(text string, characters int) int {
	for i := range text {
		if characters <= 0 {
			return i
		}
		characters--
	}
	return len(text)
}

// Kinds of errors that are handled apart from others.
const (
	kindParser     = "Parser"
	kindSyntax     = "Syntax"
	kindPermission = "Permission"
	kindMemory     = "Out of Memory"
	kindConversion = "Conversion"
)

// final reports whether a query fails with this error however often it is run.
func (e *queryError) final() bool {
	return slices.Contains([]string{kindParser, kindSyntax, "Binder", "Catalog", kindPermission, "Not implemented"}, e.kind)
}

// statement is what DuckDB executes for the user's query: the query with its paths made
// absolute, and text of our own around it.
type statement struct {
	text string
	// start and length are where the query is in the text.
	start, length int
	query         *resolvedQuery
}

// resolvedQuery is a query whose paths are absolute.
type resolvedQuery struct {
	text string
	// written is the query as the user wrote it; edits are what was put into it, by offset.
	written string
	edits   []edit
	// paths are the files that it names by literals; reads says that it may read files that
	// are not its inputs.
	paths []string
	reads bool
}

// within puts text around the query.
func (q *resolvedQuery) within(before, after string) statement {
	return statement{before + q.text + after, len(before), len(q.text), q}
}

// within puts more text around the statement.
func (s *statement) within(before, after string) statement {
	return statement{before + s.text + after, len(before) + s.start, s.length, s.query}
}

// origin is the offset in the user's query of a position in the statement; -1: it is
// outside of the query.
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

// explain adds to an error about the statement where it is in the user's file.
func (s *statement) explain(err error, source plan.Source) error {
	e, ok := asQueryError(err, s.text)
	if !ok {
		return err
	}
	located := *e
	located.position = -1
	offset := s.origin(e.position)
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

// snippetWidth is how much of a long line a snippet shows, in characters.
const snippetWidth = 120

// locate finds the line and column in the file of an offset in its query, and shows the line
// with a mark below the place.
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
			return ' ' // the mark below counts columns
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
