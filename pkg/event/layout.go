package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// layoutSet contains the fields of every type that occurs in a line. It decodes more strictly
// than encoding/json: names match exactly, a field without "omitempty" is required, null is
// rejected, and errors name the path.
type layoutSet map[reflect.Type][]field

type field struct {
	name     string
	index    []int
	required bool
}

// fieldNames contains the names of all fields, so that reading a known name allocates nothing. It is immutable after
// initialization.
var fieldNames = func() map[string]string {
	known := map[string]string{}
	for _, fields := range layouts {
		for _, f := range fields {
			known[f.name] = f.name
		}
	}
	return known
}()

// layouts is immutable after initialization.
var layouts = layoutsOf(line{}, struct {
	EventType    string `json:"event_type"`
	EventVersion int32  `json:"event_version"`
}{})

func layoutsOf(more ...any) layoutSet {
	set := layoutSet{}
	for _, v := range more {
		set.add(reflect.TypeOf(v))
	}
	for _, p := range Payloads() {
		set.add(reflect.TypeOf(p))
	}
	return set
}

func (set layoutSet) add(t reflect.Type) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		set.add(t.Elem())
	case reflect.Struct:
		if _, ok := set[t]; ok {
			return
		}
		fields := []field{}
		for _, f := range reflect.VisibleFields(t) {
			if f.Anonymous {
				continue // VisibleFields also yields the fields of the embedded struct
			}
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields = append(fields, field{name, f.Index, !strings.Contains(options, "omitempty")})
			set.add(f.Type)
		}
		set[t] = fields
	default:
	}
}

var (
	errMissing = errors.New("is required")
	errNull    = errors.New("is null; leave the field out")

	typeTime = reflect.TypeFor[Time]()
	typeRaw  = reflect.TypeFor[json.RawMessage]()
)

// misplaced is an error about a value in an event, with the path of this value.
type misplaced struct {
	path string
	err  error
}

func (m *misplaced) Error() string { return m.path + ": " + m.err.Error() }
func (m *misplaced) Unwrap() error { return m.err }

// atPath prepends path to the path of an error. Most values are valid, so paths are composed only for errors.
func atPath(path string, err error) error {
	inner, ok := errors.AsType[*misplaced](err)
	switch {
	case !ok:
		return &misplaced{path, err}
	case strings.HasPrefix(inner.path, "["):
		return &misplaced{path + inner.path, inner.err}
	}
	return &misplaced{path + "." + inner.path, inner.err}
}

// object decodes the members of a JSON object into the struct v.
func (set layoutSet) object(v reflect.Value, fields members) error {
	for i := range set[v.Type()] {
		f := &set[v.Type()][i]
		raw, ok := fields.get(f.name)
		if !ok {
			if f.required {
				return atPath(f.name, errMissing)
			}
			continue
		}
		if err := set.assign(v.FieldByIndex(f.index), raw); err != nil {
			return atPath(f.name, err)
		}
	}
	return nil
}

// assign decodes raw, which is valid JSON, into v.
func (set layoutSet) assign(v reflect.Value, raw json.RawMessage) error {
	raw = bytes.TrimSpace(raw)
	switch {
	case string(raw) == "null":
		return errNull
	case v.Type() == typeTime:
		return assignTime(v, raw)
	case v.Type() == typeRaw:
		v.SetBytes(bytes.Clone(raw))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		s, err := text(raw)
		if err != nil {
			return err
		}
		v.SetString(s)
	case reflect.Bool:
		if s := string(raw); s != "true" && s != "false" {
			return errors.New("is not true or false")
		}
		v.SetBool(raw[0] == 't')
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(string(raw), 10, v.Type().Bits())
		if err != nil {
			return fmt.Errorf("is not a %d-bit integer", v.Type().Bits())
		}
		v.SetInt(n)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return set.assign(v.Elem(), raw)
	case reflect.Struct:
		fields, err := split(raw)
		if err != nil {
			return errors.New("is not an object")
		}
		return set.object(v, fields)
	case reflect.Slice:
		return set.list(v, raw)
	case reflect.Map:
		return set.dictionary(v, raw)
	default:
		panic("event: unsupported kind of payload field: " + v.Type().String())
	}
	return nil
}

func (set layoutSet) list(v reflect.Value, raw json.RawMessage) error {
	var items []json.RawMessage
	if json.Unmarshal(raw, &items) != nil {
		return errors.New("is not an array")
	}
	if len(items) == 0 {
		return nil
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	for i, item := range items {
		if err := set.assign(v.Index(i), item); err != nil {
			return atPath("["+strconv.Itoa(i)+"]", err)
		}
	}
	return nil
}

func (set layoutSet) dictionary(v reflect.Value, raw json.RawMessage) error {
	items, err := split(raw)
	if err != nil {
		return errors.New("is not an object")
	}
	if len(items) == 0 {
		return nil
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(items)))
	for key, item := range items.byName() {
		value := reflect.New(v.Type().Elem()).Elem()
		if err := set.assign(value, item); err != nil {
			return atPath(fmt.Sprintf("[%.100q]", key), err)
		}
		v.SetMapIndex(reflect.ValueOf(key), value)
	}
	return nil
}

func text(raw json.RawMessage) (string, error) {
	if raw[0] != '"' {
		return "", errors.New("is not a string")
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("is not a string: %w", err)
	}
	return s, nil
}

// assignTime accepts only the format that [Encode] writes, so that times in every ledger sort correctly as texts.
func assignTime(v reflect.Value, raw json.RawMessage) error {
	s, err := text(raw)
	if err != nil {
		return err
	}
	var t Time
	if err := t.UnmarshalText([]byte(s)); err != nil || t == 0 || t.String() != s {
		return fmt.Errorf("%.40q is not a time of the form 2025-01-15T10:30:00.000000Z", s)
	}
	v.SetInt(int64(t))
	return nil
}
