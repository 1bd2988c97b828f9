package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/sqltext"
)

// Queries name files relative to the project. DuckDB resolves relative paths against the working directory of the
// process, which is the same for all projects of a server. DuckDB's setting file_search_path does not help, because
// DuckDB's sandbox rejects the files that are found through it. Therefore the worker makes paths absolute in the
// query's text. It finds the paths with DuckDB's own parser. They are the first arguments of functions that read
// files, and file names that are used as tables.

// edit is an insertion into a query.
type edit struct {
	at   int // byte offset
	text string
}

// resolvePaths returns the query with absolute paths below root. If DuckDB cannot serialize a query, for example one
// with PIVOT, the query stays unchanged and is assumed to read files. All SQL of users passes through resolvePaths, so
// it also rejects calls of functions that end the process or write files.
func (d *database) resolvePaths(ctx context.Context, query, root string, source plan.Source) (*resolvedQuery, error) {
	asWritten := &resolvedQuery{text: query, written: query}
	reject := func(message string, at int) error {
		s := asWritten.within("", "")
		return sqlFailure(s.explain(&queryError{kind: kindParser, message: message, position: at}, source))
	}
	if found := sqltext.FindForbidden(query); found != nil {
		return nil, reject(found.Message+": "+found.Action, found.At)
	}
	var tree string
	row := d.conn.QueryRowContext(ctx, "SELECT CAST(json_serialize_sql(CAST($1 AS VARCHAR)) AS VARCHAR)", query)
	if err := row.Scan(&tree); err != nil {
		return nil, sqlFailure(fmt.Errorf("parse the query: %w", err))
	}
	var parsed struct {
		Error      bool        `json:"error"`
		Kind       string      `json:"error_type"`
		Message    string      `json:"error_message"`
		Position   json.Number `json:"position"`
		Statements []any       `json:"statements"`
	}
	if err := json.Unmarshal([]byte(tree), &parsed); err != nil {
		return nil, fail(CodeWorker, CategoryInfrastructure, fmt.Errorf("parse the query: %w", err))
	}
	if position, err := parsed.Position.Int64(); parsed.Error && err == nil && (parsed.Kind == "parser" || parsed.Kind == "syntax") {
		return nil, reject(parsed.Message, byteOffset(query, int(position)))
	}
	if parsed.Error {
		asWritten.reads = true
		return asWritten, nil // if the query is wrong, its execution returns a better error
	}
	if n := len(parsed.Statements); n != 1 {
		return nil, permanent(CodeSQL, "an asset's query must be a single SELECT, got %d statements", n)
	}
	if root == "" {
		return asWritten, nil
	}
	r := resolver{query: query, root: root}
	r.walk(parsed.Statements[0])
	text, edits := r.apply()
	return &resolvedQuery{
		text: text, written: query, edits: edits, paths: r.paths, reads: r.reads, literals: r.literals, tables: r.tables,
	}, nil
}

type resolver struct {
	query, root string
	edits       []edit
	paths       []string
	reads       bool
	literals    []literal
	tables      []string
}

// walk collects the paths in a parse tree.
func (r *resolver) walk(node any) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			r.walk(child)
		}
	case map[string]any:
		switch n["type"] {
		case "TABLE_FUNCTION":
			r.function(n["function"])
		case "BASE_TABLE":
			name, _ := n["table_name"].(string)
			if n["schema_name"] == "" && n["catalog_name"] == "" {
				r.reads = r.reads || strings.ContainsAny(name, "./")
				r.path(n["query_location"], name, looksLikeFile(name))
			} else if schema, ok := n["schema_name"].(string); ok {
				r.tables = append(r.tables, strings.ToLower(schema+"."+name))
			}
		case "SHOW_REF":
			r.reads = true // the parse tree of SUMMARIZE 'data/x.csv' has no table node with the name of the file
		}
		for _, child := range n {
			r.walk(child)
		}
	}
}

// function handles a table function, such as read_csv.
func (r *resolver) function(node any) {
	call, _ := node.(map[string]any)
	name, _ := call["function_name"].(string)
	name = strings.ToLower(name)
	r.reads = r.reads || !slices.Contains([]string{"range", "generate_series", "unnest", "repeat", "repeat_row"}, name)
	if !strings.HasPrefix(name, "read_") && !strings.HasPrefix(name, "parquet_") && name != "sniff_csv" && name != "glob" {
		return
	}
	if arguments, _ := call["children"].([]any); len(arguments) > 0 {
		r.argument(arguments[0], true)
	}
}

// argument handles a path argument: a string, a list of strings, or an expression that begins with a string. The
// parameter whole is false if the string may be only the beginning of a path.
func (r *resolver) argument(node any, whole bool) {
	n, _ := node.(map[string]any)
	children, _ := n["children"].([]any)
	switch {
	case n["type"] == "VALUE_CONSTANT":
		value, _ := n["value"].(map[string]any)
		text, _ := value["value"].(string)
		r.path(n["query_location"], text, whole)
	case n["function_name"] == "list_value":
		for _, child := range children {
			r.argument(child, whole)
		}
	case len(children) > 0 && slices.Contains([]any{"||", "concat", "format", "printf"}, n["function_name"]):
		r.argument(children[0], false)
	}
}

// path makes a relative path absolute by inserting the root after the opening quote of its literal.
func (r *resolver) path(location any, path string, whole bool) {
	at, ok := location.(float64)
	if filepath.IsAbs(path) {
		r.add(path, int(at), whole)
		return
	}
	if !ok || at < 0 || int(at) >= len(r.query) || path == "" {
		return
	}
	if strings.Contains(path, "://") {
		if whole {
			r.literals = append(r.literals, literal{path, int(at)}) // if the path is a URL, binding rejects it
		}
		return
	}
	rest := r.query[int(at):]
	full := strings.TrimSuffix(r.root, "/") + "/" + path // as errors of DuckDB name it, with ".."
	prefix := strings.TrimSuffix(full, path)
	switch {
	case strings.HasPrefix(rest, quote(path)):
		prefix = strings.ReplaceAll(prefix, "'", "''")
	case strings.HasPrefix(rest, quoteName(path)) && looksLikeFile(path):
		prefix = strings.ReplaceAll(prefix, `"`, `""`)
	default:
		return // a table name, or a literal in another notation
	}
	r.edits = append(r.edits, edit{int(at) + 1, prefix})
	r.add(full, int(at), whole)
}

func (r *resolver) add(path string, at int, whole bool) {
	r.paths = append(r.paths, filepath.Clean(path))
	if whole {
		r.literals = append(r.literals, literal{path, at})
	}
}

// looksLikeFile reports whether a quoted name is a file, such as "data/x.csv", and not a table whose name needs
// quotes.
func looksLikeFile(name string) bool {
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	return slices.Contains([]string{".csv", ".tsv", ".parquet", ".json", ".jsonl", ".ndjson"}, filepath.Ext(name))
}

// apply returns the query with all edits applied, and these edits, sorted and without duplicates.
func (r *resolver) apply() (string, []edit) {
	slices.SortFunc(r.edits, func(a, b edit) int { return a.at - b.at })
	edits := slices.Compact(r.edits)
	var b strings.Builder
	from := 0
	for _, e := range edits {
		b.WriteString(r.query[from:e.at])
		b.WriteString(e.text)
		from = e.at
	}
	b.WriteString(r.query[from:])
	return b.String(), edits
}
