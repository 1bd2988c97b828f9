package testcase

import (
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// sqlType is a type of DuckDB.
type sqlType struct {
	// text is the whole name, as DuckDB writes it.
	text string
	// items is the type of the items of a list or an array. size is the length of an array, or -1.
	items *sqlType
	size  int
	// key and value are the types of a map.
	key, value *sqlType
	// fields are the fields of a struct.
	fields []structField
}

type structField struct {
	name string
	kind *sqlType
}

// parseType parses the name of a type, as DESCRIBE prints it.
func parseType(text string) *sqlType {
	t := &sqlType{text: strings.TrimSpace(text), size: -1}
	inner, struc := strings.CutPrefix(t.text, "STRUCT(")
	if strings.HasSuffix(t.text, "]") {
		open := strings.LastIndexByte(t.text, '[')
		t.items = parseType(t.text[:open])
		if n, err := strconv.Atoi(t.text[open+1 : len(t.text)-1]); err == nil {
			t.size = n
		}
		return t
	}
	if struc {
		for _, field := range arguments(inner) {
			end := quotedEnd(field)
			name := field[:end]
			if strings.HasPrefix(name, `"`) {
				name = strings.ReplaceAll(strings.Trim(name, `"`), `""`, `"`)
			}
			t.fields = append(t.fields, structField{name, parseType(field[end:])})
		}
		return t
	}
	const both = 2
	if inner, ok := strings.CutPrefix(t.text, "MAP("); ok {
		if parts := arguments(inner); len(parts) == both {
			t.key, t.value = parseType(parts[0]), parseType(parts[1])
		}
	}
	return t
}

// arguments splits the text after the opening parenthesis of a type into the type's arguments, up to the closing
// parenthesis.
func arguments(text string) (parts []string) {
	depth, start := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' || c == '\'':
			i += quotedEnd(text[i:]) - 1
		case c == '(':
			depth++
		case c == ')' && depth > 0:
			depth--
		case c == ')', c == ',' && depth == 0:
			parts = append(parts, strings.TrimSpace(text[start:i]))
			if start = i + 1; c == ')' {
				return parts
			}
		}
	}
	return parts
}

// quotedEnd returns the length of the word, or of the text in quotes, at the beginning of a text.
func quotedEnd(text string) int {
	if text == "" || text[0] != '"' && text[0] != '\'' {
		if end := strings.IndexByte(text, ' '); end >= 0 {
			return end
		}
		return len(text)
	}
	for i := 1; i < len(text); i++ {
		if text[i] != text[0] {
			continue
		}
		if i+1 == len(text) || text[i+1] != text[0] {
			return i + 1
		}
		i++ // skip the second of two quotation marks
	}
	return len(text)
}

func (t *sqlType) nested() bool { return t.items != nil || t.fields != nil || t.key != nil }

// open reports whether a type can hold values of different kinds, as JSON can.
func (t *sqlType) open() bool {
	return t.text == "JSON" || t.text == "VARIANT" || strings.HasPrefix(t.text, "UNION(")
}

// Fits reports whether a SQL type can hold the value unchanged. DuckDB's casts do not check this: they round numbers,
// drop times of day, offsets and unknown fields of structs, and convert numbers to booleans.
func (v Value) Fits(kind string) bool { return v.fits(parseType(kind)) }

func (v Value) fits(t *sqlType) bool {
	switch {
	case v.Kind == Null || t.open():
		return true
	case t.nested():
		v = v.spelled()
		return v.Kind == List && v.fitsList(t) || v.Kind == Struct && v.fitsFields(t)
	case v.Kind == List || v.Kind == Struct:
		return false
	}
	return v.fitsScalar(t.text)
}

// spelled returns the list or the struct that the text of the value represents. For other values, it returns the
// value itself.
func (v Value) spelled() Value {
	if v.Spelled != nil {
		return *v.Spelled
	}
	return v
}

func (v Value) fitsList(t *sqlType) bool {
	return t.items != nil && (t.size < 0 || t.size == len(v.Items)) &&
		!slices.ContainsFunc(v.Items, func(item Value) bool { return !item.fits(t.items) })
}

// fitsFields reports whether a struct or a map type can hold a mapping. A struct type must have exactly the fields of
// the mapping.
func (v Value) fitsFields(t *sqlType) bool {
	if t.key != nil {
		for i, name := range v.Names {
			if !(Value{Kind: Text, Text: name}).fits(t.key) || !v.Items[i].fits(t.value) {
				return false
			}
		}
		return true
	}
	if len(t.fields) != len(v.Items) {
		return false
	}
	for _, field := range t.fields {
		at := slices.IndexFunc(v.Names, func(name string) bool { return strings.EqualFold(name, field.name) })
		if at < 0 || !v.Items[at].fits(field.kind) {
			return false
		}
	}
	return true
}

var (
	integerType = regexp.MustCompile(`^U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)$`)
	decimalType = regexp.MustCompile(`^DECIMAL\([0-9]+,([0-9]+)\)$`)
	numberText  = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)
	endlessText = regexp.MustCompile(`(?i)^[+-]?(inf|infinity|nan)$`)
	dateText    = regexp.MustCompile(`(?i)^([0-9]{4,6}-[0-9]{1,2}-[0-9]{1,2}( \(BC\))?|epoch|-?infinity)$`)
	stampText   = regexp.MustCompile(`(?i)^[0-9]{4,6}-[0-9]{1,2}-[0-9]{1,2}(?:[ T]+[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.([0-9]+))?)?)?\s*(Z|UTC|[+-][0-9]{1,2}(?::?[0-9]{2})?)?( \(BC\))?$`)
	clockText   = regexp.MustCompile(`(?i)^[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:\.([0-9]+))?)?\s*(Z|[+-][0-9]{1,2}(?::?[0-9]{2})?)?$`)
	unitsText   = regexp.MustCompile(`\.[0-9]{6}[0-9]*[1-9]`)
)

// Numbers of decimal places of seconds that time types can store.
const (
	milliDecimals = 3
	microDecimals = 6
	nanoDecimals  = 9
)

var timeDecimals = map[string]int{
	"TIMESTAMP": microDecimals, "TIMESTAMP_S": 0, "TIMESTAMP_MS": milliDecimals, "TIMESTAMP_NS": nanoDecimals,
	"TIMESTAMP WITH TIME ZONE": microDecimals, "TIME": microDecimals, "TIME_NS": nanoDecimals, "TIME WITH TIME ZONE": microDecimals,
}

// fitsScalar reports whether a type that is not nested can hold a scalar. It returns true for some scalars that do
// not fit, such as numbers that are too large, because DuckDB itself rejects them.
func (v Value) fitsScalar(kind string) bool {
	text := strings.TrimSpace(v.Text)
	number := (v.Kind == Integer || v.Kind == Number || v.Kind == Text) && numberText.MatchString(text)
	written := v.Kind == Time || v.Kind == Text
	decimals, timed := timeDecimals[kind]
	m := decimalType.FindStringSubmatch(kind)
	switch {
	case kind == "BOOLEAN":
		return v.Kind == Bool || v.Kind == Text && (strings.EqualFold(text, "true") || strings.EqualFold(text, "false"))
	case m != nil:
		digits, _ := strconv.Atoi(m[1])
		return number && hasDigits(text, digits)
	case integerType.MatchString(kind):
		return number && hasDigits(text, 0)
	case isFloat(kind):
		return number && !vanishes(text, kind) || v.Kind != Bool && endlessText.MatchString(text)
	case kind == "DATE":
		return written && dateText.MatchString(text)
	case timed:
		pattern := stampText
		if strings.HasPrefix(kind, "TIME ") || !strings.HasPrefix(kind, "TIMESTAMP") {
			pattern = clockText
		}
		parts := pattern.FindStringSubmatch(text)
		if parts == nil {
			return written && pattern == stampText && dateText.MatchString(text)
		}
		const fraction, offset = 1, 2
		return written && len(strings.TrimRight(parts[fraction], "0")) <= decimals && (parts[offset] == "" || strings.HasSuffix(kind, "ZONE"))
	case kind == "INTERVAL":
		return v.Kind == Text && !unitsText.MatchString(text)
	}
	return true
}

// maxExponent is the greatest exponent of a number whose digits are counted. Numbers with greater exponents are
// rejected.
const maxExponent = 100

// hasDigits reports whether a number has at most n digits after the decimal point.
func hasDigits(text string, n int) bool {
	if _, exponent, ok := strings.Cut(strings.ToLower(text), "e"); ok {
		if size, err := strconv.Atoi(exponent); err != nil || size > maxExponent || size < -maxExponent {
			return false
		}
	}
	number, ok := new(big.Rat).SetString(text)
	if !ok {
		return false
	}
	const ten = 10
	scale := new(big.Int).Exp(big.NewInt(ten), big.NewInt(int64(n)), nil)
	return number.Mul(number, new(big.Rat).SetInt(scale)).IsInt()
}

// vanishes reports whether a number that is not zero becomes zero in a floating-point type.
func vanishes(text, kind string) bool {
	bits := 64
	if kind == "FLOAT" {
		bits = 32
	}
	x, _ := strconv.ParseFloat(text, bits)
	digits, _, _ := strings.Cut(strings.ToLower(text), "e")
	return x == 0 && strings.ContainsAny(digits, "123456789")
}
