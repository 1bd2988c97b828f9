package duckparse

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/project"
)

const (
	dayHours   = 24
	monthHours = 30 * dayHours // the time from the first to the last day of a month
	yearHours  = 365 * dayHours
)

// value describes a date: it is between min and max hours after a variable or a column. If several tables may have
// the column, columns lists all candidates. The zero value means that nothing is known about the date.
type value struct {
	variable string
	columns  []project.Column
	min, max int64 // hours
	change   project.Change
	// label is year, month or week if the value is not a date, but the name of such a period: 2025-01 has the label
	// month.
	label string
	// count is "", or the variable of the project, such as var_days, that sets the number of days between the date and
	// the variable or column. If count is set, min and max are large numbers without a meaning.
	count string
}

func (v value) known() bool { return v.variable != "" || len(v.columns) > 0 }
func (v value) exact() bool { return v.min == 0 && v.max == 0 }

// changed returns the value after an operation that may change it. A greater change includes the smaller ones.
func (v value) changed(by project.Change) value {
	v.change = max(v.change, by)
	return v
}

// cast returns a value that is converted to a type.
func (v value) cast(to string) value {
	switch to {
	case "TIMESTAMP", "VARCHAR":
		return v.changed(project.Retyped)
	case withZone:
		if v.change == project.Retyped {
			v.change = project.Unchanged
		}
		return v
	}
	return v.changed(project.Rewritten)
}

// equal reports whether two values have the same origin.
func (v value) equal(w value) bool {
	return v.variable == w.variable && v.min == w.min && v.max == w.max && v.label == w.label && v.count == w.count && slices.Equal(v.columns, w.columns)
}

// plus returns a value that is lo to hi hours later.
func (v value) plus(lo, hi int64) value {
	if !v.known() {
		return v
	}
	v.min, v.max = v.min+lo, v.max+hi
	return v
}

// shifted returns the value that is a constant time later, or earlier if sign is -1.
func (v value) shifted(by span, sign int64) value {
	v.count = cmp.Or(v.count, by.count)
	if sign < 0 {
		return v.plus(-by.max, -by.min)
	}
	return v.plus(by.min, by.max)
}

// truncated returns the start of the period that contains a value.
func (v value) truncated(hours int64) value { return v.plus(-hours, 0) }

// labelled returns the number or the text that names the period of a value.
func (v value) labelled(label string) value {
	v.label = label
	return v.changed(project.Rewritten)
}

// value evaluates an expression.
func (f *from) value(v any) value {
	n := object(v)
	if d, ok := f.expressionDay(v); ok {
		if typeName(n) == withZone {
			return d.cast(withZone)
		}
		return d
	}
	children := array(n["children"])
	switch n["type"] {
	case "OPERATOR_CAST":
		return f.value(n["child"]).cast(typeName(n))
	case "COLUMN_REF":
		if names := columnNames(n); len(names) > 0 {
			return f.find(names)
		}
	case "SUBQUERY":
		if n["subquery_type"] == "SCALAR" {
			return f.scalar(object(object(n["subquery"])["node"]))
		}
	case "ARRAY_SLICE":
		if len(children) == 3 && number(children[1]) == 1 {
			return f.value(children[0]).prefix(number(children[2]))
		}
	case "FUNCTION":
		return f.function(word(n["function_name"]), children)
	}
	return value{}
}

// scalar evaluates a subquery that is used as a value.
func (f *from) scalar(n map[string]any) value {
	result := resultColumns(n, f.with, f)
	if len(result.list) != 1 {
		return value{}
	}
	return result.list[0]
}

func (f *from) function(name string, args []any) value {
	switch len(args) {
	case 1:
		return f.unary(name, args[0])
	case 2:
		return f.binary(name, args[0], args[1])
	case 3:
		switch {
		case (name == "substr" || name == "substring") && number(args[1]) == 1:
			return f.value(args[0]).prefix(number(args[2]))
		case name == "make_date" && number(args[2]) == 1:
			return f.value(args[0]).labelled("")
		case name == "concat":
			return f.concatenation(args)
		}
	}
	return value{}
}

func (f *from) unary(name string, arg any) value {
	switch name {
	case "getvariable":
		return value{variable: strings.ToLower(text(arg))}
	case "last_day":
		return f.value(arg).plus(0, monthHours)
	case "date":
		return f.value(arg).changed(project.Rewritten)
	case "year", "isoyear":
		return f.value(arg).unit("year").labelled("year")
	case "yearweek":
		return f.value(arg).unit("week").labelled("week")
	}
	return value{}
}

func (f *from) binary(name string, a, b any) value {
	switch name {
	case "+", "date_add":
		for _, side := range [][2]any{{a, b}, {b, a}} {
			if by, ok := duration(side[1]); ok {
				return f.value(side[0]).shifted(by, 1)
			}
		}
	case "-":
		if by, ok := duration(b); ok {
			return f.value(a).shifted(by, -1)
		}
	case "date_trunc", "datetrunc":
		return f.value(b).unit(strings.ToLower(text(a)))
	case "date_part", "datepart":
		if unit := strings.ToLower(text(a)); unit == "year" || unit == "isoyear" {
			return f.value(b).unit("year").labelled("year")
		}
	case "strftime":
		if text(b) == "" {
			a, b = b, a
		}
		return f.value(a).formatted(text(b))
	case "left":
		return f.value(a).prefix(number(b))
	case "||", "concat":
		return f.concatenation([]any{a, b})
	}
	return value{}
}

// concatenation returns the value of a concatenated text that begins with a date, such as strftime(…, '%Y-%m') ||
// '-01'.
func (f *from) concatenation(args []any) (found value) {
	for i, arg := range args {
		v := f.value(arg)
		switch {
		case v.known() != (i == 0), i > 0 && uncast(arg)["type"] != "VALUE_CONSTANT":
			return value{}
		case i == 0:
			found = v.changed(project.Rewritten)
		case strings.Contains(text(arg), "01"):
			found.label = ""
		}
	}
	return found
}

// unit truncates a value to a unit of time. The result is unknown if the unit is unknown.
func (v value) unit(name string) value {
	switch name {
	case "day", "hour", "minute", "second", "millisecond", "microsecond":
		return v.changed(project.Rewritten)
	case "week":
		return v.truncated(6 * dayHours)
	case "month":
		return v.truncated(monthHours)
	case "quarter":
		return v.truncated(3*monthHours + dayHours)
	case "year":
		return v.truncated(yearHours)
	}
	return value{}
}

// prefix returns the value of the first n characters of a date. For example, the first 7 are the month 2025-01.
func (v value) prefix(n int64) value {
	switch {
	case n >= 10:
		return v.changed(project.Rewritten)
	case n >= 7:
		return v.unit("month").labelled("month")
	case n >= 4:
		return v.unit("year").labelled("year")
	}
	return value{}
}

var (
	yearFormat  = regexp.MustCompile(`%-?[YyG]`)
	monthFormat = regexp.MustCompile(`%-?[mbB]`)
	weekFormat  = regexp.MustCompile(`%-?[UWV]`)
	dayFormat   = regexp.MustCompile(`%-?[djcxaAwu]`)
)

// formatted returns the value of a date that strftime has formatted.
func (v value) formatted(format string) value {
	unit := "year"
	switch {
	case dayFormat.MatchString(format) && yearFormat.MatchString(format):
		return v.changed(project.Rewritten)
	case !yearFormat.MatchString(format) || dayFormat.MatchString(format):
		return value{}
	case weekFormat.MatchString(format):
		unit = "week"
	case monthFormat.MatchString(format):
		unit = "month"
	}
	if strings.HasSuffix(format, "01") { // for example, %Y-%m-01
		return v.unit(unit)
	}
	return v.unit(unit).labelled(unit)
}

// unitHours are the minimum and the maximum number of hours of each unit of an interval.
var unitHours = map[string][2]int64{
	"hour": {1, 1}, "day": {dayHours, dayHours}, "week": {7 * dayHours, 7 * dayHours},
	"month": {28 * dayHours, 31 * dayHours}, "quarter": {89 * dayHours, 92 * dayHours}, "year": {yearHours, 366 * dayHours},
}

var (
	intervalText = regexp.MustCompile(`(?i)^\s*([+-]?\d{1,6})\s*([a-z]+)\s*$`)
	// shortUnits are the abbreviations of DuckDB.
	shortUnits = map[string]string{"h": "hour", "hr": "hour", "d": "day", "w": "week", "mon": "month", "y": "year", "yr": "year"}
)

// span is the minimum and the maximum length of an interval, in hours. If count is set, this variable of the project
// says how many days or longer units the interval has, and both numbers are unknownHours.
type span struct {
	min, max int64
	count    string
}

const unknownHours = 1 << 40

// duration returns the span of a constant interval, or of a constant number of days.
func duration(v any) (span, bool) {
	n := object(v)
	unit := "day"
	var count int64
	var ok bool
	amount := v
	switch name := word(n["function_name"]); {
	case n["type"] == "FUNCTION" && strings.HasPrefix(name, "to_") && len(array(n["children"])) == 1:
		unit = strings.TrimSuffix(strings.TrimPrefix(name, "to_"), "s")
		amount = array(n["children"])[0]
	case n["type"] == "OPERATOR_CAST" && object(n["cast_type"])["id"] == "INTERVAL":
		m := intervalText.FindStringSubmatch(text(n["child"]))
		if m == nil {
			return span{}, false
		}
		count, _ = strconv.ParseInt(m[1], 10, 64)
		unit = strings.TrimSuffix(strings.ToLower(m[2]), "s")
		if long, ok := shortUnits[unit]; ok {
			unit = long
		}
		amount = nil
	}
	hours, known := unitHours[unit]
	if name := projectVariable(amount); name != "" && unit != "hour" {
		return span{unknownHours, unknownHours, name}, known
	}
	if amount != nil {
		if count, ok = integer(amount); !ok {
			return span{}, false
		}
	}
	if count = max(min(count, 1e6), -1e6); count < 0 {
		return span{min: count * hours[1], max: count * hours[0]}, known
	}
	return span{min: count * hours[0], max: count * hours[1]}, known
}

// projectVariable returns the name of the variable that an expression reads, or "" if it reads no variable of the
// project.
func projectVariable(v any) string {
	n := uncast(v)
	switch children := array(n["children"]); {
	case len(children) != 1:
	case n["function_name"] == "trunc": // INTERVAL (…) DAY
		return projectVariable(children[0])
	case n["function_name"] == "getvariable":
		if name := strings.ToLower(text(children[0])); strings.HasPrefix(name, plan.VarPrefix) {
			return name
		}
	}
	return ""
}

// number returns the value of an integer constant, or 0 if v is not one.
func number(v any) int64 {
	count, _ := integer(v)
	return count
}

// integer returns the value of a constant expression of integers.
func integer(v any) (int64, bool) {
	n := uncast(v)
	children := array(n["children"])
	var args []int64
	for _, child := range children {
		arg, ok := integer(child)
		if !ok || arg > 1e6 || arg < -1e6 {
			return 0, false
		}
		args = append(args, arg)
	}
	switch name := word(n["function_name"]); {
	case n["type"] == "VALUE_CONSTANT":
		constant := object(n["value"])["value"]
		if s, ok := constant.(string); ok {
			constant = json.Number(strings.TrimSpace(s))
		}
		count, ok := constant.(json.Number)
		i, err := count.Int64()
		return i, ok && err == nil
	case n["type"] != "FUNCTION":
	case len(args) == 1 && (name == "trunc" || name == "+"):
		return args[0], true
	case len(args) == 1 && name == "-":
		return -args[0], true
	case len(args) == 2 && name == "*":
		return args[0] * args[1], true
	case len(args) == 2 && name == "+":
		return args[0] + args[1], true
	case len(args) == 2 && name == "-":
		return args[0] - args[1], true
	}
	return 0, false
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
