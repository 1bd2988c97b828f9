package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/servo-orchestration/servo/pkg/event"
)

// fill sets the fields of a message from a struct whose fields have the same names in JSON. It returns the message. It
// panics if the struct has a field that the schema lacks. A test fills every such message, so that no call panics.
func fill[M proto.Message](m M, from any) M {
	fillMessage(m.ProtoReflect(), reflect.Indirect(reflect.ValueOf(from)))
	return m
}

// fillAll returns a message for each struct.
func fillAll[T, M any, P interface {
	*M
	proto.Message
}](from []T) []*M {
	all := make([]*M, len(from))
	for i := range from {
		all[i] = fill(P(new(M)), &from[i])
	}
	return all
}

func fillMessage(m protoreflect.Message, v reflect.Value) {
	kind := v.Type()
	for i := range kind.NumField() {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		if !kind.Field(i).IsExported() || name == "-" {
			continue
		}
		field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil {
			panic(fmt.Sprintf("api: %s has no field for %s.%s", m.Descriptor().FullName(), kind, kind.Field(i).Name))
		}
		fillField(m, field, v.Field(i))
	}
}

func fillField(m protoreflect.Message, field protoreflect.FieldDescriptor, v reflect.Value) {
	switch {
	case field.IsList():
		into := m.Mutable(field).List()
		for i := range v.Len() {
			if field.Kind() == protoreflect.MessageKind {
				fillMessage(into.AppendMutable().Message(), reflect.Indirect(v.Index(i)))
				continue
			}
			into.Append(scalar(field, v.Index(i)))
		}
	case field.IsMap():
		into := m.Mutable(field).Map()
		for entries := v.MapRange(); entries.Next(); {
			into.Set(protoreflect.ValueOfString(entries.Key().String()).MapKey(), scalar(field.MapValue(), entries.Value()))
		}
	case field.Kind() == protoreflect.MessageKind:
		fillNested(m, field, v)
	default:
		m.Set(field, scalar(field, v))
	}
}

func fillNested(m protoreflect.Message, field protoreflect.FieldDescriptor, v reflect.Value) {
	if at, ok := reflect.TypeAssert[event.Time](v); ok {
		if at != 0 {
			m.Set(field, protoreflect.ValueOfMessage(timestamppb.New(at.Time()).ProtoReflect()))
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	fillMessage(m.Mutable(field).Message(), v)
}

// scalar returns the value of a field that is not a message.
func scalar(field protoreflect.FieldDescriptor, v reflect.Value) protoreflect.Value {
	switch field.Kind() { //nolint:exhaustive // the schema has no fields of other kinds
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(v.Bool())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(strings.ToValidUTF8(v.String(), "\uFFFD"))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(enumNumber(field.Enum(), v.String()))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(min(v.Int(), 1<<31-1))) //nolint:gosec // min bounds the value
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(v.Int())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(v.Float())
	}
	panic(fmt.Sprintf("api: a field has kind %s", field.Kind()))
}

// enumNumber returns the number of the enum value with a name. For a name that is not in the schema, it returns 0
// (unspecified).
func enumNumber(enum protoreflect.EnumDescriptor, name string) protoreflect.EnumNumber {
	if value := enum.Values().ByName(protoreflect.Name(name)); value != nil {
		return value.Number()
	}
	return 0
}

// timestamp converts a time for a message. It returns nil for the zero time.
func timestamp(t event.Time) *timestamppb.Timestamp {
	if t == 0 {
		return nil
	}
	return timestamppb.New(t.Time())
}

// timeOf returns the time of a field, or the zero time if the field is not set.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// labels returns the labels of a row.
func labels(text string) map[string]string {
	var read map[string]string
	_ = json.Unmarshal([]byte(text), &read) // cannot fail: the fold writes valid JSON, or nothing
	return read
}
