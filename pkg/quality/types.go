package quality

import (
	"fmt"
	"slices"
	"strings"
)

// typeNames are the types that a schema may name. DuckDB knows each of them.
var typeNames = strings.Fields(`
	BIGINT INT8 LONG BLOB BYTEA BINARY VARBINARY BIT BITSTRING BOOLEAN BOOL LOGICAL DATE DECIMAL NUMERIC DOUBLE FLOAT8
	FLOAT FLOAT4 REAL HUGEINT UHUGEINT INTEGER INT4 INT SIGNED JSON SMALLINT INT2 SHORT TIME TIMESTAMP TIMESTAMPTZ
	DATETIME TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS TINYINT INT1 UBIGINT UINTEGER USMALLINT UTINYINT UUID VARCHAR CHAR
	BPCHAR TEXT STRING ENUM STRUCT ROW MAP`)

// TypeNames returns the names of types that a schema may use.
func TypeNames() []string { return slices.Clone(typeNames) }

// UnknownTypeError is the error for a name that is not a type.
type UnknownTypeError struct{ Name string }

// Error implements error.
func (e *UnknownTypeError) Error() string { return fmt.Sprintf("unknown type %.60q", e.Name) }

// CheckType returns an error unless text is the name of a type in SQL, such as VARCHAR,
// DECIMAL(12,2), INTEGER[] or STRUCT(a INTEGER, b VARCHAR). An accepted text cannot inject SQL into a CAST.
func CheckType(text string) error {
	if len(text) > MaxText {
		return fmt.Errorf("the type has %d bytes: at most %d are allowed", len(text), MaxText)
	}
	p := typeParser{rest: text}
	err := p.parse(0)
	if err == nil && p.next() != "" {
		err = fmt.Errorf("unexpected %.40q after the type", p.token)
	}
	return err
}

// maxTypeDepth bounds the nesting of types.
const maxTypeDepth = 16

// typeParser reads a type: NAME [(arguments)] [suffix …].
type typeParser struct{ rest, token string }

// next reads the next token: a word, a number, a quoted text or one other character.
func (p *typeParser) next() string {
	p.rest = strings.TrimLeft(p.rest, " \t\n")
	if p.rest == "" {
		p.token = ""
		return ""
	}
	end := 1
	switch c := p.rest[0]; {
	case c == '"' || c == '\'':
		for end < len(p.rest) && p.rest[end] != c {
			end++
		}
		end++
	case isWord(c):
		for end < len(p.rest) && isWord(p.rest[end]) {
			end++
		}
	}
	if end > len(p.rest) { // the closing quote is missing
		p.token, p.rest = "\x00", ""
		return p.token
	}
	p.token, p.rest = p.rest[:end], p.rest[end:]
	return p.token
}

// peek returns the next token without reading it.
func (p *typeParser) peek() string {
	ahead := *p
	return ahead.next()
}

func (p *typeParser) accept(token string) bool {
	if strings.EqualFold(p.peek(), token) {
		p.next()
		return true
	}
	return false
}

func (p *typeParser) parse(depth int) error {
	if depth > maxTypeDepth {
		return fmt.Errorf("types are nested deeper than %d", maxTypeDepth)
	}
	name := strings.ToUpper(p.next())
	if !slices.Contains(typeNames, name) {
		return &UnknownTypeError{p.token}
	}
	if p.accept("(") {
		if err := p.arguments(name, depth); err != nil {
			return err
		}
	}
	if (name == "TIMESTAMP" || name == "TIME") && p.accept("WITH") && (!p.accept("TIME") || !p.accept("ZONE")) {
		return fmt.Errorf("expected WITH TIME ZONE")
	}
	for p.accept("[") {
		if size := p.peek(); size != "]" && !isNumber(size) {
			return fmt.Errorf("unexpected %.40q in the size of a list", size)
		} else if size != "]" {
			p.next()
		}
		if !p.accept("]") {
			return fmt.Errorf("the bracket of a list is not closed")
		}
	}
	return nil
}

// arguments reads the arguments of a type up to the closing parenthesis.
func (p *typeParser) arguments(name string, depth int) error {
	for {
		var err error
		switch name {
		case "STRUCT", "ROW":
			if field := p.next(); field == "" || !isWord(field[0]) && field[0] != '"' {
				return fmt.Errorf("expected the name of a field, got %.40q", field)
			}
			err = p.parse(depth + 1)
		case "MAP":
			err = p.parse(depth + 1)
		case "ENUM":
			if value := p.next(); value == "" || value[0] != '\'' {
				err = fmt.Errorf("expected a text in quotes, got %.40q", value)
			}
		default:
			if size := p.next(); !isNumber(size) {
				err = fmt.Errorf("expected a number, got %.40q", size)
			}
		}
		if err != nil {
			return err
		}
		if p.accept(")") {
			return nil
		}
		if !p.accept(",") {
			return fmt.Errorf("expected , or ), got %.40q", p.peek())
		}
	}
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
