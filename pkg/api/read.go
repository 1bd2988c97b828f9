package api

import (
	"fmt"
	"reflect"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/servo-orchestration/servo/pkg/event"
)

// Read converts a message back into the struct from which a handler has filled it. It is the reverse of fill.
func Read[T any](m proto.Message) *T {
	into := new(T)
	readMessage(reflect.ValueOf(into).Elem(), m.ProtoReflect())
	return into
}

// ReadAll returns the struct of each message.
func ReadAll[T any, M proto.Message](from []M) []T {
	all := make([]T, len(from))
	for i, m := range from {
		readMessage(reflect.ValueOf(&all[i]).Elem(), m.ProtoReflect())
	}
	return all
}

func readMessage(into reflect.Value, m protoreflect.Message) {
	kind := into.Type()
	for i := range kind.NumField() {
		name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
		if !kind.Field(i).IsExported() || name == "-" {
			continue
		}
		field := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if field == nil {
			panic(fmt.Sprintf("api: %s has no field for %s.%s", m.Descriptor().FullName(), kind, kind.Field(i).Name))
		}
		readField(into.Field(i), field, m)
	}
}

func readField(into reflect.Value, field protoreflect.FieldDescriptor, m protoreflect.Message) {
	switch {
	case field.IsList():
		list := m.Get(field).List()
		into.Set(reflect.MakeSlice(into.Type(), list.Len(), list.Len()))
		for i := range list.Len() {
			readValue(into.Index(i), field, list.Get(i))
		}
	case field.IsMap():
		into.Set(reflect.MakeMap(into.Type()))
		m.Get(field).Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
			one := reflect.New(into.Type().Elem()).Elem()
			readValue(one, field.MapValue(), value)
			into.SetMapIndex(reflect.ValueOf(key.String()).Convert(into.Type().Key()), one)
			return true
		})
	case field.Message() != nil && !m.Has(field): // the member has no value
	default:
		readValue(into, field, m.Get(field))
	}
}

func readValue(into reflect.Value, field protoreflect.FieldDescriptor, value protoreflect.Value) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		readNested(into, value.Message())
	case protoreflect.BoolKind:
		into.SetBool(value.Bool())
	case protoreflect.StringKind:
		into.SetString(value.String())
	case protoreflect.EnumKind:
		into.SetString(enumName(field.Enum(), value.Enum()))
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		into.SetInt(value.Int())
	case protoreflect.DoubleKind:
		into.SetFloat(value.Float())
	default:
		panic(fmt.Sprintf("api: a field has kind %s", field.Kind()))
	}
}

func readNested(into reflect.Value, m protoreflect.Message) {
	if at, ok := reflect.TypeAssert[*event.Time](into.Addr()); ok {
		if sent, ok := m.Interface().(*timestamppb.Timestamp); ok {
			*at = event.At(sent.AsTime())
		}
		return
	}
	if into.Kind() == reflect.Pointer {
		into.Set(reflect.New(into.Type().Elem()))
		into = into.Elem()
	}
	readMessage(into, m)
}

// enumName returns the name of the enum value with a number, or "" for 0 (unspecified).
func enumName(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	if value := enum.Values().ByNumber(number); value != nil && number != 0 {
		return string(value.Name())
	}
	return ""
}
