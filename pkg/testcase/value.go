package testcase

import (
	"math/big"
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
	// Text is the value as SQL can read it, unless it is a list or a struct.
	Text string
	// Items are the items of a list, or the fields of a struct in the order of Names.
	Items []Value
	Names []string
}

// String formats the value for messages.
func (v Value) String() string {
	switch v.Kind {
	case Null:
		return "null"
	case Text:
		return strconv.Quote(v.Text)
	case List:
		return "a list"
	case Struct:
		return "a mapping"
	default:
		return v.Text
	}
}

// SQL returns the value as an expression of a SQL type. If kind is empty, DuckDB infers the type.
func (v Value) SQL(kind string) string {
	text := v.literal(kind != "")
	if kind == "" {
		return text
	}
	return "CAST(" + text + " AS " + kind + ")"
}

// literal returns the value as a SQL literal. If cast is true, a scalar is text, from which casts
// to all types are exact.
func (v Value) literal(cast bool) string {
	switch v.Kind {
	case Null:
		return "NULL"
	case List, Struct:
		var b strings.Builder
		closing := byte(']')
		if b.WriteByte('['); v.Kind == Struct {
			b.Reset()
			b.WriteByte('{')
			closing = '}'
		}
		for i, item := range v.Items {
			if i > 0 {
				b.WriteString(", ")
			}
			if v.Kind == Struct {
				b.WriteString(quote(v.Names[i]) + ": ")
			}
			b.WriteString(item.literal(false))
		}
		b.WriteByte(closing)
		return b.String()
	case Bool, Integer:
		if !cast {
			return v.Text
		}
	case Number:
		if !cast {
			return "CAST(" + quote(v.Text) + " AS DOUBLE)"
		}
	case Time:
		if !cast {
			return "CAST(" + quote(v.Text) + " AS " + timeType(v.Text) + ")"
		}
	case Text:
	}
	return quote(v.Text)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

var (
	integerType = regexp.MustCompile(`^U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)$`)
	decimalType = regexp.MustCompile(`^DECIMAL\([0-9]+,([0-9]+)\)$`)
	zone        = regexp.MustCompile(`(Z|[+-][0-9]{1,2}(:?[0-9]{2})?)$`)
)

// Fits reports whether a cast of the value to a SQL type keeps its meaning. DuckDB rejects other
// casts itself, but it rounds numbers and reads numbers as booleans.
func (v Value) Fits(kind string) bool {
	digits := -1
	if m := decimalType.FindStringSubmatch(kind); m != nil {
		digits, _ = strconv.Atoi(m[1])
	} else if integerType.MatchString(kind) {
		digits = 0
	}
	switch v.Kind {
	case Bool:
		return digits < 0 && kind != "DOUBLE" && kind != "FLOAT"
	case Integer, Number, Text:
		return (kind != "BOOLEAN" || v.Kind == Text) && (digits < 0 || v.hasDigits(digits))
	default:
		return true
	}
}

// maxExponent limits the exponents of numbers whose digits are counted.
const maxExponent = 100

// hasDigits reports whether a number has at most n digits after the point. It also returns true for
// other texts, which DuckDB rejects.
func (v Value) hasDigits(n int) bool {
	text := strings.TrimSpace(v.Text)
	if _, exponent, ok := strings.Cut(strings.ToLower(text), "e"); ok {
		if size, err := strconv.Atoi(exponent); err != nil || size > maxExponent || size < -maxExponent {
			return err != nil
		}
	}
	number, ok := new(big.Rat).SetString(text)
	if !ok {
		return true
	}
	const ten = 10
	scale := new(big.Int).Exp(big.NewInt(ten), big.NewInt(int64(n)), nil)
	return number.Mul(number, new(big.Rat).SetInt(scale)).IsInt()
}

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

// TypeOf returns the SQL type of a column whose type is not known, from its values. It is empty if
// DuckDB has to infer the type, because the values are lists, structs, or all NULL.
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

// widest returns a type for the values of two types.
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
