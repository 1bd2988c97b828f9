package plan

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Types of variables.
const (
	VarString  = "string"
	VarInteger = "integer" // 64 bits
	VarBoolean = "boolean"
	VarDate    = "date"
)

// Limits of the variables of a project.
const (
	MaxVars          = 100
	MaxVarBytes      = 4 << 10
	MaxVarTotalBytes = 16 << 10
)

// VarPattern matches the name of a variable. It is a pattern of both RE2 and ECMAScript.
const VarPattern = `^[a-z][a-z0-9_]{0,62}$`

// VarPrefix precedes the name of a variable in SQL: getvariable('var_currency').
const VarPrefix = "var_"

var leadingZero = regexp.MustCompile(`^[-+]?0[0-9]`)

var varName = regexp.MustCompile(VarPattern)

// ValidVar reports whether a variable may have the given name.
func ValidVar(name string) bool { return varName.MatchString(name) }

// Var is the value of a project's variable.
type Var struct {
	Type string `json:"type"`
	// Value is the canonical text: 7, true, 2025-01-31.
	Value string `json:"value"`
}

// ParseVar parses the text of a value of the given type.
func ParseVar(kind, text string) (Var, error) {
	v := Var{Type: kind, Value: text}
	switch kind {
	case VarString:
		if strings.ContainsRune(text, 0) {
			return Var{}, fmt.Errorf("must not contain a zero byte")
		}
	case VarInteger:
		i, err := strconv.ParseInt(text, 10, 64)
		if leadingZero.MatchString(text) {
			return Var{}, fmt.Errorf("must be an integer without leading zeros, got %q", text)
		}
		if err != nil {
			return Var{}, fmt.Errorf("must be an integer of 64 bits, got %q", text)
		}
		v.Value = strconv.FormatInt(i, 10)
	case VarBoolean:
		if text != "true" && text != "false" {
			return Var{}, fmt.Errorf("must be true or false, got %q", text)
		}
	case VarDate:
		if _, err := time.Parse(time.DateOnly, text); err != nil {
			return Var{}, fmt.Errorf("must be a date such as 2025-01-31, got %q", text)
		}
	default:
		return Var{}, fmt.Errorf("has the unknown type %q", kind)
	}
	if len(text) > MaxVarBytes {
		return Var{}, fmt.Errorf("has %d bytes; at most %d are allowed", len(text), MaxVarBytes)
	}
	return v, nil
}

// SQLType returns the type of the variable in SQL.
func (v Var) SQLType() string {
	switch v.Type {
	case VarInteger:
		return "BIGINT"
	case VarBoolean:
		return "BOOLEAN"
	case VarDate:
		return "DATE"
	default:
		return "VARCHAR"
	}
}
