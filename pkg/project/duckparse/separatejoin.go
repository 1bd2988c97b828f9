package duckparse

import (
	"maps"
	"slices"
	"strings"
)

// chain collects the tables that inner joins combine, and the conditions that every row of the result must satisfy.
type chain struct {
	leaves     []*frame
	conditions []any
	equal      [][2]string // ids
	merged     map[string]bool
}

// frame combines the tables of a chain, without its conditions.
func (c *chain) frame(with *withRows, outer *frame) *frame {
	f := &frame{fixed: true, keys: map[string]bool{}, times: map[string]bool{}, merged: c.merged, with: with, outer: outer}
	for _, leaf := range c.leaves {
		f.tables = append(f.tables, leaf.tables...)
		f.fixed = f.fixed && leaf.fixed
		maps.Copy(f.keys, leaf.keys)
		maps.Copy(f.times, leaf.times)
		if len(leaf.coalesced) > 0 {
			f.coalesced = leaf.coalesced
		}
		for column := range leaf.merged {
			if f.merged == nil {
				f.merged = map[string]bool{}
			}
			f.merged[column] = true
		}
	}
	return f
}

// fromClause describes the rows of FROM and WHERE.
func (s *separation) fromClause(n map[string]any, with *withRows, outer *frame) *frame {
	c := chain{merged: map[string]bool{}}
	s.flatten(n["from_table"], with, outer, &c)
	c.conditions = append(c.conditions, conjuncts(n["where_clause"])...)
	return s.solve(&c, c.frame(with, outer), n)
}

// conjuncts returns the conditions that are joined with AND.
func conjuncts(v any) (list []any) {
	n := object(v)
	if n["type"] != "CONJUNCTION_AND" {
		if n == nil {
			return nil
		}
		return []any{v}
	}
	for _, child := range array(n["children"]) {
		list = append(list, conjuncts(child)...)
	}
	return list
}

// flatten adds the tables of a FROM clause to a chain.
func (s *separation) flatten(v any, with *withRows, outer *frame, c *chain) {
	n := object(v)
	if n == nil || n["type"] == "EMPTY" {
		return
	}
	if n["type"] != "JOIN" {
		lateral := outer
		if len(c.leaves) > 0 {
			lateral = c.frame(with, outer)
		}
		if leaf := s.table(n, with, lateral); leaf != nil {
			c.leaves = append(c.leaves, leaf)
		}
		return
	}
	kind := word(n["ref_type"])
	if word(n["join_type"]) != "INNER" || kind == "ASOF" || kind == "POSITIONAL" {
		left, right := chain{merged: map[string]bool{}}, chain{merged: map[string]bool{}}
		s.flatten(n["left"], with, outer, &left)
		l := s.solve(&left, left.frame(with, outer), n["left"])
		above := *l
		above.outer = outer
		s.flatten(n["right"], with, &above, &right)
		c.leaves = append(c.leaves, s.outerJoin(n, l, s.solve(&right, right.frame(with, outer), n["right"])))
		return
	}
	s.flatten(n["left"], with, outer, c)
	left := c.frame(with, outer)
	before := len(c.leaves)
	s.flatten(n["right"], with, outer, c)
	right := (&chain{leaves: c.leaves[before:]}).frame(with, outer)
	for _, column := range using(n, left, right) {
		c.equal = append(c.equal, [2]string{left.column([]string{column}), right.column([]string{column})}, [2]string{right.column([]string{column}), "." + column})
		c.merged[column] = true
	}
	c.conditions = append(c.conditions, conjuncts(n["condition"])...)
}

// using returns the columns that USING names. For a natural join, it returns the key columns that both sides
// certainly have.
func using(n map[string]any, left, right *frame) (columns []string) {
	for _, column := range array(n["using_columns"]) {
		columns = append(columns, strings.ToLower(word(column)))
	}
	if word(n["ref_type"]) == "NATURAL" {
		for _, l := range left.tables {
			for _, r := range right.tables {
				for column := range l.rows.keys {
					if r.rows.keys[column] && !slices.Contains(columns, column) {
						columns = append(columns, column)
					}
				}
			}
		}
	}
	slices.Sort(columns)
	return columns
}

// table describes one table in FROM.
func (s *separation) table(n map[string]any, with *withRows, lateral *frame) *frame {
	alias, names := word(n["alias"]), array(n["column_name_alias"])
	r := &rows{fixed: true}
	switch n["type"] {
	case "BASE_TABLE":
		ref := tableRef(n)
		if alias == "" {
			alias = ref.Table
		}
		if local := with.find(ref.Table); local != nil && ref.Catalog == "" && ref.Schema == "" {
			r = local
		} else {
			r = s.stored(n, strings.ToLower(ref.Schema+"."+ref.Table))
		}
	case "SUBQUERY":
		r = s.rows(object(object(n["subquery"])["node"]), with, lateral)
	case "TABLE_FUNCTION":
		if alias == "" {
			alias = word(object(n["function"])["function_name"])
		}
		r = s.functionRows(n, with, lateral)
	case "EXPRESSION_LIST":
		s.checkExpression(&frame{fixed: true, with: with}, n["values"])
	default:
		if found := s.changing(n, with); found {
			s.report(n, "write it with GROUP BY", "Servo cannot examine %s", strings.ToLower(word(n["type"])))
		}
	}
	if n["sample"] != nil && !r.fixed {
		s.report(n, "remove the sample", "a random sample of a batch has other rows than the samples of its single partitions")
	}
	return newFrame(alias, r.renamed(names))
}

// functionRows describes the rows that a table function returns. If lateral is not nil, the arguments of the function
// can use its columns.
func (s *separation) functionRows(n map[string]any, with *withRows, lateral *frame) *rows {
	call := object(n["function"])
	name := word(call["function_name"])
	isKeys := name == "unnest" && s.isKeys(firstChild(call))
	if isKeys || s.isSeries(call) {
		if word(n["with_ordinality"]) == "WITH_ORDINALITY" {
			s.report(n, "remove WITH ORDINALITY", "the ordinal of a row depends on the other partitions in the batch")
		}
		r := &rows{list: []string{name}}
		if isKeys {
			r.keys = map[string]bool{name: true}
		} else {
			r.times = map[string]bool{name: true}
		}
		return r
	}
	if lateral == nil {
		lateral = &frame{fixed: true, with: with}
	}
	if !isKnownFunction(name) {
		s.report(n, "", "Servo does not know which rows the function %s reads", name)
	} else if found := s.variable(call); found != nil {
		s.report(found, "read all files, and filter the rows by the partition", "the rows that %s returns depend on all partitions of the batch", name)
	} else {
		s.checkExpression(lateral, call["children"])
	}
	return &rows{fixed: true}
}

// isKnownFunction reports whether the rows of a table function depend on its arguments and on files only. Other table
// functions, such as query_table and duckdb_variables, read tables by name or describe the state of DuckDB.
func isKnownFunction(name string) bool {
	return strings.HasPrefix(name, "read_") || strings.HasPrefix(name, "parquet_") || slices.Contains(knownFunctions, name)
}

var knownFunctions = []string{
	"generate_series", "glob", "icu_calendar_names", "json_each", "json_tree", "pg_timezone_names", "range", "repeat", "repeat_row", "sniff_csv", "unnest",
}

// isSeries reports whether a call returns the same instants for a batch as for its single periods. The series must go
// from the start to the end of the batch. Its step must divide the length of a period. Otherwise, the instants within a
// period would depend on where the batch starts. The call must not omit instants at the end of the last period.
func (s *separation) isSeries(call map[string]any) bool {
	name, args := word(call["function_name"]), array(call["children"])
	if name != "generate_series" && name != "range" || len(args) != 3 || !s.isNamed(args[0], "_start") {
		return false
	}
	step, ok := hours(args[2])
	period := map[string]int64{"day": dayHours, "hour": 1}[s.dimension.Unit]
	if !ok || step <= 0 || period == 0 || period%step != 0 || s.local && (step > 1 || !s.dimension.WholeHours) {
		return false // in time zones other than UTC, a day may have 23 or 25 hours
	}
	end, before := object(args[1]), int64(0)
	if children := array(end["children"]); end["function_name"] == "-" && len(children) == 2 {
		if before, ok = hours(children[1]); !ok || before < 0 {
			return false
		}
		end = object(children[0])
	}
	return s.isNamed(end, "_end") && (before < step || before == step && name == "generate_series")
}

// hours returns the length of a constant interval if the interval always has the same length.
func hours(v any) (length int64, ok bool) {
	by, ok := duration(v)
	return by.min, ok && by.min == by.max && by.count == ""
}

// stored describes a table that the query itself does not define.
func (s *separation) stored(n map[string]any, name string) *rows {
	dimensions, ok := s.query.Tables[name]
	if !ok || dimensions[s.at].Fixed { // the table is a file, or an asset with the same rows for all partitions
		return &rows{fixed: true}
	}
	t := dimensions[s.at]
	if t.Why != "" {
		s.report(n, t.Advice, "%s", t.Why)
		return &rows{fixed: true}
	}
	column := strings.ToLower(t.Column)
	if t.Finer && s.local && t.Type == "DATE" {
		s.report(n, "", "Servo cannot examine dates together with instants of the time zone %s", s.dimension.Zone)
		return &rows{fixed: true}
	}
	if t.Finer {
		return &rows{times: map[string]bool{column: true}}
	}
	return &rows{keys: map[string]bool{column: true}}
}

// changing reports whether the rows of a part of FROM depend on the partitions of the batch.
func (s *separation) changing(v any, with *withRows) (found bool) {
	forEachNode(v, func(n map[string]any) {
		switch n["type"] {
		case "BASE_TABLE":
			ref := tableRef(n)
			if local := with.find(ref.Table); local != nil && ref.Schema == "" {
				found = found || !local.fixed
			} else if t, ok := s.query.Tables[strings.ToLower(ref.Schema+"."+ref.Table)]; ok {
				found = found || !t[s.at].Fixed
			}
		case "FUNCTION":
			found = found || s.isVariable(n)
		case "TABLE_FUNCTION":
			found = found || !isKnownFunction(word(object(n["function"])["function_name"]))
		}
	})
	return found
}

// classes is a union-find structure of ids. Ids in the same class have equal values.
type classes map[string]string

func (c classes) find(id string) string {
	for c[id] != "" && c[id] != id {
		id = c[id]
	}
	return id
}

func (c classes) join(a, b string) {
	if a == "" || b == "" {
		return
	}
	for _, id := range []string{a, b} {
		if c[id] == "" {
			c[id] = id
		}
	}
	c[c.find(a)] = c.find(b)
}

// equalSides returns the two sides of a comparison for equality.
func equalSides(v any) (left, right any, ok bool) {
	n := object(v)
	kind := word(n["type"])
	return n["left"], n["right"], kind == "COMPARE_EQUAL" || kind == "COMPARE_NOT_DISTINCT_FROM"
}

// solve derives from the conditions of a chain which rows its tables have after the joins, and reports joins that mix
// partitions.
func (s *separation) solve(c *chain, f *frame, at any) *frame {
	same := classes{}
	for _, pair := range c.equal {
		same.join(pair[0], pair[1])
	}
	for _, condition := range c.conditions {
		if left, right, ok := equalSides(condition); ok {
			same.join(s.id(f, left), s.id(f, right))
		}
	}
	filters, rest := s.filters(f, c.conditions)
	// A key of linked consists of a kind of link and a class of equal ids. In every previous leaf that is not fixed, an id
	// of this class determines the partition of a row.
	var linked map[string]bool
	for _, leaf := range c.leaves {
		if leaf.fixed {
			continue
		}
		own := map[string]bool{}
		for id, link := range s.links(leaf, f, c.conditions) {
			own[s.kind(link)+same.find(id)] = true
		}
		if linked == nil {
			linked = own
			continue
		}
		maps.DeleteFunc(linked, func(id string, _ bool) bool { return !own[id] })
		if len(linked) == 0 {
			s.report(at, "compare "+s.dimension.Name+" of both tables in the join", "a join combines rows of different partitions")
			return &frame{tables: f.tables, fixed: true, keys: map[string]bool{}, times: map[string]bool{}, with: f.with, outer: f.outer}
		}
	}
	s.restrict(f, filters, same, linked)
	for _, condition := range c.conditions {
		left, right, ok := equalSides(condition)
		for _, side := range []any{left, right} {
			if id := s.id(f, side); ok && id != "" && !f.fixed && s.isKey(f, side) {
				f.keys[id] = true
			}
		}
	}
	for id := range same {
		switch class := same.find(id); {
		case f.fixed || f.keys[id]:
		case s.anyIn(f.keys, same, class):
			f.keys[id] = true
		case s.anyIn(f.times, same, class) && (!s.local || isMerged(id) && allIn(f.times, same, class)):
			f.times[id] = true
		}
	}
	s.bind(f)
	for _, condition := range rest {
		s.checkExpression(f, condition)
	}
	return f
}

// anyIn reports whether a class contains one of the ids.
func (s *separation) anyIn(ids map[string]bool, same classes, class string) bool {
	for id := range ids {
		if same.find(id) == class {
			return true
		}
	}
	return false
}

// isMerged reports whether an id is a column that USING merges.
func isMerged(id string) bool { return strings.HasPrefix(id, ".") }

// allIn reports whether ids contains every id of a class, except merged columns. In time zones other than UTC, the type
// of an instant matters. So in these zones, a merged column counts as an instant only if all columns that it merges are
// instants.
func allIn(ids map[string]bool, same classes, class string) bool {
	for id := range same {
		if same.find(id) == class && !isMerged(id) && !ids[id] {
			return false
		}
	}
	return true
}

// bind marks the rows of a subquery as fixed if the subquery reads only the partition to which the current row of the
// outer query belongs.
func (s *separation) bind(f *frame) {
	for _, ids := range []map[string]bool{f.keys, f.times} {
		for id := range ids {
			if above, ok := strings.CutPrefix(id, "^"); ok && !f.fixed && f.outer != nil &&
				(f.outer.keys[above] && (f.keys[id] || !s.local) || f.outer.times[above] && (f.times[id] || !s.local)) {
				f.fixed = true
				return
			}
		}
	}
}

// restrict applies the filters that restrict rows to the partitions of the batch.
func (s *separation) restrict(f *frame, filters []filter, same classes, linked map[string]bool) {
	for _, x := range filters {
		link, ids := linkKey, f.keys
		if x.span {
			link, ids = linkTime, f.times
		}
		class := s.kind(link) + same.find(x.id)
		switch {
		case f.fixed:
			f.fixed, ids[x.id] = false, true
			linked = map[string]bool{class: true}
		case linked[class] || s.holds(f, x):
		default:
			s.report(x.condition, "compare only the column of the partition with the partitions of the batch",
				"the rows of a partition are filtered by all partitions of the batch")
		}
	}
}

// outerJoin describes the rows of a join that is not an inner join.
func (s *separation) outerJoin(n map[string]any, l, r *frame) *frame {
	both := &chain{leaves: []*frame{l, r}}
	f := both.frame(l.with, l.outer)
	kind := word(n["join_type"])
	kept, other := l, r
	if kind == "RIGHT" {
		kept, other = r, l
	}
	conditions := conjuncts(n["condition"])
	rest := s.sideFilters(f, kept, other, conditions)
	x, y, link := s.link(n, f, kept, other, conditions)
	merged := using(n, l, r)
	switch {
	case l.fixed && r.fixed:
		f.keys, f.times, f.fixed = map[string]bool{}, map[string]bool{}, true
	case word(n["ref_type"]) == "POSITIONAL":
		s.report(n, "join by columns", "a positional join pairs rows of different partitions")
		f.fixed = true
	case (!other.fixed || kind == "FULL") && link == "":
		s.report(n, "compare "+s.dimension.Name+" of both tables in ON", "a join combines rows of different partitions")
		f.fixed = true
	case kind == "FULL":
		f.fixed, f.keys, f.times = false, map[string]bool{}, map[string]bool{}
		f.coalesced = map[string]bool{pairOf(x, y): true}
		f.linkedBy(link)[pairOf(x, y)] = true
	default:
		f.fixed, f.keys, f.times = false, maps.Clone(kept.keys), maps.Clone(kept.times)
		if kept.fixed && (link == linkKey || !s.local) {
			f.linkedBy(link)[x] = true
		}
	}
	for _, column := range merged {
		own := kept.column([]string{column})
		if f.merged == nil {
			f.merged = map[string]bool{}
		}
		f.merged[column] = true
		pair := pairOf(own, other.column([]string{column}))
		if !f.fixed && (f.keys[own] || f.coalesced[pair] && f.keys[pair]) {
			f.keys["."+column] = true
		} else if !f.fixed && (f.times[own] || f.coalesced[pair] && f.times[pair]) {
			f.times["."+column] = true
		}
	}
	for _, condition := range rest {
		s.checkExpression(f, condition)
	}
	if kind == "SEMI" || kind == "ANTI" {
		f.tables = l.tables
	}
	return f
}

// linkedBy returns the keys or the times of a frame, according to the kind of a link.
func (f *frame) linkedBy(link string) map[string]bool {
	if link == linkTime {
		return f.times
	}
	return f.keys
}

// link searches the conditions of a join for an equality x = y that links the partitions of both sides: x determines
// the partition of a row of one side, and y determines the partition of a row of the other side. It returns the ids of
// x and y and the kind of the link. If there is no such condition, the kind is "".
func (s *separation) link(n map[string]any, f, kept, other *frame, conditions []any) (x, y, link string) {
	type pair struct{ a, b string }
	var pairs []pair
	for _, column := range using(n, kept, other) {
		pairs = append(pairs, pair{kept.column([]string{column}), other.column([]string{column})})
	}
	for _, condition := range conditions {
		if left, right, equal := equalSides(condition); equal {
			a, b := s.id(f, left), s.id(f, right)
			pairs = append(pairs, pair{a, b}, pair{b, a})
		}
	}
	keptIDs, otherIDs := s.links(kept, f, conditions), s.links(other, f, conditions)
	decides := func(side *frame, ids map[string]string, id string) bool {
		return id != "" && (ids[id] != "" || side.fixed && side.owns(id))
	}
	for _, p := range pairs {
		a, b := keptIDs[p.a], otherIDs[p.b]
		if decides(kept, keptIDs, p.a) && decides(other, otherIDs, p.b) && (a != "" || b != "") && (a == "" || b == "" || s.kind(a) == s.kind(b)) {
			if a == linkKey || b == linkKey {
				return p.a, p.b, linkKey
			}
			return p.a, p.b, linkTime
		}
	}
	return "", "", ""
}

// sideFilters applies those conditions of an outer join that restrict one of its sides to the partitions of the
// batch, and returns the other conditions.
func (s *separation) sideFilters(f, kept, other *frame, conditions []any) (rest []any) {
	filters, rest := s.filters(f, conditions)
	for _, x := range filters {
		link := linkKey
		if x.span {
			link = linkTime
		}
		for _, side := range []*frame{kept, other} {
			if side.owns(x.id) && side.fixed {
				side.fixed = false
				side.linkedBy(link)[x.id], f.linkedBy(link)[x.id] = true, true
			}
		}
		if !s.holds(f, x) {
			s.report(x.condition, "compare only the column of the partition with the partitions of the batch",
				"the rows of a partition are filtered by all partitions of the batch")
		}
	}
	f.fixed = kept.fixed && other.fixed
	return rest
}
