// Package jsonpb encodes and decodes the JSON of the API. This package is not a stable API.
//
// The JSON differs from the standard mapping of protobuf in three ways. Names are as in the schema, in snake_case.
// 64-bit integers are numbers, and an integer that a reader could round is an error. Fields without presence are
// written with their default values. Standard parsers of protobuf accept this JSON.
package jsonpb

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxInteger is the greatest integer that every reader of JSON numbers represents exactly.
const maxInteger = 1<<53 - 1

// Marshal returns a message as JSON.
func Marshal(m proto.Message) ([]byte, error) { return Append(nil, m) }

// Append appends a message as JSON.
func Append(dst []byte, m proto.Message) ([]byte, error) {
	dst, err := appendMessage(dst, m.ProtoReflect())
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return dst, nil
}

func appendMessage(dst []byte, m protoreflect.Message) ([]byte, error) {
	switch known := m.Interface().(type) {
	case *timestamppb.Timestamp:
		if err := known.CheckValid(); err != nil {
			return nil, err
		}
		return appendText(dst, known.AsTime().Format(time.RFC3339Nano))
	case *durationpb.Duration:
		return appendText(dst, duration(known))
	}
	dst = append(dst, '{')
	fields, first := m.Descriptor().Fields(), true
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.HasPresence() && !m.Has(field) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(strconv.AppendQuote(dst, string(field.Name())), ':')
		var err error
		if dst, err = appendField(dst, field, m.Get(field)); err != nil {
			return nil, fmt.Errorf("%s: %w", field.Name(), err)
		}
	}
	return append(dst, '}'), nil
}

func appendField(dst []byte, field protoreflect.FieldDescriptor, v protoreflect.Value) (_ []byte, err error) {
	switch {
	case field.IsList():
		dst = append(dst, '[')
		for i := range v.List().Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendValue(dst, field, v.List().Get(i)); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case field.IsMap():
		return appendMap(dst, field, v.Map())
	}
	return appendValue(dst, field, v)
}

func appendMap(dst []byte, field protoreflect.FieldDescriptor, m protoreflect.Map) (_ []byte, err error) {
	keys := make([]string, 0, m.Len())
	for key := range m.Range {
		keys = append(keys, key.String())
	}
	slices.Sort(keys)
	dst = append(dst, '{')
	for i, key := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendText(dst, key); err != nil {
			return nil, err
		}
		dst = append(dst, ':')
		if dst, err = appendValue(dst, field.MapValue(), m.Get(protoreflect.ValueOfString(key).MapKey())); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, field protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch field.Kind() { //nolint:exhaustive // all other kinds are integers
	case protoreflect.BoolKind:
		return strconv.AppendBool(dst, v.Bool()), nil
	case protoreflect.EnumKind:
		if value := field.Enum().Values().ByNumber(v.Enum()); value != nil {
			return strconv.AppendQuote(dst, string(value.Name())), nil
		}
		return strconv.AppendInt(dst, int64(v.Enum()), 10), nil // the value is from a newer schema
	case protoreflect.StringKind:
		return appendText(dst, v.String())
	case protoreflect.BytesKind:
		return appendText(dst, base64.StdEncoding.EncodeToString(v.Bytes()))
	case protoreflect.MessageKind:
		return appendMessage(dst, v.Message())
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
			return nil, fmt.Errorf("%v cannot be written as a JSON number", v.Float())
		}
		return strconv.AppendFloat(dst, v.Float(), 'g', -1, 64), nil
	}
	n, ok := v.Interface().(int64)
	if !ok {
		return append(dst, v.String()...), nil // an integer of 32 bits needs no check
	}
	if n > maxInteger || n < -maxInteger {
		return nil, fmt.Errorf("%d has more than 53 bits", n)
	}
	return strconv.AppendInt(dst, n, 10), nil
}

func appendText(dst []byte, s string) ([]byte, error) { return jsontext.AppendQuote(dst, s) }

// duration formats a duration in seconds: "1.5s".
func duration(d *durationpb.Duration) string {
	return strconv.FormatFloat(d.AsDuration().Seconds(), 'f', -1, 64) + "s"
}
