package testcase

import (
	"regexp"
	"strconv"
	"strings"
)

// Kind is the kind of a value as written in a test file.
type Kind int

// Kinds of values. Time is a date, or a date with a time.
const (
	Null Kind = iota
	Bool
	Integer
	Number
	Time
	Text
	List
	Struct
)

// Value is a value in a test file. A value in a CSV file has the kind that it would have in YAML
// without quotes.
type Value struct {
	Kind Kind
	// Text is the value as a text that SQL can cast to its type. It is empty for a list or a struct.
	Text string
	// Items are the items of a list, or the fields of a struct in the order of Names.
	Items []Value
	Names []string
	// Spelled is the list or the struct that a text represents, for columns of list or struct types. It is nil for all
	// other texts.
	Spelled *Value
}

// String formats the value for messages.
func (v Value) String() string {
	switch v.Kind {
	case Null:
		return "null"
	case Text:
		return strconv.Quote(v.Text)
	case List, Struct:
		items := make([]string, len(v.Items))
		for i, item := range v.Items {
			if items[i] = item.String(); v.Kind == Struct {
				items[i] = v.Names[i] + ": " + items[i]
			}
		}
		if v.Kind == Struct {
			return "{" + strings.Join(items, ", ") + "}"
		}
		return "[" + strings.Join(items, ", ") + "]"
	default:
		return v.Text
	}
}

// SQL returns the value as a SQL expression. The parameter kind is the type of the expression; if it is empty, DuckDB
// infers the type.
func (v Value) SQL(kind string) string {
	if kind == "" {
		return v.literal()
	}
	return v.cast(parseType(kind))
}

// cast returns the value as a SQL expression of a type. It casts every scalar from its text, because casts from text
// are exact for all types.
func (v Value) cast(t *sqlType) string {
	text := quote(v.Text)
	switch {
	case v.Kind == Null:
		text = "NULL"
	case t.nested():
		text = v.spelled().castItems(t)
	case v.Kind == List || v.Kind == Struct:
		text = v.literal()
	}
	return "CAST(" + text + " AS " + t.text + ")"
}

// castItems returns a list, a map or a struct as a SQL expression, in which each item has the type that t declares.
func (v Value) castItems(t *sqlType) string {
	items := make([]string, len(v.Items))
	switch {
	case v.Kind == List && t.items != nil:
		for i, item := range v.Items {
			items[i] = item.cast(t.items)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case v.Kind == Struct && t.key != nil:
		for i, item := range v.Items {
			items[i] = Value{Kind: Text, Text: v.Names[i]}.cast(t.key) + ": " + item.cast(t.value)
		}
		return "MAP {" + strings.Join(items, ", ") + "}"
	case v.Kind == Struct:
		for i, item := range v.Items {
			items[i] = quote(v.Names[i]) + ": " + item.literal()
			for _, field := range t.fields {
				if strings.EqualFold(field.name, v.Names[i]) {
					items[i] = quote(v.Names[i]) + ": " + item.cast(field.kind)
				}
			}
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	return v.literal()
}

// literal returns the value as a SQL literal, with the type that its kind implies.
func (v Value) literal() string {
	items := make([]string, len(v.Items))
	for i, item := range v.Items {
		if items[i] = item.literal(); v.Kind == Struct {
			items[i] = quote(v.Names[i]) + ": " + items[i]
		}
	}
	switch v.Kind {
	case Null:
		return "NULL"
	case List:
		return "[" + strings.Join(items, ", ") + "]"
	case Struct:
		return "{" + strings.Join(items, ", ") + "}"
	case Bool, Integer:
		return v.Text
	case Number:
		return "CAST(" + quote(v.Text) + " AS DOUBLE)"
	case Time:
		return "CAST(" + quote(v.Text) + " AS " + timeType(v.Text) + ")"
	case Text:
	}
	return quote(v.Text)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

var zone = regexp.MustCompile(`(Z|[+-][0-9]{1,2}(:?[0-9]{2})?)$`)

// timeType returns the type of a date, or of a date with a time.
func timeType(text string) string {
	const day = len("2006-01-02")
	switch {
	case len(text) <= day:
		return "DATE"
	case zone.MatchString(text[day:]):
		return "TIMESTAMP WITH TIME ZONE"
	default:
		return "TIMESTAMP"
	}
}

// TypeOf infers the SQL type of a column from its values. The type is empty if DuckDB must infer it, because the
// values are lists, structs, or all NULL.
func TypeOf(values []Value) string {
	kind := ""
	for i := range values {
		next := values[i].sqlType()
		switch {
		case values[i].Kind == Null:
			continue
		case next == "":
			return ""
		case kind == "" || kind == next:
			kind = next
		default:
			kind = widest(kind, next)
		}
	}
	return kind
}

// sqlType returns the type of a scalar.
func (v Value) sqlType() string {
	switch v.Kind {
	case Bool:
		return "BOOLEAN"
	case Integer:
		if _, err := strconv.ParseInt(v.Text, 10, 64); err != nil {
			return exactInteger
		}
		return "BIGINT"
	case Number:
		return "DOUBLE"
	case Time:
		return timeType(v.Text)
	case Text:
		return "VARCHAR"
	default:
		return ""
	}
}

// exactInteger is the type in which workers store integers beyond 64 bits.
const exactInteger = "DECIMAL(38,0)"

// widest returns a type that can hold the values of both types.
func widest(a, b string) string {
	rank := []string{"BIGINT", exactInteger, "DOUBLE", "", "DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"}
	at := func(kind string) int {
		for i, k := range rank {
			if k == kind {
				return i
			}
		}
		return -1
	}
	const dates = 3
	i, j := at(a), at(b)
	if i < 0 || j < 0 || i > dates != (j > dates) {
		return "VARCHAR"
	}
	return rank[max(i, j)]
}
