package arrowipc

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"

	"github.com/servo-orchestration/servo/pkg/query/render"
)

// fixedSize is the number of bytes that each cell adds to the size of its batch. Text and bytes add their length,
// too.
const fixedSize = 8

// append appends a cell to the builder of a column, or of a part of a column.
func (b *batch) append(to array.Builder, cell any) error {
	b.bytes += fixedSize
	if cell == nil {
		to.AppendNull()
		return nil
	}
	switch to := to.(type) {
	case *array.StringBuilder:
		text, err := textOf(cell)
		b.bytes += len(text)
		to.Append(text)
		return err
	case *array.BinaryBuilder:
		data, ok := cell.([]byte)
		b.bytes += len(data)
		to.Append(data)
		return matches(ok, cell)
	case *array.ListBuilder:
		parts, ok := cell.([]any)
		to.Append(true)
		for _, part := range parts {
			if err := b.append(to.ValueBuilder(), part); err != nil {
				return err
			}
		}
		return matches(ok, cell)
	case *array.MapBuilder:
		return b.appendMap(to, cell)
	case *array.StructBuilder:
		return b.appendStruct(to, cell)
	}
	return appendScalar(to, cell)
}

func (b *batch) appendMap(to *array.MapBuilder, cell any) error {
	fields, ok := cell.(render.Fields)
	to.Append(true)
	for _, field := range fields {
		if err := b.append(to.KeyBuilder(), field.Name); err != nil {
			return err
		}
		if err := b.append(to.ItemBuilder(), field.Value); err != nil {
			return err
		}
	}
	return matches(ok, cell)
}

func (b *batch) appendStruct(to *array.StructBuilder, cell any) error {
	fields, ok := cell.(render.Fields)
	if err := matches(ok && len(fields) == to.NumField(), cell); err != nil {
		return err
	}
	to.Append(true)
	for i, field := range fields {
		if err := b.append(to.FieldBuilder(i), field.Value); err != nil {
			return err
		}
	}
	return nil
}

// matches returns an error unless ok is true. ok means that a cell has the Go type that its column needs.
func matches(ok bool, cell any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("a value of the Go type %T does not fit this Arrow type", cell)
}

// appendScalar appends a number, a truth value or a time.
func appendScalar(to array.Builder, cell any) (err error) {
	switch to := to.(type) {
	case *array.BooleanBuilder:
		return appendAs(to.Append, cell)
	case *array.Int8Builder:
		return appendAs(to.Append, cell)
	case *array.Int16Builder:
		return appendAs(to.Append, cell)
	case *array.Int32Builder:
		return appendAs(to.Append, cell)
	case *array.Int64Builder:
		return appendAs(to.Append, cell)
	case *array.Uint8Builder:
		return appendAs(to.Append, cell)
	case *array.Uint16Builder:
		return appendAs(to.Append, cell)
	case *array.Uint32Builder:
		return appendAs(to.Append, cell)
	case *array.Uint64Builder:
		return appendAs(to.Append, cell)
	case *array.Float32Builder:
		return appendAs(to.Append, cell)
	case *array.Float64Builder:
		return appendAs(to.Append, cell)
	case *array.Decimal128Builder:
		return appendDecimal(to, cell)
	case *array.Date32Builder:
		return appendDate(to, cell)
	case *array.Time64Builder:
		return appendTime(to, cell)
	case *array.TimestampBuilder:
		return appendTimestamp(to, cell)
	}
	return matches(false, cell)
}

func appendAs[T any](add func(T), cell any) error {
	value, ok := cell.(T)
	if ok {
		add(value)
	}
	return matches(ok, cell)
}

// appendDecimal appends a number with 128 bits. The cell is the number as text. It has as many digits after the
// decimal point as the scale of its type.
func appendDecimal(to *array.Decimal128Builder, cell any) error {
	text, ok := cell.(render.Number)
	if !ok {
		return matches(false, cell)
	}
	kind, _ := to.Type().(*arrow.Decimal128Type) // the builder of a decimal column always has this type
	number, err := decimal128.FromString(string(text), kind.Precision, kind.Scale)
	if err != nil {
		return fmt.Errorf("the number %s has more than %d digits", text, kind.Precision)
	}
	to.Append(number)
	return nil
}

const day = 24 * 60 * 60

// infinity returns the number with which DuckDB represents an infinite date or time: most or -most. ok is false for
// every other cell.
func infinity(cell any, most int64) (number int64, ok bool) {
	switch cell {
	case "infinity":
		return most, true
	case "-infinity":
		return -most, true
	}
	return 0, false
}

func appendDate(to *array.Date32Builder, cell any) error {
	if days, ok := infinity(cell, math.MaxInt32); ok {
		to.Append(arrow.Date32(days)) //nolint:gosec // days is ±MaxInt32
		return nil
	}
	at, err := parse(time.DateOnly, cell)
	if err == nil {
		to.Append(arrow.Date32(at.Unix() / day)) //nolint:gosec // a date with a year of four digits
	}
	return err
}

func appendTime(to *array.Time64Builder, cell any) error {
	if cell == "24:00:00" {
		return errors.New("24:00:00 is no time of day in Arrow")
	}
	at, err := parse("15:04:05.999999", cell)
	if err == nil {
		midnight := time.Date(at.Year(), at.Month(), at.Day(), 0, 0, 0, 0, time.UTC)
		to.Append(arrow.Time64(at.Sub(midnight).Microseconds()))
	}
	return err
}

// appendTimestamp appends a time. If the type has a time zone, the cell is a [time.Time]; otherwise, it is text.
func appendTimestamp(to *array.TimestampBuilder, cell any) error {
	if ticks, ok := infinity(cell, math.MaxInt64); ok {
		to.Append(arrow.Timestamp(ticks))
		return nil
	}
	at, ok := cell.(time.Time)
	if !ok {
		var err error
		if at, err = parse("2006-01-02T15:04:05.999999999", cell); err != nil {
			return err
		}
	}
	kind, _ := to.Type().(*arrow.TimestampType) // the builder of a timestamp column always has this type
	ticks, err := arrow.TimestampFromTime(at, kind.Unit)
	if err != nil {
		return fmt.Errorf("the time %s is out of range", at)
	}
	to.Append(ticks)
	return nil
}

func parse(layout string, cell any) (time.Time, error) {
	text, ok := cell.(string)
	if !ok {
		return time.Time{}, matches(false, cell)
	}
	at, err := time.Parse(layout, text)
	if err != nil {
		return at, fmt.Errorf("%s cannot be read: only years from 0000 to 9999 are supported", text)
	}
	return at, nil
}

// textOf returns the text of a cell whose type has no Arrow type of its own. A value that is not text is written as
// JSON.
func textOf(cell any) (string, error) {
	if text, ok := cell.(string); ok {
		return strings.ToValidUTF8(text, "\uFFFD"), nil
	}
	raw, err := render.AppendJSON(nil, cell)
	if err != nil {
		return "", errors.Join(matches(false, cell), err)
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	return string(raw), nil
}
