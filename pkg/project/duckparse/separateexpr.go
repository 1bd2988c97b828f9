package duckparse

import (
	"slices"
	"strings"
)

// filter is a condition that restricts rows to the partitions of the batch.
type filter struct {
	value     any    // the compared expression
	id        string // its id
	condition any
	span      bool // the condition compares value with the span of the batch
}

// filters splits conditions: found are those that restrict rows to the partitions of the batch, and rest are all
// others.
func (s *separation) filters(f *frame, conditions []any) (found []filter, rest []any) {
	bounds := map[string]int{} // the compared ends, by the id of the expression: 1 is the start, 2 the end, 3 both
	for _, condition := range conditions {
		if value, bound := s.bound(condition); bound == afterStart {
			bounds[s.boundID(f, value)] |= 1 // the next loop reports this condition
		} else if bound != 0 {
			bounds[s.boundID(f, value)] |= bound
		}
	}
	for _, condition := range conditions {
		value, bound := s.bound(condition)
		id := ""
		if bound != 0 {
			id = s.boundID(f, value)
		}
		switch {
		case bound == afterStart:
			s.report(condition, "write >= instead of >", "the condition excludes the start of a partition only if the partition is the first of the batch")
		case bound != 0 && id != "" && (bounds[id] == 3 || f.keys[id] || f.times[id]):
			found = append(found, filter{value, id, condition, true})
		case bound != 0:
			s.report(condition, "compare it with getvariable('"+s.dimension.Name+"_start') and getvariable('"+s.dimension.Name+"_end')",
				"the query compares this expression with only one end of the span of the batch")
		default:
			e, ok := s.keyFilter(condition)
			if !ok {
				e, ok = s.semijoin(f, condition)
			}
			if id := s.id(f, e); ok && id != "" {
				found = append(found, filter{e, id, condition, false})
			} else {
				rest = append(rest, condition)
			}
		}
	}
	slices.SortStableFunc(found, func(x, y filter) int { // filters by the span come first: other filters may truncate instants
		switch {
		case x.span == y.span:
			return 0
		case x.span:
			return -1
		}
		return 1
	})
	return found, rest
}

// keyFilter returns x if a condition tests whether the list of the partitions contains x.
func (s *separation) keyFilter(v any) (any, bool) {
	n := object(v)
	children := array(n["children"])
	switch {
	case n["type"] == "FUNCTION" && len(children) == 2 && s.isKeys(children[0]) &&
		slices.Contains([]string{"contains", "list_contains", "array_contains", "list_has", "array_has"}, word(n["function_name"])):
		return children[1], true
	case n["type"] == "SUBQUERY" && n["subquery_type"] == "ANY" && n["comparison_type"] == "COMPARE_EQUAL":
		node := object(object(n["subquery"])["node"])
		list := array(node["select_list"])
		if len(list) == 1 && object(list[0])["function_name"] == "unnest" && s.isKeys(firstChild(object(list[0]))) && word(object(node["from_table"])["type"]) == "EMPTY" {
			return n["child"], true
		}
	}
	return nil, false
}

// semijoin returns x if a condition has the form x IN (subquery) and the subquery returns partitions.
func (s *separation) semijoin(f *frame, v any) (any, bool) {
	n := object(v)
	if n["type"] != "SUBQUERY" || n["subquery_type"] != "ANY" || n["comparison_type"] != "COMPARE_EQUAL" {
		return nil, false
	}
	sub := s.rows(object(object(n["subquery"])["node"]), f.with, f)
	return n["child"], !sub.fixed && len(sub.list) > 0 && sub.keys[sub.list[0]]
}

// afterStart is what bound returns for a condition that excludes the start of the span: x > getvariable('date_start').
const afterStart = 4

// bound examines a condition that compares an expression with the start or the end of the span of the batch. It returns
// the expression and the compared ends: 1 is the start, 2 the end, 3 both; afterStart means that the condition excludes
// the start.
//
// At the end of the span, bound treats < and <= alike, because an instant at the end belongs to no partition of the
// batch. If a condition includes the end, and the query returns a row for that instant, the task fails with
// INVALID_OUTPUT. The condition does not change the rows of any partition.
func (s *separation) bound(v any) (value any, ends int) {
	n := object(v)
	kind := word(n["type"])
	switch {
	case kind == "COMPARE_BETWEEN":
		if s.isNamed(n["lower"], "_start") && s.isNamed(n["upper"], "_end") {
			return n["input"], 3
		}
	case operators[kind] == ">" || operators[kind] == ">=" || operators[kind] == "<" || operators[kind] == "<=":
		for i, side := range [][2]any{{n["left"], n["right"]}, {n["right"], n["left"]}} {
			greater := strings.HasPrefix(operators[kind], ">") == (i == 0)
			switch {
			case s.isNamed(side[1], "_start") && greater && !strings.HasSuffix(operators[kind], "="):
				return side[0], afterStart
			case s.isNamed(side[1], "_start") && greater:
				return side[0], 1
			case s.isNamed(side[1], "_end") && !greater:
				return side[0], 2
			}
		}
	}
	return nil, 0
}

// isNamed reports whether an expression is a variable of the dimension.
func (s *separation) isNamed(v any, suffix string) bool {
	for inner := sameInstant(v); inner != nil; inner = sameInstant(v) {
		v = inner
	}
	n := object(v)
	args := array(n["children"])
	return n["function_name"] == "getvariable" && len(args) == 1 && strings.EqualFold(text(args[0]), s.dimension.Name+suffix)
}

// isKeys reports whether an expression is the list of the partitions, converted at most to a type in which the
// partitions still differ.
func (s *separation) isKeys(v any) bool {
	n := object(v)
	for n["type"] == "OPERATOR_CAST" {
		element := map[string]any{"cast_type": object(object(n["cast_type"])["type_info"])["child_type"]}
		if !s.isType(element) && typeName(element) != "VARCHAR" && (s.dimension.Type == "VARCHAR" || !isTimestamp(element)) {
			return false
		}
		n = object(n["child"])
	}
	return s.isNamed(n, "_keys")
}

// isVariable reports whether a call reads a variable that depends on the partitions of the batch.
func (s *separation) isVariable(n map[string]any) bool {
	return s.isNamed(n, "_keys") || s.isNamed(n, "_start") || s.isNamed(n, "_end")
}

// variable searches an expression for variables that depend on the partitions of the batch, and returns the first one.
func (s *separation) variable(v any) (found map[string]any) {
	forEachNode(v, func(n map[string]any) {
		if found == nil && n["type"] == "FUNCTION" && s.isVariable(n) {
			found = n
		}
	})
	return found
}

// checkExpression reports each part of an expression whose value depends on several partitions.
func (s *separation) checkExpression(f *frame, v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			s.checkExpression(f, item)
		}
	case map[string]any:
		kind := word(v["type"])
		if e, ok := s.keyFilter(v); ok && !f.fixed && s.isKey(f, e) {
			return // the condition is true for every row in every batch
		}
		switch {
		case strings.HasPrefix(kind, "WINDOW_"):
			if !f.fixed && !slices.ContainsFunc(array(v["partitions"]), func(p any) bool { return s.determines(f, p) }) {
				s.report(v, "add the column of the partition to PARTITION BY: "+s.dimension.Name, "a window function sees rows of several partitions")
			}
		case kind == "SUBQUERY":
			s.checkSubquery(f, v)
			s.checkExpression(f, v["child"])
			return
		case kind == "FUNCTION" && s.isVariable(v):
			s.report(v, "use the column of the partition", "getvariable(%s) is the same for all partitions of the batch", "'"+text(firstChild(v))+"'")
			return
		}
		for key, child := range v {
			if key != "cte_map" {
				s.checkExpression(f, child)
			}
		}
	}
}

func firstChild(n map[string]any) any {
	if children := array(n["children"]); len(children) > 0 {
		return children[0]
	}
	return nil
}

// checkSubquery reports a subquery in an expression if the subquery reads several partitions for one row.
func (s *separation) checkSubquery(f *frame, n map[string]any) {
	sub := s.rows(object(object(n["subquery"])["node"]), f.with, f)
	if sub.fixed {
		return
	}
	if n["subquery_type"] == "ANY" && n["comparison_type"] == "COMPARE_EQUAL" && !f.fixed && s.isKey(f, n["child"]) && len(sub.list) > 0 && sub.keys[sub.list[0]] {
		return
	}
	s.report(n, "compare "+s.dimension.Name+" of the subquery with "+s.dimension.Name+" of the query around it", "a subquery reads several partitions for each row")
}
