package duckparse

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/project"
)

// relation is one table of a FROM clause.
type relation struct {
	alias string
	// tables returns the stored tables that a column's values come from unchanged. It returns
	// nil if the column is computed or its origin is unknown.
	tables func(column string) []project.Ref
}

func unknown(string) []project.Ref { return nil }

// relations holds the tables that WITH defines, innermost first.
type relations struct {
	relation
	next *relations
}

func (r *relations) find(name string) *relations {
	for ; r != nil; r = r.next {
		if strings.EqualFold(r.alias, name) {
			return r
		}
	}
	return nil
}

// lookbacks finds filters with a lower bound before a variable.
type lookbacks struct {
	found []project.Lookback
}

func (l *lookbacks) walk(v any, s *relations) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			l.walk(item, s)
		}
	case map[string]any:
		s = l.with(v, s)
		if v["type"] == "SELECT_NODE" {
			from := fromTables(v["from_table"], s)
			for _, filter := range append(joinConditions(v["from_table"]), v["where_clause"]) {
				l.filter(filter, from)
			}
		}
		for key, child := range v {
			if key != "cte_map" {
				l.walk(child, s)
			}
		}
	}
}

// with walks the queries of a WITH and returns the scope of what follows.
func (l *lookbacks) with(n map[string]any, s *relations) *relations {
	for _, e := range array(object(n["cte_map"])["map"]) {
		entry := object(e)
		l.walk(entry["value"], s)
		s = defineTable(entry, s)
	}
	return s
}

// withTables returns the scope inside a query with its own WITH.
func withTables(n map[string]any, s *relations) *relations {
	for _, e := range array(object(n["cte_map"])["map"]) {
		s = defineTable(object(e), s)
	}
	return s
}

func defineTable(entry map[string]any, s *relations) *relations {
	value := object(entry["value"])
	r := relation{alias: word(entry["key"]), tables: unknown}
	if len(array(value["aliases"])) == 0 {
		r.tables = resultTables(object(object(value["query"])["node"]), s)
	}
	return &relations{r, s}
}

// fromTables returns the tables of a FROM clause.
func fromTables(v any, s *relations) []relation {
	n := object(v)
	r := relation{alias: word(n["alias"]), tables: unknown}
	renamed := len(array(n["column_name_alias"])) > 0
	switch n["type"] {
	case nil, "EMPTY":
		return nil
	case "JOIN":
		return append(fromTables(n["left"], s), fromTables(n["right"], s)...)
	case "SUBQUERY":
		if !renamed {
			r.tables = resultTables(object(object(n["subquery"])["node"]), s)
		}
	case "BASE_TABLE":
		ref := tableRef(n)
		if r.alias == "" {
			r.alias = ref.Table
		}
		local := s.find(ref.Table)
		switch {
		case renamed:
		case ref.Catalog == "" && ref.Schema == "" && local != nil:
			r.tables = local.tables
		default:
			r.tables = func(string) []project.Ref { return []project.Ref{ref} }
		}
	}
	return []relation{r}
}

// joinConditions returns the conditions of the joins of a FROM clause.
func joinConditions(v any) (conditions []any) {
	n := object(v)
	if n["type"] != "JOIN" {
		return nil
	}
	conditions = append(joinConditions(n["left"]), joinConditions(n["right"])...)
	return append(conditions, n["condition"])
}

// resultTables returns where the columns of a query come from.
func resultTables(n map[string]any, s *relations) func(string) []project.Ref {
	if n["type"] != "SELECT_NODE" {
		return unknown
	}
	from := fromTables(n["from_table"], withTables(n, s))
	known := map[string][]project.Ref{} // visit a table once, even if many levels join it with itself
	return func(column string) []project.Ref {
		column = strings.ToLower(column)
		tables, ok := known[column]
		if !ok {
			tables = resultColumn(n, column, from)
			known[column] = tables
		}
		return tables
	}
}

// resultColumn returns the origin of a column of a SELECT.
func resultColumn(n map[string]any, column string, from []relation) []project.Ref {
	star := false
	for _, v := range array(n["select_list"]) {
		item := object(v)
		names := columnNames(item)
		alias := word(item["alias"])
		if alias == "" && len(names) > 0 {
			alias = names[len(names)-1]
		}
		switch {
		case item["type"] == "STAR":
			if len(array(item["replace_list"])) > 0 || len(array(item["rename_list"])) > 0 || word(item["relation_name"]) != "" {
				return nil
			}
			star = true
		case strings.EqualFold(alias, column):
			return columnTables(names, from)
		}
	}
	if !star {
		return nil
	}
	return columnTables([]string{column}, from)
}

// columnTables returns the stored tables that a column of a query comes from.
func columnTables(names []string, from []relation) (tables []project.Ref) {
	if len(names) == 0 {
		return nil
	}
	for _, r := range from {
		if len(names) > 1 {
			if strings.EqualFold(r.alias, names[len(names)-2]) {
				return r.tables(names[len(names)-1])
			}
			continue
		}
		of := r.tables(names[0])
		if of == nil {
			return nil // the column may be of this table
		}
		for _, table := range of {
			if !slices.Contains(tables, table) {
				tables = append(tables, table)
			}
		}
	}
	return tables
}

// filter finds the lower bounds that every row must satisfy.
func (l *lookbacks) filter(v any, from []relation) {
	n := object(v)
	switch n["type"] {
	case "CONJUNCTION_AND":
		for _, child := range array(n["children"]) {
			l.filter(child, from)
		}
	case "COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO":
		l.bound(n["left"], n["right"], from)
	case "COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO":
		l.bound(n["right"], n["left"], from)
	case "COMPARE_EQUAL":
		l.bound(n["left"], n["right"], from)
		l.bound(n["right"], n["left"], from)
	case "COMPARE_BETWEEN":
		l.bound(n["input"], n["lower"], from)
	}
}

// bound records a bound of a column that is at least a day before a variable.
func (l *lookbacks) bound(column, bound any, from []relation) {
	n := uncast(column)
	names := columnNames(n)
	variable := earlier(bound)
	if variable == "" {
		return
	}
	if tables := columnTables(names, from); len(tables) > 0 {
		at, _ := n["query_location"].(json.Number)
		l.found = append(l.found, project.Lookback{
			Offset: max(offset(at), 0), Column: strings.Join(names, "."), Variable: variable, Tables: tables,
		})
	}
}

// earlier returns the variable that an expression precedes by at least a day, or "".
func earlier(v any) string {
	n := uncast(v)
	children := array(n["children"])
	if n["type"] != "FUNCTION" || len(children) != 2 {
		return ""
	}
	switch n["function_name"] {
	case "-":
		if days(children[1]) > 0 {
			return variableOf(children[0])
		}
	case "+", "date_add":
		if days(children[1]) < 0 {
			return variableOf(children[0])
		}
	case "date_trunc", "datetrunc":
		if unit := strings.ToLower(text(children[0])); slices.Contains([]string{"week", "month", "quarter", "year"}, unit) {
			return variableOf(children[1])
		}
	}
	return ""
}

// variableOf returns the variable whose value, or an earlier day, the expression is, or "".
func variableOf(v any) string {
	n := uncast(v)
	children := array(n["children"])
	if n["function_name"] == "getvariable" && len(children) == 1 {
		return strings.ToLower(text(children[0]))
	}
	return earlier(v)
}

// units are the functions that DuckDB uses for INTERVAL n UNIT, for units of at least a day.
var units = []string{"to_days", "to_weeks", "to_months", "to_quarters", "to_years"}

var intervalText = regexp.MustCompile(`(?i)^\s*([+-]?\d{1,9})\s*(?:d|days?|w|weeks?|mons?|months?|quarters?|y|years?)\s*$`)

// days returns the sign of a constant number of days or of an interval of whole days. 0:
// unknown.
func days(v any) int64 {
	n := object(v)
	if n["type"] == "FUNCTION" && slices.Contains(units, word(n["function_name"])) {
		if children := array(n["children"]); len(children) == 1 {
			return number(children[0])
		}
		return 0
	}
	if n["type"] == "OPERATOR_CAST" && object(n["cast_type"])["id"] == "INTERVAL" {
		if m := intervalText.FindStringSubmatch(text(n["child"])); m != nil {
			count, _ := strconv.ParseInt(m[1], 10, 64)
			return count
		}
		return 0
	}
	return number(v)
}

// number returns the value of an integer constant. 0: unknown.
func number(v any) int64 {
	n := uncast(v)
	if n["type"] == "FUNCTION" {
		children := array(n["children"])
		switch {
		case len(children) != 1:
		case n["function_name"] == "trunc":
			return number(children[0])
		case n["function_name"] == "-":
			return -number(children[0])
		}
		return 0
	}
	value, _ := object(n["value"])["value"].(json.Number)
	count, _ := value.Int64()
	return count
}

// uncast returns an expression without surrounding casts.
func uncast(v any) map[string]any {
	n := object(v)
	for n["type"] == "OPERATOR_CAST" {
		n = object(n["child"])
	}
	return n
}

// text returns a constant string.
func text(v any) string {
	return word(object(uncast(v)["value"])["value"])
}

func columnNames(n map[string]any) (names []string) {
	if n["type"] != "COLUMN_REF" {
		return nil
	}
	for _, name := range array(n["column_names"]) {
		names = append(names, word(name))
	}
	return names
}

func object(v any) map[string]any { n, _ := v.(map[string]any); return n }
func array(v any) []any           { a, _ := v.([]any); return a }
func word(v any) string           { s, _ := v.(string); return s }
