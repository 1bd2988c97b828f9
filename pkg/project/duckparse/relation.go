package duckparse

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/project"
)

// columns describes the columns of a table in a FROM clause, or of the result of a query.
type columns struct {
	// known are the columns whose names are known, in lower case.
	known map[string]value
	// rest are stored tables. Their columns are also columns of this table, unchanged, except those whose names are in
	// known.
	rest []project.Ref
	// open is true if the table may have further columns, whose names and origins are unknown.
	open bool
	// list holds the columns in order, if all of them are known.
	list []value
	// unlisted has an item for each part of a SELECT list, such as a *, that may return columns whose names are unknown.
	// The item contains the names that these columns cannot have.
	unlisted []map[string]bool
}

// find returns a column. It returns false if the table has no such column.
func (c *columns) find(name string) (value, bool) {
	name = strings.ToLower(name)
	if v, ok := c.known[name]; ok {
		return v, true
	}
	if c.open {
		return value{}, true
	}
	var v value
	for _, ref := range c.rest {
		v.columns = append(v.columns, project.Column{Ref: ref, Name: name})
	}
	return v, len(c.rest) > 0
}

// put adds the next column of a SELECT list. If an earlier column has the same name, readers get the earlier one.
func (c *columns) put(name string, v value) {
	name = strings.ToLower(name)
	if _, ok := c.known[name]; ok {
		return
	}
	if c.mayHave(name) {
		v = v.changed(project.Hidden)
	}
	c.set(name, v)
}

// mayHave reports whether a column whose name is unknown may have the given name.
func (c *columns) mayHave(name string) bool {
	return slices.ContainsFunc(c.unlisted, func(others map[string]bool) bool { return !others[name] })
}

// set sets the value of a named column. If a column with another value already has this name, the value becomes
// unknown.
func (c *columns) set(name string, v value) {
	name = strings.ToLower(name)
	if old, ok := c.known[name]; ok {
		if !old.equal(v) {
			v = value{}
		}
		v = v.changed(old.change)
	}
	if c.known == nil {
		c.known = map[string]value{}
	}
	c.known[name] = v
}

// add adds the columns of another table.
func (c *columns) add(other *columns) {
	for name, v := range other.known {
		c.set(name, v)
	}
	for _, ref := range other.rest {
		if !slices.Contains(c.rest, ref) {
			c.rest = append(c.rest, ref)
		}
	}
	c.open = c.open || other.open
}

// renamed returns the columns under the names in a column list, as in WITH t(a, b).
func (c *columns) renamed(names []any) *columns {
	if len(names) == 0 {
		return c
	}
	if len(c.list) < len(names) {
		return &columns{open: true}
	}
	renamed := &columns{list: c.list}
	for i, name := range names {
		renamed.set(word(name), c.list[i])
	}
	renamed.open = len(names) < len(c.list)
	return renamed
}

// output converts the columns for package project.
func (c *columns) output() project.Output {
	output := project.Output{Named: make(map[string]project.Origin, len(c.known)), Rest: c.rest, Complete: !c.open}
	for name, v := range c.known {
		var origin project.Origin
		if v.exact() {
			origin = project.Origin{Variable: v.variable, Columns: v.columns, Change: v.change}
		}
		output.Named[name] = origin
	}
	return output
}

// relation is one table in a FROM clause.
type relation struct {
	alias   string
	columns *columns
}

// tables holds the tables that WITH defines, the innermost first.
type tables struct {
	relation
	next *tables
}

func (t *tables) find(name string) *tables {
	for ; t != nil; t = t.next {
		if strings.EqualFold(t.alias, name) {
			return t
		}
	}
	return nil
}

// from holds the names that the expressions of a query can use.
type from struct {
	relations []relation
	with      *tables
	outer     *from // in a subquery: the names of the query that contains it
	// days are the columns and other expressions that a filter of the query compares with a variable for equality.
	days []day
}

// day is a column or another expression, and the value to which a filter requires it to be equal.
type day struct {
	names      []string
	expression string
	value      value
}

// find returns the value of the column to which a reference with these names refers.
func (f *from) find(names []string) value {
	if v, ok := f.day(names); ok {
		return v
	}
	column := names[len(names)-1]
	if len(names) > 1 {
		for scope := f; scope != nil; scope = scope.outer {
			for _, r := range scope.relations {
				if strings.EqualFold(r.alias, names[len(names)-2]) {
					v, _ := r.columns.find(column)
					return v
				}
			}
		}
		return value{}
	}
	var found columns
	for _, r := range f.relations {
		if v, ok := r.columns.known[strings.ToLower(column)]; ok {
			found.set(column, v)
		} else {
			found.add(&columns{rest: r.columns.rest, open: r.columns.open})
		}
	}
	v, ok := found.find(column) // the value is unknown if the column may belong to an open table
	if !ok && f.outer != nil {
		return f.outer.find(names)
	}
	return v
}

// day returns the value to which a filter requires a column to be equal.
func (f *from) day(names []string) (value, bool) {
	table, column, ok := f.qualified(names)
	for _, d := range f.days {
		of, filtered, also := f.qualified(d.names)
		// A name without a table refers to the only column with this name; otherwise DuckDB would reject it as ambiguous.
		if ok && also && strings.EqualFold(column, filtered) && (table == "" || of == "" || strings.EqualFold(table, of)) {
			return d.value, true
		}
	}
	return value{}, false
}

// qualified splits the names of a column reference into the table (or "") and the column. It returns false if the
// names refer to a field of a struct or to a column of an outer query.
func (f *from) qualified(names []string) (table, column string, ok bool) {
	isTable := func(name string) bool {
		return slices.ContainsFunc(f.relations, func(r relation) bool { return strings.EqualFold(r.alias, name) })
	}
	switch n := len(names); n {
	case 0:
		return "", "", false
	case 1:
		return "", names[0], true
	case 2:
		return names[0], names[1], isTable(names[0])
	default:
		return names[n-2], names[n-1], isTable(names[n-2]) && !isTable(names[0])
	}
}

// expressionDay returns the value to which a filter requires an expression to be equal.
func (f *from) expressionDay(v any) (value, bool) {
	if f == nil || len(f.days) == 0 {
		return value{}, false
	}
	text := canonical(v)
	for _, d := range f.days {
		if text != "" && d.expression == text {
			return d.value, true
		}
	}
	return value{}, false
}

// canonical returns a text that is the same for equal expressions.
func canonical(v any) string {
	text, err := json.Marshal(unplaced(v))
	if err != nil {
		return "" // cannot happen: v was decoded from JSON
	}
	return string(text)
}

// unplaced returns a copy of a syntax tree without positions and aliases. The names of columns are in lower case.
func unplaced(v any) any {
	switch v := v.(type) {
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = unplaced(item)
		}
		return list
	case map[string]any:
		node := make(map[string]any, len(v))
		for key, child := range v {
			if key != "query_location" && key != "alias" {
				node[key] = unplaced(child)
			}
		}
		for i, name := range array(node["column_names"]) {
			array(node["column_names"])[i] = strings.ToLower(word(name))
		}
		return node
	}
	return v
}

// withTables returns t with the tables that the WITH clause of a query defines.
func withTables(n map[string]any, t *tables) *tables {
	for _, e := range array(object(n["cte_map"])["map"]) {
		t = defineTable(object(e), t)
	}
	return t
}

func defineTable(entry map[string]any, t *tables) *tables {
	query := object(entry["value"])
	result := resultColumns(object(object(query["query"])["node"]), t, nil)
	return &tables{relation{word(entry["key"]), result.renamed(array(query["aliases"]))}, t}
}

// fromClause returns the scope of the expressions of a SELECT.
func fromClause(n map[string]any, with *tables, outer *from) *from {
	f := &from{relations: fromTables(n["from_table"], with), with: with, outer: outer}
	f.setDays(n["where_clause"])
	for _, condition := range joinConditions(n["from_table"], true) {
		f.setDays(condition)
	}
	return f
}

// setDays adds to f.days the expressions that a filter compares with a variable for equality: day =
// getvariable('date').
func (f *from) setDays(filter any) {
	n := object(filter)
	switch n["type"] {
	case "CONJUNCTION_AND":
		for _, child := range array(n["children"]) {
			f.setDays(child)
		}
	case "COMPARE_EQUAL":
		for _, side := range [][2]any{{n["left"], n["right"]}, {n["right"], n["left"]}} {
			if v := f.value(side[1]); v.variable != "" && v.exact() {
				// Do not remove casts from side[0]: seen::DATE may have another value than seen.
				f.days = append(f.days, day{columnNames(object(side[0])), canonical(side[0]), v.changed(project.Retyped)})
			}
		}
	}
}

// fromTables returns the tables in a FROM clause.
func fromTables(v any, with *tables) []relation {
	n := object(v)
	r := relation{alias: word(n["alias"]), columns: &columns{open: true}}
	switch n["type"] {
	case nil, "EMPTY":
		return nil
	case "JOIN":
		return append(fromTables(n["left"], with), fromTables(n["right"], with)...)
	case "SUBQUERY":
		r.columns = resultColumns(object(object(n["subquery"])["node"]), with, nil).renamed(array(n["column_name_alias"]))
	case "BASE_TABLE":
		ref := tableRef(n)
		if r.alias == "" {
			r.alias = ref.Table
		}
		r.columns = &columns{rest: []project.Ref{ref}}
		if local := with.find(ref.Table); local != nil && ref.Catalog == "" && ref.Schema == "" {
			r.columns = local.columns
		}
		r.columns = r.columns.renamed(array(n["column_name_alias"]))
	}
	return []relation{r}
}

// joinConditions returns the conditions of the joins in a FROM clause. If innerOnly is set, it omits the conditions
// of outer joins, which do not remove rows.
func joinConditions(v any, innerOnly bool) (conditions []any) {
	n := object(v)
	if n["type"] != "JOIN" {
		return nil
	}
	conditions = append(joinConditions(n["left"], innerOnly), joinConditions(n["right"], innerOnly)...)
	if innerOnly && n["join_type"] != "INNER" {
		return conditions
	}
	return append(conditions, n["condition"])
}

// resultColumns returns the columns of the result of a query.
func resultColumns(n map[string]any, with *tables, outer *from) *columns {
	if n["type"] != "SELECT_NODE" {
		return &columns{open: true}
	}
	f := fromClause(n, withTables(n, with), outer)
	result, known := &columns{}, true
	for _, v := range array(n["select_list"]) {
		item := object(v)
		if item["type"] == "STAR" {
			known = false
			f.star(item, result)
			continue
		}
		value := f.value(item)
		result.list = append(result.list, value)
		if name := itemName(item); name != "" {
			result.put(name, value)
		}
		if namesOthers(item) {
			known, result.open = false, true
			result.unlisted = append(result.unlisted, nil)
		}
	}
	if !known {
		result.list = nil
	}
	return result
}

// namesOthers reports whether an item of a SELECT list may return columns that take their names from other columns or
// from the fields of a struct.
func namesOthers(item map[string]any) (found bool) {
	children := array(item["children"])
	name := word(item["function_name"])
	if (name == "unnest" || name == "unlist") && (len(children) != 1 || !isList(children[0])) {
		return true
	}
	forEachNode(item, func(n map[string]any) {
		found = found || n["type"] == "STAR" && n["columns"] == true || n["type"] == "POSITIONAL_REFERENCE"
	})
	return found
}

// isList reports whether the value of an expression is certainly a list.
func isList(v any) bool {
	n := object(v)
	return typeName(n) == "LIST" || slices.Contains(listFunctions, word(n["function_name"]))
}

// listFunctions are functions that always return a list, and never a struct, which unnest also accepts.
var listFunctions = []string{
	"generate_series", "getvariable", "list_distinct", "list_sort", "list_value", "range", "regexp_extract_all", "split", "str_split", "string_split",
	"string_to_array",
}

// star adds the columns of a * to result.
func (f *from) star(item map[string]any, result *columns) {
	name, excluded := word(item["relation_name"]), map[string]bool{}
	for _, v := range array(item["exclude_list"]) {
		excluded[strings.ToLower(lastWord(v))] = true
	}
	for _, e := range array(item["replace_list"]) {
		result.put(word(object(e)["key"]), f.value(object(e)["value"]))
	}
	for _, d := range f.days {
		table, column, ok := f.qualified(d.names)
		own := table == "" || len(f.relations) == 1 // the name cannot refer to a column of another table
		if ok && !excluded[strings.ToLower(column)] && (own || strings.EqualFold(name, table)) {
			result.put(column, d.value)
		}
	}
	computed, _ := item["columns"].(bool)
	open := computed || item["expr"] != nil || len(array(item["rename_list"])) > 0
	found := false
	for _, r := range f.relations {
		if name != "" && !strings.EqualFold(name, r.alias) {
			continue
		}
		found = true
		for column, v := range r.columns.known {
			if !excluded[column] {
				result.put(column, v)
			}
		}
		result.add(&columns{rest: r.columns.rest, open: r.columns.open})
		if r.columns.open || len(r.columns.rest) > 0 {
			result.unlisted = append(result.unlisted, excluded)
		}
	}
	if open || !found { // if no table has the name x, x.* returns the fields of a struct
		result.open = true
		result.unlisted = append(result.unlisted, nil)
	}
}
