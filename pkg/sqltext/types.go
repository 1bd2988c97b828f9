package sqltext

import (
	"strconv"
	"strings"
)

// Type is a type of DuckDB.
type Type struct {
	// Name is LIST, MAP, STRUCT, UNION, or the name of a scalar type without parameters.
	Name string
	// Parts are the types of a list's element, of a map's key and value, or of a struct's fields. Fields are the names
	// of the struct's fields.
	Parts  []Type
	Fields []string
	// Members are the types of a union's members. Fields are their names.
	Members []Type
	// Width and Scale are the parameters of a DECIMAL.
	Width, Scale int32
}

// ParseType parses the name of a type, such as DECIMAL(9,2)[] or STRUCT(a INTEGER). If it cannot parse the name, the
// type has this name and no parts.
func ParseType(name string) Type {
	name = strings.TrimSpace(name)
	if at := strings.LastIndexByte(name, '['); at > 0 && strings.HasSuffix(name, "]") {
		return Type{Name: "LIST", Parts: []Type{ParseType(name[:at])}}
	}
	head, inner, ok := strings.Cut(name, "(")
	if !ok || !strings.HasSuffix(inner, ")") {
		return Type{Name: name}
	}
	t := Type{Name: head}
	parts := splitTypes(strings.TrimSuffix(inner, ")"))
	switch head {
	case "MAP":
		for _, part := range parts {
			t.Parts = append(t.Parts, ParseType(part))
		}
	case "STRUCT":
		for _, part := range parts {
			field, typeName := cutField(part)
			t.Fields = append(t.Fields, field)
			t.Parts = append(t.Parts, ParseType(typeName))
		}
	case "UNION":
		for _, part := range parts {
			field, typeName := cutField(part)
			t.Fields = append(t.Fields, field)
			t.Members = append(t.Members, ParseType(typeName))
		}
	case "DECIMAL":
		if len(parts) == 2 { //nolint:mnd // the width and the scale
			t.Width, t.Scale = number(parts[0]), number(parts[1])
		}
	}
	return t
}

// number parses a parameter of a type. It returns 0 for a text that is not a number.
func number(text string) int32 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

// splitTypes splits a list at the commas outside of parentheses and quoted names.
func splitTypes(list string) []string {
	var parts []string
	depth, start := 0, 0
	inName := false
	for i := range len(list) {
		switch c := list[i]; {
		case c == '"':
			inName = !inName
		case inName:
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, list[start:i])
			start = i + 1
		}
	}
	return append(parts, list[start:])
}

// cutField splits a struct's field into its name, which may be quoted, and its type.
func cutField(field string) (name, typeName string) {
	field = strings.TrimSpace(field)
	if !strings.HasPrefix(field, `"`) {
		name, typeName, _ = strings.Cut(field, " ")
		return name, typeName
	}
	end := quotedName(field)
	return strings.ReplaceAll(strings.TrimSuffix(field[1:end], `"`), `""`, `"`), field[end:]
}

// quotedName returns the length of the quoted name at the start of a text. A doubled quotation mark does not end it.
func quotedName(text string) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] != '"':
		case strings.HasPrefix(text[i+1:], `"`):
			i++
		default:
			return i + 1
		}
	}
	return len(text)
}
