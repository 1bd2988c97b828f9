package render

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/servo-orchestration/servo/pkg/ids"
)

// Number is a number that no Go type represents exactly: a decimal, or an integer of more than
// 64 bits.
type Number string

// Field is one named value of Fields.
type Field struct {
	Name  string
	Value any
}

// Fields is a struct or a map with ordered fields.
type Fields []Field

// Text returns the cell as text for people. Texts in a list or a struct are not quoted.
func Text(cell any) string {
	switch v := cell.(type) {
	case nil:
		return "NULL"
	case string:
		return v
	case Number:
		return string(v)
	case float32:
		return floatText(float64(v), 32)
	case float64:
		return floatText(v, 64)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case []byte:
		return `\x` + hex.EncodeToString(v)
	case []any:
		parts := make([]string, len(v))
		for i, part := range v {
			parts[i] = Text(part)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case Fields:
		parts := make([]string, len(v))
		for i, field := range v {
			parts[i] = field.Name + ": " + Text(field.Value)
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(cell)
}

// floatText returns a float as text. It writes numbers of ordinary size without an exponent.
func floatText(v float64, bits int) string {
	const least, most = 1e-6, 1e15
	if size := math.Abs(v); size == 0 || size >= least && size < most {
		return strconv.FormatFloat(v, 'f', -1, bits)
	}
	return strconv.FormatFloat(v, 'g', -1, bits)
}

// numeric reports whether a cell is a number. A table aligns numbers to the right.
func numeric(cell any) bool {
	switch cell.(type) {
	case Number, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64:
		return true
	}
	return false
}

// isID reports whether a cell is the id of a run, a request or another object of the state.
func isID(cell any) bool {
	text, ok := cell.(string)
	return ok && ids.Valid(text)
}

// plain reports whether encoding/json writes the cell correctly.
func plain(cell any) bool {
	switch v := cell.(type) {
	case float64:
		return !math.IsNaN(v) && !math.IsInf(v, 0)
	case float32:
		return plain(float64(v))
	case time.Time, []byte, Number, []any, Fields:
		return false
	}
	return true
}

// AppendJSON appends the cell as JSON. A value without a JSON form becomes text.
func AppendJSON(out []byte, cell any) ([]byte, error) {
	switch v := cell.(type) {
	case Number:
		if json.Valid([]byte(v)) {
			return append(out, v...), nil
		}
	case []any:
		out = append(out, '[')
		for i, part := range v {
			if i > 0 {
				out = append(out, ',')
			}
			var err error
			if out, err = AppendJSON(out, part); err != nil {
				return nil, err
			}
		}
		return append(out, ']'), nil
	case Fields:
		return appendObject(out, v)
	}
	if !plain(cell) {
		cell = Text(cell)
	}
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(cell); err != nil {
		return nil, fmt.Errorf("write %T as JSON: %w", cell, err)
	}
	return append(out, bytes.TrimRight(buffer.Bytes(), "\n")...), nil
}

func appendObject(out []byte, fields Fields) ([]byte, error) {
	out = append(out, '{')
	for i, field := range fields {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = AppendJSON(out, field.Name); err != nil {
			return nil, err
		}
		if out, err = AppendJSON(append(out, ':'), field.Value); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}
