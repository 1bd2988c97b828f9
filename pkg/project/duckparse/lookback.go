package duckparse

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/servo-orchestration/servo/pkg/project"
)

// lookbacks finds expressions that need rows of earlier days than the day of the partition.
//
// A filter is a condition in WHERE, ON, HAVING or QUALIFY that every row of the result must satisfy. A filter whose
// lower bound lies before a variable, such as day >= getvariable('date') - 7, is always a lookback, whatever its column
// means: a user who does not need earlier days can write it in another form. Any other expression is a lookback only if
// its columns contain the day of the partition. These columns then have the same value in all rows that a task reads, so
// the expression needs more rows. [project.Lookback].Days names these columns.
//
// day <= getvariable('date') is not a lookback, because it is true for the rows of that day.
type lookbacks struct {
	found []project.Lookback
	seen  map[int]bool // the offsets of lookbacks that are found or suppressed
}

func (l *lookbacks) walk(v any, with *tables, outer *from) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			l.walk(item, with, outer)
		}
	case map[string]any:
		for _, e := range array(object(v["cte_map"])["map"]) {
			l.walk(object(e)["value"], with, nil)
			with = defineTable(object(e), with)
		}
		if v["type"] == "SELECT_NODE" {
			outer = fromClause(v, with, outer)
			for _, filter := range append(joinConditions(v["from_table"], false), v["where_clause"]) {
				l.report(outer.filter(filter))
			}
			for _, clause := range []string{"having", "qualify"} {
				l.report(withoutAliases(outer.filter(v[clause]), array(v["select_list"])))
			}
		} else if outer != nil {
			if children := array(v["children"]); v["type"] == "CONJUNCTION_AND" && slices.ContainsFunc(children, comparesDays) {
				l.suppress(outer, children)
			}
			l.report(outer.expression(v))
		}
		for key, child := range v {
			if key != "cte_map" {
				l.walk(child, with, outer)
			}
		}
	}
}

// withoutAliases removes the bounds of names that a SELECT list defines, as in max(d) AS d: HAVING and QUALIFY can use
// these names like columns.
func withoutAliases(bounds []bound, items []any) []bound {
	return slices.DeleteFunc(bounds, func(b bound) bool {
		return slices.ContainsFunc(items, func(v any) bool {
			item := object(v)
			return item["type"] != "COLUMN_REF" && strings.EqualFold(word(item["alias"]), b.found.Column)
		})
	})
}

// report adds the lookbacks among bounds to l.found, except those that were found before or are suppressed.
func (l *lookbacks) report(bounds []bound) {
	for _, b := range bounds {
		if b.lookback && !l.seen[b.found.Offset] {
			l.see(b)
			l.found = append(l.found, b.found)
		}
	}
}

// suppress prevents reports of comparisons of months, such as month(born) = month(…), in a list of conditions that
// are joined with AND. It is called if one of the conditions compares days.
func (l *lookbacks) suppress(f *from, filters []any) {
	for _, filter := range filters {
		for _, b := range f.expression(filter) {
			if b.coarse {
				l.see(b)
			}
		}
	}
}

func (l *lookbacks) see(b bound) {
	if l.seen == nil {
		l.seen = map[int]bool{}
	}
	l.seen[b.found.Offset] = true
}

// bound is a bound that a filter sets for a column.
type bound struct {
	found project.Lookback
	// lookback is true if the bound needs rows of other days.
	lookback bool
	// certain is true if the bound is a lookback even if the column does not contain the day of the partition.
	certain bool
	// coarse is true if the bound compares months or other periods that are longer than a day.
	coarse bool
}

// filter returns the bounds that a filter sets for every row.
func (f *from) filter(v any) []bound {
	n := object(v)
	switch n["type"] {
	case "CONJUNCTION_AND":
		return f.allOf(array(n["children"]))
	case "CONJUNCTION_OR":
		return f.anyOf(array(n["children"]))
	}
	bounds := f.expression(v)
	for i := range bounds {
		bounds[i].lookback = bounds[i].lookback && bounds[i].certain
		bounds[i].found.Days = nil
	}
	return bounds
}

// allOf returns the bounds of filters that are joined with AND. If one of the filters compares days, comparisons of
// months are not lookbacks, as in month(born) = month(…) AND day(born) = day(…).
func (f *from) allOf(filters []any) (bounds []bound) {
	for _, filter := range filters {
		bounds = append(bounds, f.filter(filter)...)
	}
	if slices.ContainsFunc(filters, comparesDays) {
		bounds = slices.DeleteFunc(bounds, func(b bound) bool { return b.coarse })
	}
	return bounds
}

// anyOf returns the bounds of filters that are joined with OR. It returns the bounds of a column only if each of the
// filters sets a bound for this column.
func (f *from) anyOf(filters []any) (bounds []bound) {
	var alternatives [][]bound
	for _, filter := range filters {
		alternatives = append(alternatives, f.filter(filter))
		bounds = append(bounds, alternatives[len(alternatives)-1]...)
	}
	return slices.DeleteFunc(bounds, func(b bound) bool {
		return slices.ContainsFunc(alternatives, func(alternative []bound) bool {
			return !slices.ContainsFunc(alternative, func(other bound) bool {
				return strings.EqualFold(b.found.Column, other.found.Column)
			})
		})
	})
}

// comparesDays reports whether a filter compares days by their number within the month or the year.
func comparesDays(filter any) bool {
	n := object(filter)
	part := datePart(n["left"])
	return n["type"] == "COMPARE_EQUAL" && part == datePart(n["right"]) &&
		slices.Contains([]string{"day", "dayofmonth", "dayofyear", "doy"}, part)
}

// datePart returns the part of a date that an expression computes, such as month.
func datePart(v any) string {
	n := uncast(v)
	children := array(n["children"])
	switch name := word(n["function_name"]); {
	case len(children) == 1:
		return name
	case len(children) == 2 && (name == "date_part" || name == "datepart"):
		return strings.ToLower(text(children[0]))
	}
	return ""
}

// expression returns the bounds that one expression sets, but not those of its subexpressions.
func (f *from) expression(v any) (bounds []bound) {
	n := object(v)
	children := array(n["children"])
	switch kind := word(n["type"]); {
	case operators[kind] != "":
		if b := f.sameParts(n["left"], n["right"]); b != nil && kind == "COMPARE_EQUAL" {
			return b
		}
		return f.compare(n["left"], operators[kind], n["right"])
	case kind == "COMPARE_BETWEEN":
		return append(f.compare(n["input"], ">=", n["lower"]), f.compare(n["input"], "<=", n["upper"])...)
	case kind == "COMPARE_IN" && len(children) > 1:
		for _, item := range children[1:] {
			bounds = append(bounds, f.compare(children[0], "=", item)...)
		}
	case kind == "SUBQUERY" && n["subquery_type"] == "ANY":
		for _, item := range listItems(n) {
			bounds = append(bounds, f.compare(n["child"], operators[word(n["comparison_type"])], item)...)
		}
	case kind == "FUNCTION" && len(children) == 2:
		return f.match(word(n["function_name"]), children)
	case strings.HasPrefix(kind, "WINDOW_"):
		return f.window(n)
	}
	return bounds
}

var operators = map[string]string{
	"COMPARE_EQUAL": "=", "COMPARE_LESSTHAN": "<", "COMPARE_LESSTHANOREQUALTO": "<=",
	"COMPARE_GREATERTHAN": ">", "COMPARE_GREATERTHANOREQUALTO": ">=",
}

// startsWith is the operator of LIKE and similar functions, which compare the beginning of a text. The beginning may
// be a month, such as 2025-01.
const startsWith = "^@"

var mirrored = map[string]string{startsWith: "=", "=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

// listItems returns the items of = ANY ([…]), which DuckDB parses as SELECT unnest([…]).
func listItems(n map[string]any) []any {
	list := array(object(object(n["subquery"])["node"])["select_list"])
	if len(list) != 1 || object(list[0])["function_name"] != "unnest" || len(array(object(list[0])["children"])) != 1 {
		return nil
	}
	return array(object(array(object(list[0])["children"])[0])["children"])
}

// match returns the bounds that a function call sets if the function compares the beginning of a text or searches a
// list.
func (f *from) match(name string, args []any) (bounds []bound) {
	switch name {
	case "~~", "~~~", "^@", "starts_with", "prefix": // LIKE, GLOB
		return f.compare(args[0], startsWith, args[1])
	case "list_contains", "array_contains", "list_has", "array_has":
		if list := object(args[0]); list["function_name"] == "list_value" {
			for _, item := range array(list["children"]) {
				bounds = append(bounds, f.compare(args[1], "=", item)...)
			}
		}
	}
	return bounds
}

// sameParts returns the bounds that a comparison sets if it compares the same part of two dates, such as the month
// without the year: month(day) = month(…).
func (f *from) sameParts(a, b any) []bound {
	part := datePart(a)
	if part != datePart(b) || !slices.Contains([]string{"month", "monthname", "quarter", "week", "weekofyear"}, part) {
		return nil
	}
	last := func(v any) any { children := array(uncast(v)["children"]); return children[len(children)-1] }
	a, b = last(a), last(b)
	if f.value(a).variable != "" {
		a, b = b, a
	}
	va, vb := f.value(a), f.value(b)
	if len(va.columns) == 0 || vb.variable == "" {
		return nil
	}
	found := newBound(a, va, vb.variable)
	found.coarse, found.lookback = true, true
	return []bound{found}
}

// compare returns the bound that a comparison with a column sets.
func (f *from) compare(a any, operator string, b any) []bound {
	for _, side := range []struct {
		difference, distance any
		operator             string
	}{{a, b, operator}, {b, a, mirrored[operator]}} {
		// p - q < 7 is the same as q > p - 7.
		n := uncast(side.difference)
		by, ok := duration(side.distance)
		if children := array(n["children"]); ok && n["function_name"] == "-" && len(children) == 2 {
			p, q := f.value(children[0]), f.value(children[1])
			if p.known() && q.known() {
				return relate(children[1], q, mirrored[side.operator], children[0], p.shifted(by, -1))
			}
		}
	}
	va, vb := f.value(a), f.value(b)
	if !va.known() || !vb.known() {
		return nil
	}
	return relate(a, va, operator, b, vb)
}

// relate returns the bound that a comparison of two values sets, if one of them is a column.
func relate(a any, va value, operator string, b any, vb value) []bound {
	if len(va.columns) == 0 || len(vb.columns) > 0 && (operator == "<" || operator == "<=") {
		a, va, operator, vb = b, vb, mirrored[operator], va
	}
	if len(va.columns) == 0 {
		return nil
	}
	// The condition compares the column with a time that is lo to hi hours after a variable or another column.
	lo, hi := vb.min-va.max, vb.max-va.min
	found := newBound(a, va, vb.variable)
	found.coarse = va.min != va.max
	if vb.variable == "" {
		found.found.Days = append(found.found.Days, vb.columns)
	}
	earlier := lo <= -dayHours
	if operator == ">" { // day > getvariable('date') - 1 selects no earlier day
		earlier = lo < -dayHours
	}
	switch operator {
	case "<":
		found.lookback = hi <= 0
	case "<=":
		found.lookback = hi <= -dayHours
	case "=", startsWith:
		found.lookback = earlier || lo >= dayHours
	case ">=":
		found.lookback = earlier || vb.variable == "" && lo >= dayHours
	case ">":
		found.lookback = earlier || vb.variable == "" && lo >= 0
	}
	// A comparison of unlike values is not a certain lookback: month = strftime(…, '%Y-%m') and month =
	// date_trunc('month', …) may compare months.
	alike := operator == startsWith || va.label == vb.label && (operator != "=" || !va.exact() || vb.min == vb.max)
	found.found.Count = cmp.Or(va.count, vb.count)
	if vb.variable != "" && found.found.Count == "" && lo < 0 && operator != "<" && operator != "<=" {
		found.found.From = -((-lo + dayHours - 1) / dayHours)
		if operator == ">" && lo%dayHours == 0 {
			found.found.From++
		}
	}
	found.certain = earlier && vb.variable != "" && operator != "<" && operator != "<=" && alike
	return []bound{found}
}

func newBound(expression any, v value, variable string) bound {
	n := firstColumn(expression)
	at, _ := n["query_location"].(json.Number)
	return bound{found: project.Lookback{
		Offset: max(offset(at), 0), Column: strings.Join(columnNames(n), "."), Variable: variable,
		Columns: v.columns, Days: [][]project.Column{v.columns},
	}}
}

// firstColumn returns the first column of an expression.
func firstColumn(v any) map[string]any {
	n := uncast(v)
	if n["type"] == "COLUMN_REF" {
		return n
	}
	for _, child := range array(n["children"]) {
		if column := firstColumn(child); column != nil {
			return column
		}
	}
	return nil
}

// window returns the bounds that a window function sets if its window is ordered by days, for example lag(x) OVER
// (ORDER BY day). A rank function without a frame, such as row_number(), has no bound, because queries also use rank
// functions to remove duplicates within a day.
func (f *from) window(n map[string]any) []bound {
	framed := n["start_expr"] != nil || n["end_expr"] != nil
	switch n["type"] {
	case "WINDOW_LAG", "WINDOW_LEAD":
	case "WINDOW_AGGREGATE":
		if n["start"] == "UNBOUNDED_PRECEDING" && n["end"] == "UNBOUNDED_FOLLOWING" {
			return nil
		}
	default:
		if !framed {
			return nil
		}
	}
	var found []bound
	for _, order := range array(n["orders"]) {
		expression := object(order)["expression"]
		v := f.value(expression)
		if len(v.columns) == 0 {
			return nil
		}
		for _, partition := range array(n["partitions"]) {
			if f.value(partition).equal(v) {
				return nil
			}
		}
		if found == nil {
			found = []bound{newBound(expression, v, "")}
			found[0].found.Window, found[0].lookback = true, true
		} else {
			found[0].found.Days = append(found[0].found.Days, v.columns)
		}
	}
	return found
}
