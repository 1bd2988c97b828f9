package jsonpb

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxDepth limits how deeply objects and lists are nested.
const maxDepth = 64

// FieldError says what is wrong with a field of a request.
type FieldError struct {
	// Path is the path of the field: "labels[owner]". Empty: the whole request.
	Path string
	// Problem completes a sentence that begins with the path: "must be a string, got a number".
	Problem string
}

// Error implements error.
func (e *FieldError) Error() string {
	if e.Path == "" {
		return "it " + e.Problem
	}
	return strconv.Quote(e.Path) + " " + e.Problem
}

// Unmarshal decodes JSON into a message, which it resets first. It rejects unknown and repeated fields,
// because a misspelt field could start a different run than the caller intended. The error about an invalid field is
// a [*FieldError].
func Unmarshal(data []byte, m proto.Message) error {
	proto.Reset(m)
	d := decoder{jsontext.NewDecoder(bytes.NewReader(data))}
	if err := d.message("", m.ProtoReflect()); err != nil {
		return err
	}
	if _, err := d.in.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("trailing data after the JSON object")
	}
	return nil
}

type decoder struct{ in *jsontext.Decoder }

func wrong(path, format string, args ...any) error {
	return &FieldError{path, fmt.Sprintf(format, args...)}
}

// next returns the kind of the next value.
func (d *decoder) next(path string) (jsontext.Kind, error) {
	kind := d.in.PeekKind()
	if kind == jsontext.KindInvalid {
		_, err := d.in.ReadToken()
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return kind, fmt.Errorf("invalid JSON: %w", err)
	}
	if d.in.StackDepth() > maxDepth {
		return kind, wrong(path, "is nested more than %d levels deep", maxDepth)
	}
	return kind, nil
}

// begin reads the first token of a value. It returns an error if the value is not of the given kind.
func (d *decoder) begin(path string, want jsontext.Kind, words string) error {
	kind, err := d.next(path)
	switch {
	case err != nil:
		return err
	case kind != want:
		return wrong(path, "must be %s, got %s", words, inWords(kind))
	}
	_, err = d.in.ReadToken()
	return err
}

// inWords describes a kind of value, for errors.
func inWords(kind jsontext.Kind) string {
	switch kind { //nolint:exhaustive // the other kinds do not begin a value
	case jsontext.KindNull:
		return "null"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "true or false"
	case jsontext.KindString:
		return "a string"
	case jsontext.KindNumber:
		return "a number"
	case jsontext.KindBeginObject:
		return "an object"
	}
	return "a list"
}

// members calls the function read for each member of an object.
func (d *decoder) members(path string, read func(name string) error) error {
	if err := d.begin(path, jsontext.KindBeginObject, "an object"); err != nil {
		return err
	}
	for {
		token, err := d.in.ReadToken()
		if err != nil {
			return syntax(err)
		}
		if token.Kind() == jsontext.KindEndObject {
			return nil
		}
		if err := read(token.String()); err != nil {
			return err
		}
	}
}

// syntax describes an error of the JSON itself.
func syntax(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("invalid JSON: %w", err)
}

func (d *decoder) message(path string, m protoreflect.Message) error {
	seen := map[protoreflect.Name]bool{}
	return d.members(path, func(name string) error {
		at := join(path, name)
		field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil {
			field = m.Descriptor().Fields().ByJSONName(name) // standard clients of protobuf write camelCase names
		}
		switch {
		case field == nil:
			return wrong(at, "is unknown")
		case seen[field.Name()]:
			return wrong(at, "is given twice")
		}
		seen[field.Name()] = true
		return d.field(at, m, field)
	})
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (d *decoder) field(path string, m protoreflect.Message, field protoreflect.FieldDescriptor) error {
	switch {
	case field.IsMap():
		into := m.Mutable(field).Map()
		return d.members(path, func(key string) error {
			if field.MapValue().Kind() == protoreflect.MessageKind {
				v := into.NewValue()
				into.Set(protoreflect.ValueOfString(key).MapKey(), v)
				return d.message(fmt.Sprintf("%s[%s]", path, key), v.Message())
			}
			v, err := d.scalar(fmt.Sprintf("%s[%s]", path, key), field.MapValue())
			if err == nil {
				into.Set(protoreflect.ValueOfString(key).MapKey(), v)
			}
			return err
		})
	case field.IsList():
		return d.list(path, m.Mutable(field).List(), field)
	case field.Kind() == protoreflect.MessageKind:
		return d.nested(path, m.Mutable(field).Message())
	}
	v, err := d.scalar(path, field)
	if err == nil {
		m.Set(field, v)
	}
	return err
}

func (d *decoder) list(path string, into protoreflect.List, field protoreflect.FieldDescriptor) error {
	words := "a list"
	if field.Kind() == protoreflect.StringKind {
		words = "a list of strings"
	}
	if err := d.begin(path, jsontext.KindBeginArray, words); err != nil {
		return err
	}
	for i := 0; ; i++ {
		at := fmt.Sprintf("%s[%d]", path, i)
		kind, err := d.next(at)
		if err != nil {
			return err
		}
		switch {
		case kind == jsontext.KindEndArray:
			_, err := d.in.ReadToken()
			return err
		case field.Kind() == protoreflect.MessageKind:
			if err := d.nested(at, into.AppendMutable().Message()); err != nil {
				return err
			}
			continue
		}
		v, err := d.scalar(at, field)
		if err != nil {
			return err
		}
		into.Append(v)
	}
}

// nested decodes a field that is a message.
func (d *decoder) nested(path string, m protoreflect.Message) error {
	switch into := m.Interface().(type) {
	case *timestamppb.Timestamp, *durationpb.Duration:
		kind, err := d.next(path)
		if err != nil {
			return err
		}
		if kind != jsontext.KindString {
			return wrong(path, "must be a string, got %s", inWords(kind))
		}
		token, err := d.in.ReadToken()
		if err != nil {
			return syntax(err)
		}
		return parseKnown(path, token.String(), into)
	}
	return d.message(path, m)
}

// parseKnown parses a time or a duration.
func parseKnown(path, text string, into proto.Message) error {
	switch into := into.(type) {
	case *timestamppb.Timestamp:
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return wrong(path, `must be a time such as "2025-01-15T10:30:00Z", got %q`, text)
		}
		parsed := timestamppb.New(at)
		if err := parsed.CheckValid(); err != nil {
			return wrong(path, "must be a time in the years 1 to 9999, got %q", text)
		}
		into.Seconds, into.Nanos = parsed.Seconds, parsed.Nanos
	case *durationpb.Duration:
		seconds, unit := strings.CutSuffix(text, "s")
		n, err := strconv.ParseFloat(seconds, 64)
		if !unit || err != nil || math.Abs(n) >= math.MaxInt64/float64(time.Second) || math.IsNaN(n) {
			return wrong(path, `must be a number of seconds such as "1.5s", got %q`, text)
		}
		parsed := durationpb.New(time.Duration(math.Round(n * float64(time.Second))))
		into.Seconds, into.Nanos = parsed.Seconds, parsed.Nanos
	}
	return nil
}

// scalar decodes a value that is not a message.
func (d *decoder) scalar(path string, field protoreflect.FieldDescriptor) (none protoreflect.Value, err error) {
	kind, err := d.next(path)
	if err != nil {
		return none, err
	}
	switch kind {
	case jsontext.KindString, jsontext.KindNumber, jsontext.KindTrue, jsontext.KindFalse:
	default:
		return none, wrong(path, "must be %s, got %s", words(field), inWords(kind))
	}
	token, err := d.in.ReadToken()
	if err != nil {
		return none, syntax(err)
	}
	isText := field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind
	isBool := field.Kind() == protoreflect.BoolKind
	given := kind == jsontext.KindTrue || kind == jsontext.KindFalse
	if isText && kind != jsontext.KindString || isBool != given {
		return none, wrong(path, "must be %s, got %s", words(field), inWords(kind))
	}
	return ParseScalar(path, token.String(), field)
}

// ParseScalar parses a value of a field that is not a message. The text is as in JSON, without quotes.
func ParseScalar(path, text string, field protoreflect.FieldDescriptor) (none protoreflect.Value, err error) {
	switch field.Kind() { //nolint:exhaustive // the schema has no fields of other kinds
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), nil
	case protoreflect.BoolKind:
		if text == "true" || text == "false" {
			return protoreflect.ValueOfBool(text == "true"), nil
		}
	case protoreflect.BytesKind:
		if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
			return protoreflect.ValueOfBytes(raw), nil
		}
	case protoreflect.EnumKind:
		return parseEnum(path, text, field.Enum())
	case protoreflect.Int32Kind:
		if n, err := parseInteger(text); err == nil && n >= math.MinInt32 && n <= math.MaxInt32 {
			return protoreflect.ValueOfInt32(int32(n)), nil
		}
	case protoreflect.Int64Kind:
		if n, err := parseInteger(text); err == nil {
			return protoreflect.ValueOfInt64(n), nil
		}
	case protoreflect.DoubleKind:
		if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(n, 0) && !math.IsNaN(n) {
			return protoreflect.ValueOfFloat64(n), nil
		}
	}
	return none, wrong(path, "must be %s, got %q", words(field), text)
}

// parseInteger parses a whole number, also in the forms "1.0" and "1e3" that JSON allows.
func parseInteger(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		return n, nil
	}
	f, floatErr := strconv.ParseFloat(text, 64)
	if floatErr == nil && f == math.Trunc(f) && math.Abs(f) <= maxInteger {
		return int64(f), nil
	}
	return 0, err
}

func parseEnum(path, text string, enum protoreflect.EnumDescriptor) (none protoreflect.Value, err error) {
	if v := enum.Values().ByName(protoreflect.Name(text)); v != nil {
		return protoreflect.ValueOfEnum(v.Number()), nil
	}
	if n, err := strconv.ParseInt(text, 10, 32); err == nil && enum.Values().ByNumber(protoreflect.EnumNumber(n)) != nil {
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n)), nil
	}
	var names []string
	for i := 1; i < enum.Values().Len(); i++ { // skip the value 0, UNSPECIFIED
		names = append(names, string(enum.Values().Get(i).Name()))
	}
	return none, wrong(path, "is unknown: %q; choose from %s", text, strings.Join(names, ", "))
}

// words describes the values of a field.
func words(field protoreflect.FieldDescriptor) string {
	switch field.Kind() { //nolint:exhaustive // the schema has no fields of other kinds
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.StringKind, protoreflect.EnumKind:
		return "a string"
	case protoreflect.BytesKind:
		return "a string in base64"
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return "a whole number"
	}
	return "a number"
}

// SetText sets a field from the texts that the path or the query of a URL contains. A list takes any number of texts,
// any other field exactly one.
func SetText(m proto.Message, name string, texts []string) error {
	r := m.ProtoReflect()
	field := r.Descriptor().Fields().ByName(protoreflect.Name(name))
	if field == nil {
		return wrong(name, "is unknown")
	}
	switch {
	case field.IsList():
		into := r.Mutable(field).List()
		for i, text := range texts {
			v, err := ParseScalar(fmt.Sprintf("%s[%d]", name, i), text, field)
			if err != nil {
				return err
			}
			into.Append(v)
		}
		return nil
	case len(texts) != 1:
		return wrong(name, "is given %d times", len(texts))
	case field.IsMap():
		return wrong(name, "cannot be in a URL")
	case field.Kind() == protoreflect.MessageKind:
		return parseKnown(name, texts[0], r.Mutable(field).Message().Interface())
	}
	v, err := ParseScalar(name, texts[0], field)
	if err == nil {
		r.Set(field, v)
	}
	return err
}
