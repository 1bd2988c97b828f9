// Package duckparse finds the tables that queries read. It uses DuckDB's own parser, so that it accepts the same
// queries as the workers' DuckDB. It executes nothing. This package is not a stable API.
package duckparse

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	_ "github.com/duckdb/duckdb-go/v2" // registers the driver

	"github.com/servo-orchestration/servo/pkg/project"
	"github.com/servo-orchestration/servo/pkg/sqltext"
)

// Parser is an in-memory DuckDB that only parses. The caller must close it.
type Parser struct {
	db *sql.DB
}

// Open returns a new Parser.
func Open(ctx context.Context) (*Parser, error) {
	db, err := sql.Open("duckdb", "")
	if err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", err)
	}
	db.SetMaxOpenConns(1)
	// Parsing reads no files, so the database needs no file access.
	if _, err := db.ExecContext(ctx, "SET enable_external_access = false; SET threads = 1; SET lock_configuration = true"); err != nil {
		return nil, errors.Join(fmt.Errorf("set up DuckDB: %w", err), db.Close())
	}
	return &Parser{db: db}, nil
}

// Version identifies DuckDB's parser. Parsers of the same version return the same trees for a query.
const Version = "DuckDB v1.5.6"

// Close closes the database.
func (p *Parser) Close() error { return p.db.Close() }

// parseAll parses a list of queries, and returns a row for each. This is five times faster than one statement per
// query.
const parseAll = `
SELECT json_serialize_sql(query, skip_null := true, skip_empty := false)::VARCHAR
FROM (SELECT unnest($1::VARCHAR[]) AS query, generate_subscripts($1::VARCHAR[], 1) AS i)
ORDER BY i`

// Parse is a [project.SQLParser].
func (p *Parser) Parse(ctx context.Context, queries []string) (parsed []project.Parsed, err error) {
	err = p.serialize(ctx, queries, func(i int, text string) { parsed = append(parsed, convert(queries[i], text)) })
	if err != nil {
		return nil, err
	}
	return parsed, nil
}

// serialize calls use with the syntax tree of each query, in the order of the queries.
func (p *Parser) serialize(ctx context.Context, queries []string, use func(i int, text string)) (err error) {
	rows, err := p.db.QueryContext(ctx, parseAll, queries)
	if err != nil {
		return fmt.Errorf("parse with DuckDB: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	n := 0
	for ; rows.Next(); n++ {
		var text string
		if err := rows.Scan(&text); err != nil {
			return fmt.Errorf("read DuckDB's syntax trees: %w", err)
		}
		if n < len(queries) {
			use(n, text)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("parse with DuckDB: %w", err)
	}
	if n != len(queries) {
		return fmt.Errorf("parse with DuckDB: got %d results for %d queries", n, len(queries))
	}
	return nil
}

// answer is the result of json_serialize_sql.
type answer struct {
	Error        bool             `json:"error"`
	ErrorType    string           `json:"error_type"`
	ErrorMessage string           `json:"error_message"`
	Position     json.Number      `json:"position"`
	Statements   []map[string]any `json:"statements"`
}

// convert returns the result for one query, from the answer of DuckDB.
func convert(query, text string) project.Parsed {
	var a answer
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber() // a float64 would round 2^64 - 1, which means "no position"
	if err := decoder.Decode(&a); err != nil {
		return bad(0, fmt.Sprintf("cannot read the syntax tree: %v", err))
	}
	switch {
	case a.Error && a.ErrorType == "not implemented":
		return bad(0, "must be a single SELECT (a PIVOT must name its values: PIVOT … ON … IN (…))")
	case a.Error:
		return bad(byteOffset(query, offset(a.Position)), a.ErrorMessage)
	case len(a.Statements) == 0:
		return bad(0, "no statement: write one SELECT")
	case len(a.Statements) > 1:
		second := walker{}
		second.walk(a.Statements[1], nil)
		return bad(max(second.first-1, 0), fmt.Sprintf("found %d statements; an asset is one SELECT", len(a.Statements)))
	}
	w := walker{}
	w.walk(a.Statements[0], nil)
	if w.hidden > 0 {
		return bad(w.hidden-1, "query() hides the tables that it reads: write its query in parentheses instead")
	}
	if found := sqltext.FindForbidden(query); found != nil {
		return bad(found.At, found.Message+": "+found.Action)
	}
	slices.SortStableFunc(w.refs, func(a, b project.Ref) int { return cmp.Compare(a.Offset, b.Offset) })
	var l lookbacks
	l.walk(a.Statements[0], nil, nil)
	slices.SortStableFunc(l.found, func(a, b project.Lookback) int { return cmp.Compare(a.Offset, b.Offset) })
	result := resultColumns(object(a.Statements[0]["node"]), nil, nil)
	slices.SortFunc(w.variables, func(a, b project.Variable) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Name, b.Name))
	})
	return project.Parsed{Refs: w.refs, Lookbacks: l.found, Output: result.output(), Variables: w.variables, Tree: treeOf(a.Statements[0]), Files: w.files}
}

func bad(offset int, message string) project.Parsed {
	return project.Parsed{Bad: &project.SyntaxError{Offset: offset, Message: message}}
}

// offset parses a position in bytes. It returns -1 if there is none.
func offset(n json.Number) int {
	if i, err := n.Int64(); err == nil {
		return int(i)
	}
	return -1
}

// byteOffset returns the byte offset of a character. DuckDB counts characters in the positions of errors, and bytes
// in syntax trees.
func byteOffset(text string, characters int) int {
	for i := range text {
		if characters <= 0 {
			return i
		}
		characters--
	}
	return len(text)
}

// scope is a list of the names that WITH clauses define, the innermost first.
type scope struct {
	name string
	next *scope
}

func (s *scope) has(name string) bool {
	for ; s != nil; s = s.next {
		if strings.EqualFold(s.name, name) {
			return true
		}
	}
	return false
}

// walker walks a syntax tree.
type walker struct {
	refs      []project.Ref
	variables []project.Variable
	files     []string
	first     int // the lowest position, counted from 1; 0: none
	hidden    int // the position of a call of query(), counted from 1; 0: none
}

func (w *walker) walk(v any, s *scope) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			w.walk(item, s)
		}
	case map[string]any:
		w.node(v, s)
	}
}

func (w *walker) node(n map[string]any, s *scope) {
	at := -1
	if position, ok := n["query_location"].(json.Number); ok {
		at = offset(position)
	}
	if at >= 0 && (w.first == 0 || at+1 < w.first) {
		w.first = at + 1
	}
	switch kind, _ := n["type"].(string); kind {
	case "BASE_TABLE":
		w.table(n, at, s)
	case "TABLE_FUNCTION":
		w.file(object(n["function"]))
		if word(object(n["function"])["function_name"]) == "query" && w.hidden == 0 {
			w.hidden = max(at, 0) + 1
		}
	case "FUNCTION":
		if args := array(n["children"]); word(n["function_name"]) == "getvariable" && len(args) == 1 {
			w.variables = append(w.variables, project.Variable{Name: strings.ToLower(text(args[0])), Offset: at})
		}
	case "RECURSIVE_CTE_NODE", "CTE_NODE":
		if name, ok := n["cte_name"].(string); ok {
			s = &scope{name, s}
		}
	}
	s = w.walkWith(n["cte_map"], s)
	for key, child := range n {
		if key != "cte_map" {
			w.walk(child, s)
		}
	}
}

// walkWith walks the queries of a WITH clause. Each query sees the tables that the preceding ones define. The returned
// scope is the scope of the statement after the clause.
func (w *walker) walkWith(v any, s *scope) *scope {
	ctes, _ := v.(map[string]any)
	entries, _ := ctes["map"].([]any)
	for _, e := range entries {
		entry, _ := e.(map[string]any)
		w.walk(entry["value"], s)
		if name, ok := entry["key"].(string); ok {
			s = &scope{name, s}
		}
	}
	return s
}

func (w *walker) table(n map[string]any, at int, s *scope) {
	ref := tableRef(n)
	ref.Offset = at
	if ref.Catalog == "" && ref.Schema == "" && s.has(ref.Table) {
		return
	}
	w.refs = append(w.refs, ref)
}

// tableRef returns the name of a table in FROM.
func tableRef(n map[string]any) project.Ref {
	return project.Ref{Catalog: word(n["catalog_name"]), Schema: word(n["schema_name"]), Table: word(n["table_name"])}
}
