package contract

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ReadJSON decodes body, a single JSON value whose size the caller has limited. Names are
// case-sensitive: ReadJSON rejects a duplicate name, and a name that differs only in case from
// a field's name or from another name of the same object.
func ReadJSON(body io.Reader, to any) error {
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	return readJSON(data, to)
}

// readJSON decodes data into a struct. If all names in data are fields of the struct, it decodes data once. Otherwise
// it decodes data a second time, and checks the names.
func readJSON(data []byte, to any) error {
	if jsonv2.Unmarshal(data, to, jsonv2.RejectUnknownMembers(true)) == nil {
		return nil
	}
	if err := jsonv2.Unmarshal(data, to); err != nil {
		return err
	}
	return CheckNames(data, to)
}

// CheckNames returns an error if a name in data differs only in case from a field of v's type or from another name of
// the same object: parsers disagree on which of the two values wins. It skips keys of maps, which are data, and
// values of unknown fields, which are never read.
func CheckNames(data []byte, v any) error {
	d := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowInvalidUTF8(true))
	return distinctIn(d, reflect.TypeOf(v), "")
}

// distinctIn checks the next value of the decoder. path is the path of this value in the body.
func distinctIn(d *jsontext.Decoder, t reflect.Type, path string) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kind := d.PeekKind()
	switch {
	case t == nil:
	case kind == '{' && t.Kind() == reflect.Struct:
		return distinctFields(d, t, path)
	case kind == '[' && t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		if _, err := d.ReadToken(); err != nil {
			return err
		}
		for i := 0; d.PeekKind() != ']' && d.PeekKind() != 0; i++ {
			if err := distinctIn(d, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		_, err := d.ReadToken()
		return err
	}
	return d.SkipValue()
}

// distinctFields checks the next value of the decoder, an object, and the fields in it.
func distinctFields(d *jsontext.Decoder, t reflect.Type, at string) error {
	fields, names := fieldsOf(t)
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() == '"' {
		token, err := d.ReadToken()
		if err != nil {
			return err
		}
		name := token.String()
		path := strings.TrimPrefix(at+"."+name, ".")
		if known, ok := names[foldCase(name)]; ok && known != name {
			return &FieldError{Field: path, Msg: fmt.Sprintf("differs from %.100q only in case", known)}
		}
		names[foldCase(name)] = name
		if err := distinctIn(d, fields[name], path); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

// fieldsOf returns the types of a struct's fields by JSON name, and the JSON names by their
// case-folded form.
func fieldsOf(t reflect.Type) (fields map[string]reflect.Type, names map[string]string) {
	fields, names = map[string]reflect.Type{}, map[string]string{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" {
			fields[name], names[foldCase(name)] = f.Type, name
		}
	}
	return fields, names
}

// foldCase returns the case-folded form of a name, by Unicode's simple folding: names that differ only in case have the
// same form. For example, k and the Kelvin sign both become K.
func foldCase(s string) string {
	return strings.Map(func(r rune) rune {
		for next := unicode.SimpleFold(r); next > r; next = unicode.SimpleFold(r) {
			r = next
		}
		return unicode.SimpleFold(r)
	}, s)
}
