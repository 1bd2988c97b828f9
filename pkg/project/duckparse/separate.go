package duckparse

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/project"
)

// A query of a batch keeps the partitions separate if the rows of a partition do not depend on the other partitions
// in the batch. The code in the files separate*.go proves this from the syntax tree, for one dimension at a time. It
// distinguishes two kinds of rows: rows that are the same in every batch (fixed), and rows in which a column names
// the partition (a key). Each step of a query must preserve a key, or must work within one partition. Every other
// step is reported.

// rows describes the rows of a table or of a query.
type rows struct {
	fixed bool
	// keys are the columns that contain the partition to which a row belongs. times are the columns that contain an
	// instant within the period of this partition.
	keys, times map[string]bool
	// list holds the names of all columns in order. Nil: they are unknown.
	list []string
}

// withRows holds the tables that WITH defines, the innermost first.
type withRows struct {
	name string
	rows *rows
	next *withRows
}

func (w *withRows) find(name string) *rows {
	for ; w != nil; w = w.next {
		if strings.EqualFold(w.name, name) {
			return w.rows
		}
	}
	return nil
}

// separation examines a query for one dimension.
type separation struct {
	query      *project.BatchQuery
	dimension  project.BatchDimension
	at         int // the position of the dimension in lists of dimensions
	aggregates map[string]bool
	local      bool // see isLocal
	found      map[int]project.Mixing
}

// Mixings is a [project.BatchChecker].
func (p *Parser) Mixings(ctx context.Context, queries []project.BatchQuery) ([][]project.Mixing, error) {
	aggregates, err := p.aggregateNames(ctx)
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(queries))
	for i := range queries {
		texts[i] = queries[i].SQL
	}
	found := make([][]project.Mixing, len(queries))
	err = p.serialize(ctx, texts, func(i int, text string) {
		var a answer
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if decoder.Decode(&a) == nil && !a.Error && len(a.Statements) == 1 { // in all other cases, Parse reports an error
			found[i] = mixings(&queries[i], a.Statements[0], aggregates)
		}
	})
	return found, err
}

// aggregateNames returns the names of DuckDB's aggregate functions.
func (p *Parser) aggregateNames(ctx context.Context) (map[string]bool, error) {
	rows, err := p.db.QueryContext(ctx, "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type = 'aggregate'")
	if err != nil {
		return nil, fmt.Errorf("list DuckDB's aggregate functions: %w", err)
	}
	names := map[string]bool{}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("list DuckDB's aggregate functions: %w", cmp.Or(err, rows.Close()))
		}
		names[name] = true
	}
	if err := cmp.Or(rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("list DuckDB's aggregate functions: %w", err)
	}
	return names, nil
}

// mixings returns the expressions of a query that may mix partitions, in the order of their offsets. If a defect
// makes the examination panic, mixings reports that the query may mix partitions, so that commands about other assets
// still work.
func mixings(q *project.BatchQuery, statement map[string]any, aggregates map[string]bool) (found []project.Mixing) {
	defer func() {
		if defect := recover(); defect != nil {
			found = []project.Mixing{{Reason: fmt.Sprintf("servo cannot examine this query (%v)", defect), Advice: "remove `batch`, or write the query in another form"}}
		}
	}()
	all := map[int]project.Mixing{}
	for i, dimension := range q.Dimensions {
		s := separation{query: q, dimension: dimension, at: i, aggregates: aggregates, found: map[int]project.Mixing{}}
		s.local = s.isLocal(statement)
		node := object(statement["node"])
		result := s.rows(node, nil, nil)
		advice := "compute it from the partition column of an input only"
		if s.isHidden(node) {
			advice = "another column may also have this name, and the first column with the name counts: write the partition column before * and before functions that return several columns"
		} else if s.local {
			advice = "queries compute in UTC: compute it with (instant::TIMESTAMPTZ AT TIME ZONE '" + dimension.Zone + "')::DATE"
		}
		if name := strings.ToLower(dimension.Name); len(s.found) == 0 && !result.fixed && !result.keys[name] {
			s.report(resultPlace(node, name), advice, "the column %s of the result may differ from the partition of the inputs", dimension.Name)
		}
		for offset, m := range s.found {
			if _, ok := all[offset]; !ok {
				all[offset] = m
			}
		}
	}
	for _, m := range all {
		found = append(found, m)
	}
	slices.SortFunc(found, func(a, b project.Mixing) int { return cmp.Compare(a.Offset, b.Offset) })
	return found
}

// isHidden reports whether the SELECT list has a column with the name of the dimension, but an earlier item, such as a
// *, may return another column with this name.
func (s *separation) isHidden(node map[string]any) bool {
	earlier := false
	for _, v := range array(node["select_list"]) {
		item := object(v)
		if earlier && itemName(item) == strings.ToLower(s.dimension.Name) {
			return true
		}
		earlier = earlier || item["type"] == "STAR" || namesOthers(item)
	}
	return false
}

// resultPlace returns the item of the SELECT list that computes the column with the given name. If there is no such
// item, it returns the node of the query.
func resultPlace(node map[string]any, name string) any {
	for _, item := range array(node["select_list"]) {
		if itemName(object(item)) == name {
			return item
		}
	}
	return node
}

// report records a problem at the first position in a syntax tree.
func (s *separation) report(v any, advice, format string, args ...any) {
	w := walker{}
	w.walk(v, nil)
	at := max(w.first-1, 0)
	if _, ok := s.found[at]; !ok {
		s.found[at] = project.Mixing{Offset: at, Reason: fmt.Sprintf(format, args...), Advice: advice}
	}
}

// rows describes the result of a query.
func (s *separation) rows(n map[string]any, with *withRows, outer *frame) *rows {
	for _, e := range array(object(n["cte_map"])["map"]) {
		entry := object(e)
		value := object(entry["value"])
		result := s.rows(object(object(value["query"])["node"]), with, nil)
		with = &withRows{word(entry["key"]), result.renamed(array(value["aliases"])), with}
	}
	switch n["type"] {
	case "SELECT_NODE":
		return s.selectRows(n, with, outer)
	case "SET_OPERATION_NODE":
		return s.setRows(n, with, outer)
	case "RECURSIVE_CTE_NODE":
		first := s.rows(object(n["left"]), with, outer)
		with = &withRows{word(n["cte_name"]), &rows{fixed: true, list: first.list}, with}
		if next := s.rows(object(n["right"]), with, outer); !first.fixed || !next.fixed {
			s.report(n, "compute it from tables without partitions", "a recursive query reads several partitions at once")
		}
		return &rows{fixed: true, list: first.list}
	case "CTE_NODE":
		result := s.rows(object(n["query"]), with, outer)
		return s.rows(object(n["child"]), &withRows{word(n["cte_name"]), result.renamed(array(n["aliases"])), with}, outer)
	}
	s.report(n, "", "Servo cannot examine this form of a query")
	return &rows{fixed: true}
}

// renamed returns rows under the names in a column list, as in WITH t(a, b).
func (r *rows) renamed(names []any) *rows {
	if len(names) == 0 {
		return r
	}
	out := &rows{fixed: r.fixed, keys: map[string]bool{}, times: map[string]bool{}}
	for i, name := range r.list {
		if i < len(names) {
			column := strings.ToLower(word(names[i]))
			out.keys[column], out.times[column] = r.keys[name], r.times[name]
			name = column
		} else {
			out.keys[name], out.times[name] = r.keys[name], r.times[name]
		}
		if slices.Contains(out.list, name) {
			return &rows{fixed: r.fixed} // DuckDB gives other names to columns
		}
		out.list = append(out.list, name)
	}
	out.trim()
	return out
}

// selectRows describes the result of a SELECT.
func (s *separation) selectRows(n map[string]any, with *withRows, outer *frame) *rows {
	f := s.fromClause(n, with, outer)
	items := array(n["select_list"])
	if n["sample"] != nil && !f.fixed {
		s.report(n, "remove the sample", "a random sample of a batch has other rows than the samples of its single partitions")
	}
	s.checkGroups(f, n, items)
	result := s.output(f, items)
	for _, v := range []any{n["group_expressions"], n["having"], n["qualify"]} {
		s.checkExpression(f, v)
	}
	s.checkModifiers(n, items, f, result)
	return result
}

// checkGroups reports a GROUP BY that puts several partitions into one group.
func (s *separation) checkGroups(f *frame, n map[string]any, items []any) {
	groups := array(n["group_expressions"])
	all := word(n["aggregate_handling"]) == "FORCE_AGGREGATES"
	if f.fixed {
		return
	}
	advice := "add the partition to GROUP BY: " + s.dimension.Name
	switch {
	case all:
		for _, item := range items {
			if s.aggregate(item) == nil && (s.determines(f, item) || s.keepsAll(f, item)) {
				return
			}
		}
		s.report(n, "select "+s.dimension.Name+", so that it is a group", "GROUP BY ALL puts rows of several partitions into one group")
	case len(groups) > 0:
		sets := array(n["group_sets"])
		for _, set := range sets {
			if !slices.ContainsFunc(array(set), func(v any) bool {
				i := int(number(map[string]any{"type": "VALUE_CONSTANT", "value": map[string]any{"value": v}}))
				return i >= 0 && i < len(groups) && s.determines(f, aliased(groups[i], items))
			}) {
				s.report(groups, advice, "a group has rows of several partitions")
				return
			}
		}
		if len(sets) == 0 && !slices.ContainsFunc(groups, func(v any) bool { return s.determines(f, aliased(v, items)) }) {
			s.report(groups, advice, "a group has rows of several partitions")
		}
	default:
		for _, v := range append(slices.Clone(items), n["having"]) {
			if found := s.aggregate(v); found != nil {
				s.report(found, "add GROUP BY "+s.dimension.Name, "%s() without GROUP BY computes one row from several partitions", found["function_name"])
				return
			}
		}
	}
}

// keepsAll reports whether an item of a SELECT list is a * that includes a column with the partition, or with an
// instant within its period.
func (s *separation) keepsAll(f *frame, item any) bool {
	result := s.output(f, []any{item})
	return object(item)["type"] == "STAR" && (len(result.keys) > 0 || len(result.times) > 0)
}

// aggregate returns the first aggregate function in an expression, or nil.
func (s *separation) aggregate(v any) map[string]any {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if found := s.aggregate(item); found != nil {
				return found
			}
		}
	case map[string]any:
		if v["type"] == "SUBQUERY" {
			return s.aggregate(v["child"])
		}
		if v["type"] == "FUNCTION" && s.aggregates[strings.ToLower(word(v["function_name"]))] {
			return v
		}
		for _, child := range v {
			if found := s.aggregate(child); found != nil {
				return found
			}
		}
	}
	return nil
}

// aliased returns the item of a SELECT list to which an expression, such as 1 in GROUP BY 1, refers by position or by
// alias. If the expression refers to none, aliased returns the expression.
func aliased(v any, items []any) any {
	n := object(v)
	if i := int(number(n)); n["type"] == "VALUE_CONSTANT" && i > 0 && i <= len(items) {
		return items[i-1]
	}
	if names := columnNames(n); len(names) == 1 {
		for _, item := range items {
			if strings.EqualFold(word(object(item)["alias"]), names[0]) {
				return item
			}
		}
	}
	return v
}

// itemName returns the name of a result's column in lower case, or "".
func itemName(item map[string]any) string {
	if alias := word(item["alias"]); alias != "" {
		return strings.ToLower(alias)
	}
	if names := columnNames(item); len(names) > 0 {
		return strings.ToLower(names[len(names)-1])
	}
	return ""
}

// output describes the columns of a SELECT.
func (s *separation) output(f *frame, items []any) *rows {
	r := &rows{fixed: f.fixed, keys: map[string]bool{}, times: map[string]bool{}, list: []string{}}
	taken, names := map[string]bool{}, columns{}
	for _, v := range items {
		item := object(v)
		if item["type"] == "STAR" {
			f.star(item, r, taken, &names)
			s.checkExpression(f, item)
			r.list = nil
			continue
		}
		name := itemName(item)
		key, instant := s.isKey(f, item), f.times[s.id(f, item)]
		switch {
		case item["function_name"] == "unnest" && s.isKeys(firstChild(item)):
			s.keysInSelect(f, item, items)
			r.fixed, key = false, true
		default:
			s.checkExpression(f, item)
		}
		if taken[name] && name != "" { // if two columns have the same name, readers get only one of them
			key, instant = key && r.keys[name], instant && r.times[name]
		} else if names.mayHave(name) {
			key, instant = false, false
		}
		if namesOthers(item) {
			names.unlisted, r.list = append(names.unlisted, nil), nil
		}
		r.keys[name], r.times[name], taken[name] = key, instant, true
		if r.list != nil {
			r.list = append(r.list, cmp.Or(name, "?"+strconv.Itoa(len(r.list))))
		}
	}
	delete(r.keys, "")
	delete(r.times, "")
	if len(taken) != len(items) {
		r.list = nil // names are not unique
	}
	r.trim()
	return r
}

// keysInSelect checks unnest(getvariable('date_keys')) in a SELECT list. It reports a problem if rows of one
// partition would be repeated for every partition, or if the list calls another function that returns several rows:
// DuckDB combines the nth row of one function with the nth row of the other.
func (s *separation) keysInSelect(f *frame, item map[string]any, items []any) {
	if !f.fixed {
		s.report(item, "move unnest to FROM, and join with it on "+s.dimension.Name, "the rows of each partition are repeated for every partition of the batch")
	}
	several := 0
	forEachNode(items, func(n map[string]any) {
		if slices.Contains(multiplying, word(n["function_name"])) {
			several++
		}
	})
	if several > 1 {
		s.report(item, "write one unnest in FROM for each list", "SELECT has a second function that returns several rows, and DuckDB pairs the rows of both functions by position")
	}
}

// trim deletes the map entries of keys and times whose value is false.
func (r *rows) trim() {
	for name, ok := range r.keys {
		if !ok {
			delete(r.keys, name)
		}
	}
	for name, ok := range r.times {
		if !ok {
			delete(r.times, name)
		}
	}
}

// checkModifiers reports LIMIT and DISTINCT ON clauses that choose among rows of several partitions.
func (s *separation) checkModifiers(n map[string]any, items []any, f *frame, result *rows) {
	chooses := false
	for _, v := range array(n["modifiers"]) {
		m := object(v)
		targets := array(m["distinct_on_targets"])
		switch {
		case m["type"] == "LIMIT_MODIFIER" || m["type"] == "LIMIT_PERCENT_MODIFIER":
			chooses = true
			if !result.fixed {
				s.report(firstOf(m["limit"], m["offset"]), "use QUALIFY row_number() OVER (PARTITION BY "+s.dimension.Name+" …) <= N",
					"LIMIT chooses among the rows of all partitions of the batch")
			}
			s.checkExpression(f, m["limit"])
			s.checkExpression(f, m["offset"])
		case m["type"] == "DISTINCT_MODIFIER" && len(targets) > 0:
			chooses = true
			if !result.fixed && !slices.ContainsFunc(targets, func(v any) bool { return s.determines(f, aliased(v, items)) }) {
				s.report(targets, "add "+s.dimension.Name+" to DISTINCT ON", "DISTINCT ON keeps only one of several rows that belong to different partitions")
			}
			s.checkExpression(f, targets)
		}
	}
	for _, v := range array(n["modifiers"]) {
		if m := object(v); chooses && m["type"] == "ORDER_MODIFIER" { // otherwise, the order has no effect on the rows
			s.checkExpression(f, m["orders"])
		}
	}
}

func firstOf(a, b any) any {
	if a != nil {
		return a
	}
	return b
}

// setRows describes the result of UNION, EXCEPT and INTERSECT.
func (s *separation) setRows(n map[string]any, with *withRows, outer *frame) *rows {
	left, right := s.rows(object(n["left"]), with, outer), s.rows(object(n["right"]), with, outer)
	r := &rows{fixed: left.fixed && right.fixed, list: left.list, keys: map[string]bool{}, times: map[string]bool{}}
	if r.fixed {
		s.checkModifiers(n, nil, &frame{fixed: true, with: with, outer: outer}, r)
		return r
	}
	of := func(r *rows, name string) bool { return r.fixed || r.keys[name] }
	if word(n["setop_type"]) == "UNION_BY_NAME" {
		r.list = nil
		for _, names := range []map[string]bool{left.keys, right.keys} {
			for name := range names {
				r.keys[name] = of(left, name) && of(right, name)
			}
		}
	} else if left.list == nil || right.list == nil && !right.fixed {
		s.report(n, "list the columns of both queries", "a set operation compares columns by position, but a query has *, so the position of %s is unknown",
			s.dimension.Name)
		return &rows{fixed: true}
	} else {
		for i, name := range left.list {
			r.keys[name] = of(left, name) && (right.fixed || i < len(right.list) && right.keys[right.list[i]])
		}
	}
	r.trim()
	s.checkModifiers(n, nil, &frame{with: with, outer: outer}, r)
	return r
}
