package duckparse

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// frame describes the rows of a FROM clause. An id identifies a value in a row: it is the text of the expression that
// computes the value, with the full names of its columns. Expressions with the same id have the same value in a row.
// In a subquery, an id that begins with ^ belongs to the query that contains the subquery.
type frame struct {
	tables []namedRows
	fixed  bool
	// keys are the ids of values that are the partition of a row. times are the ids of instants within the period of
	// this partition.
	keys, times map[string]bool
	merged      map[string]bool // the columns that USING merges
	coalesced   map[string]bool // pairs of ids; each row of a full join has a value for at least one of the two
	outer       *frame          // the frame of the query that contains a subquery
	with        *withRows
}

type namedRows struct {
	alias string // in lower case
	rows  *rows
}

// newFrame returns the frame of one table.
func newFrame(alias string, r *rows) *frame {
	f := &frame{tables: []namedRows{{strings.ToLower(alias), r}}, fixed: r.fixed, keys: map[string]bool{}, times: map[string]bool{}}
	for name := range r.keys {
		f.keys[f.tables[0].alias+"."+name] = true
	}
	for name := range r.times {
		f.times[f.tables[0].alias+"."+name] = true
	}
	return f
}

func (f *frame) has(alias string) bool {
	return slices.ContainsFunc(f.tables, func(t namedRows) bool { return t.alias == alias })
}

// owns reports whether an id is a column of one of the tables.
func (f *frame) owns(id string) bool {
	alias, _, ok := strings.Cut(id, ".")
	return ok && f.has(alias)
}

// column returns the id of a column, or "" if it is unknown.
func (f *frame) column(names []string) string {
	column := strings.ToLower(names[len(names)-1])
	if len(names) > 1 {
		alias, above := strings.ToLower(names[len(names)-2]), ""
		for s := f; s != nil; s = s.outer {
			if s.has(alias) {
				return above + alias + "." + column
			}
			above += "^"
		}
		return ""
	}
	if f.merged[column] {
		return "." + column
	}
	for _, t := range f.tables {
		if t.rows.keys[column] || t.rows.times[column] {
			return t.alias + "." + column
		}
	}
	switch {
	case len(f.tables) == 1:
		return f.tables[0].alias + "." + column
	case len(f.tables) == 0 && f.outer != nil:
		return "^" + f.outer.column(names)
	}
	return "?." + column
}

// star adds the columns of a * to the result r. listed describes the columns that the SELECT list has so far.
func (f *frame) star(item map[string]any, r *rows, taken map[string]bool, listed *columns) {
	if computed, _ := item["columns"].(bool); computed || item["expr"] != nil {
		listed.unlisted = append(listed.unlisted, nil)
		return
	}
	excluded := map[string]bool{}
	for _, v := range array(item["exclude_list"]) {
		excluded[strings.ToLower(lastWord(v))] = true
	}
	drop := maps.Clone(excluded)
	for _, v := range array(item["qualified_exclude_list"]) {
		drop[strings.ToLower(lastWord(v))] = true
	}
	for _, v := range array(item["replace_list"]) {
		drop[strings.ToLower(word(object(v)["key"]))] = true
	}
	for _, v := range array(item["rename_list"]) {
		drop[strings.ToLower(lastWord(object(v)["key"]))] = true
		drop[strings.ToLower(word(object(v)["value"]))] = true
	}
	only := strings.ToLower(word(item["relation_name"]))
	add := func(ids, to map[string]bool) {
		for id := range ids {
			alias, column, ok := strings.Cut(id, ".")
			if ok && (alias == "" || f.has(alias)) && (only == "" || only == alias) && !drop[column] && !taken[column] {
				to[column] = to[column] || !listed.mayHave(column) && (only != "" || f.isFirst(alias, column))
			}
		}
	}
	add(f.keys, r.keys)
	add(f.times, r.times)
	for column := range r.keys {
		taken[column] = true
	}
	switch {
	case len(array(item["rename_list"])) > 0 || only != "" && !f.has(only): // if no table has the name x, x.* returns the fields of a struct
		listed.unlisted = append(listed.unlisted, nil)
	case slices.ContainsFunc(f.tables, func(t namedRows) bool { return (only == "" || only == t.alias) && t.rows.list == nil }):
		listed.unlisted = append(listed.unlisted, excluded)
	}
}

// isFirst reports whether readers of a * get the partition from this column: no earlier table has a column with this
// name, except a column that also contains the partition.
func (f *frame) isFirst(alias, column string) bool {
	for _, t := range f.tables {
		switch {
		case alias == "" || t.alias == alias:
			return true
		case f.keys[t.alias+"."+column]:
		case t.rows.list == nil || slices.Contains(t.rows.list, column):
			return false
		}
	}
	return true
}

// lastWord returns the name of a column from a node. The node is either the name itself or an object with a qualified
// name.
func lastWord(v any) string {
	if s := word(v); s != "" {
		return s
	}
	return word(object(v)["column"])
}

// id returns the id of an expression, or "" if it has none.
func (s *separation) id(f *frame, v any) string {
	n := object(v)
	for n["type"] == "OPERATOR_CAST" && s.dimension.Type != "VARCHAR" && !s.local && s.isType(n) {
		n = object(n["child"])
	}
	if names := columnNames(n); len(names) > 0 {
		return f.column(names)
	}
	if len(f.coalesced) > 0 && n["type"] == "OPERATOR_COALESCE" {
		if children := array(n["children"]); len(children) == 2 {
			if pair := pairOf(s.id(f, children[0]), s.id(f, children[1])); f.coalesced[pair] {
				return pair
			}
		}
	}
	resolved, ok := f.resolve(n)
	if !ok || n == nil {
		return ""
	}
	text, err := json.Marshal(resolved)
	if err != nil {
		return "" // cannot happen: v was decoded from JSON
	}
	return string(text)
}

func pairOf(a, b string) string {
	if a > b {
		a, b = b, a
	}
	return "{" + a + " " + b + "}"
}

// isType reports whether a cast converts to the type of the dimension.
func (s *separation) isType(cast map[string]any) bool {
	kind := typeName(cast)
	return kind == s.dimension.Type || kind == withZone && s.dimension.Type == "TIMESTAMPTZ"
}

// withZone is DuckDB's name of TIMESTAMPTZ.
const withZone = "TIMESTAMP WITH TIME ZONE"

// typeName returns DuckDB's name of the type to which a cast converts.
func typeName(cast map[string]any) string { return word(object(cast["cast_type"])["id"]) }

// isTimestamp reports whether a cast converts to TIMESTAMP or TIMESTAMPTZ. These types hold every microsecond.
func isTimestamp(cast map[string]any) bool {
	kind := typeName(cast)
	return kind == "TIMESTAMP" || kind == withZone
}

// volatile are functions that return a different value for each row.
var volatile = []string{"random", "uuid", "gen_random_uuid", "uuidv4", "uuidv7", "nextval"}

// resolve returns a copy of an expression in which ids replace the columns. It returns false for an expression such
// as random(), whose value may differ each time it is computed, even in the same row.
func (f *frame) resolve(v any) (any, bool) {
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			var ok bool
			if list[i], ok = f.resolve(item); !ok {
				return nil, false
			}
		}
		return list, true
	case map[string]any:
		kind := word(v["type"])
		if kind == "SUBQUERY" || kind == "STAR" || kind == "LAMBDA" || strings.HasPrefix(kind, "WINDOW_") || slices.Contains(volatile, word(v["function_name"])) {
			return nil, false
		}
		if names := columnNames(v); len(names) > 0 {
			id := f.column(names)
			return map[string]any{"id": id}, id != ""
		}
		node := make(map[string]any, len(v))
		for key, child := range v {
			if key == "query_location" || key == "alias" {
				continue
			}
			var ok bool
			if node[key], ok = f.resolve(child); !ok {
				return nil, false
			}
		}
		return node, true
	}
	return v, true
}
