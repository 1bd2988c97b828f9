package duckparse

import "strings"

// Queries compute in UTC. The date of an instant in UTC may differ from its date in the time zone of a dimension. So
// the UTC date of an instant names the partition only if the dimension has the time zone UTC.

// isLocal reports whether the dimension is a date in another time zone than UTC, and the query computes with
// instants. Such a query must convert instants into the time zone of the dimension.
func (s *separation) isLocal(statement any) (local bool) {
	if s.dimension.Type != "DATE" || s.dimension.Zone == "UTC" {
		return false
	}
	for _, dimensions := range s.query.Tables {
		local = local || dimensions[s.at].Finer && dimensions[s.at].Type != "DATE"
	}
	forEachNode(statement, func(n map[string]any) {
		local = local || n["type"] == "FUNCTION" && (s.isNamed(n, "_start") || s.isNamed(n, "_end"))
	})
	return local
}

// isKey reports whether the value of an expression is the partition of its row, perhaps in another type.
func (s *separation) isKey(f *frame, v any) bool {
	if s.bucket(f, v) {
		return true
	}
	for n := object(v); n != nil; n = object(n["child"]) {
		if id := s.id(f, n); id != "" && f.keys[id] {
			return true
		}
		if n["type"] != "OPERATOR_CAST" || !s.isType(n) || s.dimension.Type == "VARCHAR" {
			break
		}
	}
	return false
}

// determines reports whether rows with equal values of an expression belong to the same partition.
func (s *separation) determines(f *frame, v any) bool {
	id := s.id(f, v)
	return id != "" && f.times[id] || s.isKey(f, v)
}

// bucket reports whether an expression truncates an instant within the period of the row's partition to the start of
// this period. Such an expression names the partition.
func (s *separation) bucket(f *frame, v any) bool {
	n := object(v)
	for n["type"] == "OPERATOR_CAST" && s.isType(n) {
		if s.dimension.Unit == "day" && s.isInstant(f, n["child"]) {
			return true
		}
		n = object(n["child"])
	}
	children := array(n["children"])
	switch word(n["function_name"]) {
	case "date_trunc", "datetrunc":
		return len(children) == 2 && s.dimension.Unit != "" && strings.EqualFold(text(children[0]), s.dimension.Unit) && s.isInstant(f, children[1])
	}
	return false
}

// isInstant reports whether the value of an expression is an instant within the period of the partition, as the clocks
// show it in the time zone of the dimension.
func (s *separation) isInstant(f *frame, v any) bool {
	if s.local {
		zone, instant := inZone(v)
		return strings.EqualFold(zone, s.dimension.Zone) && f.times[s.id(f, instant)]
	}
	if f.times[s.id(f, castTo("TIMESTAMP", v))] {
		return true
	}
	for v != nil {
		if f.times[s.id(f, v)] {
			return true
		}
		v = sameInstant(v)
	}
	return false
}

// inZone returns the time zone and the instant of an expression such as instant AT TIME ZONE 'Europe/Paris'.
func inZone(v any) (zone string, instant any) {
	n := object(v)
	if children := array(n["children"]); n["function_name"] == "timezone" && len(children) == 2 {
		return text(children[0]), children[1]
	}
	return "", nil
}

// sameInstant returns x if v is a conversion of x that does not change the instant: to TIMESTAMP or TIMESTAMPTZ, in
// UTC. Otherwise it returns nil.
func sameInstant(v any) any {
	if n := object(v); n["type"] == "OPERATOR_CAST" && isTimestamp(n) {
		return n["child"]
	}
	if zone, instant := inZone(v); zone == "UTC" {
		return instant
	}
	return nil
}

// castTo returns the syntax tree of an expression that is converted to a type.
func castTo(name string, v any) map[string]any {
	return map[string]any{"type": "OPERATOR_CAST", "class": "CAST", "try_cast": false, "cast_type": map[string]any{"id": name}, "child": v}
}

// boundID returns the id of an expression that a condition compares with the span of the batch. If the query must
// convert instants into a time zone, their type matters. In this case, the id contains a cast to TIMESTAMPTZ, the type
// that partition columns of assets have.
func (s *separation) boundID(f *frame, v any) string {
	id := s.id(f, v)
	if !s.local || f.times[id] || typeName(object(v)) == withZone {
		return id
	}
	return s.id(f, castTo(withZone, v))
}

// A link is a value that determines the partition of a row: the partition itself or an instant.
const (
	linkKey  = "key "
	linkTime = "time "
)

// links returns the ids that determine the partition of a row in a leaf (one of the joined tables), each with its kind
// of link. These are the ids of the leaf's keys and times, and the ids of those expressions in conditions that compute
// the period of a row.
func (s *separation) links(leaf, f *frame, conditions []any) map[string]string {
	ids := map[string]string{}
	for id := range leaf.times {
		ids[id] = linkTime
	}
	for id := range leaf.keys {
		ids[id] = linkKey
	}
	for _, condition := range conditions {
		left, right, ok := equalSides(condition)
		for _, side := range []any{left, right} {
			if id := s.id(f, side); ok && id != "" && s.isKey(leaf, side) {
				ids[id] = linkKey
			}
		}
	}
	return ids
}

// kind returns the kind of a link. In UTC, a date is an instant, so all links have the same kind.
func (s *separation) kind(link string) string {
	if s.local {
		return link
	}
	return ""
}

// holds reports whether a filter is true for every row of a frame, whichever batch contains the row's partition.
func (s *separation) holds(f *frame, x filter) bool {
	switch {
	case !s.local:
		return f.keys[x.id] || f.times[x.id] || s.isKey(f, x.value)
	case x.span:
		return f.times[x.id]
	default:
		return s.isKey(f, x.value)
	}
}
