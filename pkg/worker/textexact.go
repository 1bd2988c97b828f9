package worker

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/servo-orchestration/servo/pkg/sqltext"
)

// A declared type must represent the texts of its column without a change. DuckDB rounds a number, cuts off digits of a
// second, and ignores the offset of a time, without an error. Therefore the worker compares texts with patterns.

// exactly returns a pattern for the texts that a scalar type can represent without a change. For types that need no
// pattern, exactly returns "".
func exactly(t *sqltext.Type) string {
	const (
		day    = `-?[0-9]{1,6}[-/][0-9]{1,2}[-/][0-9]{1,2}`
		clock  = `[0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}`
		utc    = ` *(Z|UTC|[+-][0:]+)?` // Servo's times are UTC, so dropping this offset loses nothing
		anyOne = ` *(Z|[+-][0-9:]+|[A-Z][A-Z0-9_/+-]*)?`
	)
	// fraction returns a pattern that follows clock: at most the given number of digits after the decimal point, and
	// then only zeros.
	fraction := func(digits int) string { return `(\.[0-9]{0,` + strconv.Itoa(digits) + `}0*)?)?` }
	timestamp := func(digits int, zone string) string {
		return `(?i) *(-?infinity|epoch|` + day + `([ T]` + clock + fraction(digits) + zone + `)?) *`
	}
	const milli, micro, nano = 3, 6, 9
	switch {
	case integerKind.MatchString(t.Name):
		return `[-+]?[0-9]+(\.0*)?`
	case t.Name == "DECIMAL":
		return `[-+]?[0-9]*(\.[0-9]{0,` + strconv.Itoa(int(t.Scale)) + `}0*)?`
	}
	switch t.Name {
	case "DATE":
		return `[0-9]{4}-[0-9]{2}-[0-9]{2}`
	case "TIME":
		return `(?i) *` + clock + fraction(micro) + utc + ` *`
	case "TIMESTAMP":
		return timestamp(micro, utc)
	case "TIMESTAMP_S":
		return timestamp(0, utc)
	case "TIMESTAMP_MS":
		return timestamp(milli, utc)
	case "TIMESTAMP_NS":
		return timestamp(nano, utc)
	case "TIMESTAMP WITH TIME ZONE":
		return timestamp(micro, anyOne)
	}
	return ""
}

var integerKind = regexp.MustCompile(`^U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?$`)

// nestedType is a declared type of lists, structs and maps, with the patterns of its scalar types.
type nestedType struct {
	*sqltext.Type
	pattern *regexp.Regexp // nil: the type can represent every text
	parts   []nestedType
}

// nested returns a type as a nestedType, or nil if it is a scalar type.
func nested(kind string) *nestedType {
	t := sqltext.ParseType(kind)
	if len(t.Parts) == 0 {
		return nil
	}
	n := withPatterns(&t)
	return &n
}

func withPatterns(t *sqltext.Type) nestedType {
	n := nestedType{Type: t}
	for i := range t.Parts {
		n.parts = append(n.parts, withPatterns(&t.Parts[i]))
	}
	if pattern := exactly(t); pattern != "" {
		n.pattern = regexp.MustCompile(`^(?:` + pattern + `)$`)
	}
	return n
}

// textKind returns the name of a type with the same structure, in which all scalar types are VARCHAR.
func textKind(t *sqltext.Type) string {
	parts := make([]string, len(t.Parts))
	for i := range t.Parts {
		parts[i] = textKind(&t.Parts[i])
		if t.Name == "STRUCT" {
			parts[i] = quoteName(t.Fields[i]) + " " + parts[i]
		}
	}
	switch {
	case len(parts) == 0:
		return "VARCHAR"
	case t.Name == "LIST":
		return parts[0] + "[]"
	}
	return t.Name + "(" + strings.Join(parts, ", ") + ")"
}

var errInexact = errors.New("the type cannot hold the value exactly")

// hold returns a JSON value in which all numbers are strings. DuckDB would convert JSON numbers to DOUBLE before it
// converts them to the type n. hold returns errInexact if a conversion to this type would change a part of the value.
func (n *nestedType) hold(value string) (string, error) {
	var b bytes.Buffer
	if err := n.copy(jsontext.NewDecoder(strings.NewReader(value)), jsontext.NewEncoder(&b)); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// copy copies the next value.
func (n *nestedType) copy(from *jsontext.Decoder, to *jsontext.Encoder) error {
	switch kind := from.PeekKind(); {
	case n.Name == "LIST" && kind == '[':
		return copyBetween(from, to, ']', func() error { return n.parts[0].copy(from, to) })
	case n.Name == "STRUCT" && kind == '{', n.Name == "MAP" && kind == '{':
		return copyBetween(from, to, '}', func() error { return n.copyMember(from, to) })
	}
	value, err := from.ReadValue()
	if err != nil {
		return err
	}
	return n.copyScalar(value, to)
}

// copyBetween copies the brackets of a list or an object. For each element between them, it calls the parameter "each",
// which copies the element.
func copyBetween(from *jsontext.Decoder, to *jsontext.Encoder, closing jsontext.Kind, each func() error) error {
	copyToken := func() error {
		token, err := from.ReadToken()
		if err != nil {
			return err
		}
		return to.WriteToken(token)
	}
	if err := copyToken(); err != nil {
		return err
	}
	for from.PeekKind() != closing {
		if err := each(); err != nil {
			return err
		}
	}
	return copyToken()
}

// copyMember copies a member of an object: a field of a struct, or an entry of a map.
func (n *nestedType) copyMember(from *jsontext.Decoder, to *jsontext.Encoder) error {
	token, err := from.ReadToken()
	if err != nil {
		return err
	}
	name := token.String()
	if n.Name == "MAP" {
		if err := n.parts[0].write(name, to); err != nil {
			return err
		}
		return n.parts[1].copy(from, to)
	}
	i := slices.Index(n.Fields, name)
	if i < 0 {
		return errInexact // DuckDB rejects a member that is not a field
	}
	if err := to.WriteToken(jsontext.String(name)); err != nil {
		return err
	}
	return n.parts[i].copy(from, to)
}

// copyScalar copies a value that belongs to a scalar type.
func (n *nestedType) copyScalar(value jsontext.Value, to *jsontext.Encoder) error {
	switch kind := value.Kind(); {
	case kind == 'n', n.Name == "JSON":
		return to.WriteValue(value)
	case kind == '"':
		text, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			return err
		}
		return n.write(string(text), to)
	case len(n.parts) > 0:
		return errInexact
	}
	return n.write(string(value), to)
}

// write writes the text of a scalar.
func (n *nestedType) write(text string, to *jsontext.Encoder) error {
	if n.pattern != nil && !n.pattern.MatchString(text) {
		return errInexact
	}
	if integerKind.MatchString(n.Name) {
		text, _, _ = strings.Cut(text, ".") // DuckDB does not cast the JSON string "2.0" to an integer
	}
	return to.WriteToken(jsontext.String(text))
}
