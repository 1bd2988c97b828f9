package event

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// members are the names and values of a JSON object, in order. The values share the memory of the object.
type members []member

type member struct {
	name string
	raw  json.RawMessage
}

// get returns the last value with that name.
func (m members) get(name string) (json.RawMessage, bool) {
	for _, of := range slices.Backward(m) {
		if of.name == name {
			return of.raw, true
		}
	}
	return nil, false
}

func (m members) byName() map[string]json.RawMessage {
	named := make(map[string]json.RawMessage, len(m))
	for _, of := range m {
		named[of.name] = of.raw
	}
	return named
}

// split returns the members of a JSON object, or nil for null. Decoding spends most of its time here, so the fast
// path avoids maps and reflection. If the fast path fails, [encoding/json] decides whether the text is valid, and its
// error is returned.
func split(raw []byte) (members, error) {
	if found, err := splitQuickly(raw); err == nil {
		return found, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	var found members
	for name, value := range fields {
		found = append(found, member{name, value})
	}
	return found, nil
}

var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(bytes.NewReader(nil)) }}

var errNoObject = errors.New("not one object")

func splitQuickly(raw []byte) (members, error) {
	d, _ := decoders.Get().(*jsontext.Decoder)
	defer decoders.Put(d)
	d.Reset(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if begin, err := d.ReadToken(); err != nil || begin.Kind() != '{' {
		return nil, errors.Join(errNoObject, err)
	}
	scratch, _ := scratches.Get().(*members)
	found := (*scratch)[:0]
	defer func() {
		clear(found)
		*scratch = found[:0]
		scratches.Put(scratch)
	}()
	for d.PeekKind() != '}' {
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		name := nameAt(raw[:d.InputOffset()], token)
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		end := d.InputOffset()
		found = append(found, member{name, raw[end-int64(len(value)) : end : end]})
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errNoObject, err)
	}
	return append(make(members, 0, len(found)), found...), nil
}

// scratches is a pool of slices that collect the members of an object until their number is known.
var scratches = sync.Pool{New: func() any { return &members{} }}

// nameAt returns the name in a token. The parameter raw ends with the name in quotes. nameAt first looks up these bytes
// in fieldNames, so that a known name needs no allocation.
func nameAt(raw []byte, token jsontext.Token) string {
	start := bytes.LastIndexByte(raw[:len(raw)-1], '"')
	if start > 0 && raw[start-1] != '\\' { // an escaped quote is a part of the name
		if name, known := fieldNames[string(raw[start+1:len(raw)-1])]; known {
			return name
		}
	}
	return token.String()
}
