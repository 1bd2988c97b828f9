package ledgerschemas_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/eventtest"
	ledgerschemas "github.com/servo-orchestration/servo/ledger-schemas"
	"github.com/servo-orchestration/servo/pkg/event"
)

// schema is a decoded JSON Schema.
type schema map[string]any

func parse(t require.TestingT, data []byte) schema {
	var s schema
	require.NoError(t, json.Unmarshal(data, &s))
	return s
}

func load(t require.TestingT, name string) schema {
	data, err := ledgerschemas.Read(name)
	require.NoError(t, err)
	return parse(t, data)
}

// follow returns the schema to which the reference s points, or s if it is not a reference. The reference must be
// local.
func (s schema) follow(root schema) schema {
	ref, ok := s["$ref"].(string)
	if !ok {
		return s
	}
	return root.sub("$defs").sub(strings.TrimPrefix(ref, "#/$defs/"))
}

func (s schema) sub(key string) schema {
	m, _ := s[key].(map[string]any)
	return m
}

func (s schema) required() []string {
	var names []string
	list, _ := s["required"].([]any)
	for _, name := range list {
		if text, ok := name.(string); ok {
			names = append(names, text)
		}
	}
	return names
}

func compile(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	data, err := ledgerschemas.Read(name)
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource(name, doc))
	compiled, err := c.Compile(name)
	require.NoError(t, err)
	return compiled
}

func TestEveryEventTypeHasASchema(t *testing.T) {
	want := []string{ledgerschemas.Envelope}
	for _, p := range event.Payloads() {
		want = append(want, ledgerschemas.Name(p.Type(), p.Version()))
	}
	slices.Sort(want)
	require.Equal(t, want, ledgerschemas.Names())
	_, err := ledgerschemas.Read("no-such-thing.v1.json")
	require.ErrorContains(t, err, "no-such-thing.v1.json")
}

func TestSchemaFieldsMatchGoTypes(t *testing.T) {
	for _, p := range event.Payloads() {
		t.Run(p.Type(), func(t *testing.T) {
			root := load(t, ledgerschemas.Name(p.Type(), p.Version()))
			require.Equal(t, "https://json-schema.org/draft/2020-12/schema", root["$schema"])
			agree(t, p.Type(), root, root, reflect.TypeOf(p))
		})
	}
}

var (
	typeTime = reflect.TypeFor[event.Time]()
	typeRaw  = reflect.TypeFor[json.RawMessage]()
)

// agree checks that a Go type and a schema have the same fields and types.
func agree(t *testing.T, path string, root, s schema, goType reflect.Type) {
	t.Helper()
	require.NotEmpty(t, s["description"], "%s has no description", path)
	s = s.follow(root)
	require.NotEmpty(t, s["description"], "%s refers to a definition without a description", path)
	if goType.Kind() == reflect.Pointer {
		agree(t, path, root, s, goType.Elem())
		return
	}
	kind := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int32: "integer", reflect.Int64: "integer",
		reflect.Slice: "array", reflect.Map: "object", reflect.Struct: "object",
	}[goType.Kind()]
	switch goType {
	case typeTime:
		require.Equal(t, "string", s["type"], path)
		require.Equal(t, "date-time", s["format"], path)
		return
	case typeRaw:
		require.Equal(t, "object", s["type"], path)
		return
	}
	require.Equal(t, kind, s["type"], path)
	switch goType.Kind() {
	case reflect.Slice:
		agree(t, path+"[]", root, s.sub("items"), goType.Elem())
	case reflect.Map:
		agree(t, path+"[]", root, s.sub("additionalProperties"), goType.Elem())
	case reflect.Int32, reflect.Int64:
		require.Contains(t, s, "minimum", path)
		require.Contains(t, s, "maximum", path)
	case reflect.Struct:
		agreeFields(t, path, root, s, goType)
	default:
	}
}

func agreeFields(t *testing.T, path string, root, s schema, goType reflect.Type) {
	t.Helper()
	var names, required []string
	for _, f := range reflect.VisibleFields(goType) {
		if f.Anonymous {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
		if !strings.Contains(options, "omitempty") {
			required = append(required, name)
		}
		require.Contains(t, s.sub("properties"), name, path)
		agree(t, path+"."+name, root, s.sub("properties").sub(name), f.Type)
	}
	require.ElementsMatch(t, names, slices.Collect(maps.Keys(s.sub("properties"))), path)
	require.ElementsMatch(t, required, s.required(), path)
	require.NotContains(t, s, "additionalProperties", "%s: readers must ignore unknown fields", path)
}

func TestEnvelopeSchemaMatchesEncoding(t *testing.T) {
	s := load(t, ledgerschemas.Envelope)
	rapid.Check(t, func(t *rapid.T) {
		e := eventtest.Envelope().Draw(t, "event")
		e.CorrelationID, e.CausationID, e.Actor = "", "", ""
		require.ElementsMatch(t, s.required(), slices.Collect(maps.Keys(encode(t, e))), "an event without optional fields")

		e.CorrelationID, e.CausationID, e.Actor, e.Group, e.GroupSize = e.ID, e.ID, "somebody", e.ID, 1
		require.ElementsMatch(t, slices.Collect(maps.Keys(s.sub("properties"))), slices.Collect(maps.Keys(encode(t, e))))
	})
}

// encode returns an event as a decoded JSON document.
func encode(t require.TestingT, e *event.Envelope) map[string]any {
	line, err := event.Encode(nil, e)
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	require.NoError(t, err)
	m, ok := doc.(map[string]any)
	require.True(t, ok)
	return m
}

func TestEncodedEventsAreValid(t *testing.T) {
	envelope := compile(t, ledgerschemas.Envelope)
	for _, p := range event.Payloads() {
		payload := compile(t, ledgerschemas.Name(p.Type(), p.Version()))
		t.Run(p.Type(), rapid.MakeCheck(func(t *rapid.T) {
			e := eventtest.Envelope().Draw(t, "event")
			e.Payload = eventtest.PayloadLike(p).Draw(t, "payload")
			doc := encode(t, e)
			require.NoError(t, envelope.Validate(doc))
			require.NoError(t, payload.Validate(doc["payload"]))
		}))
	}
}

func TestReleasedSchemasOnlyGrow(t *testing.T) {
	entries, err := os.ReadDir("released")
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	for _, entry := range entries {
		t.Run(entry.Name(), func(t *testing.T) {
			data, err := os.ReadFile("released/" + entry.Name())
			require.NoError(t, err)
			require.Empty(t, shrunk("", parse(t, data), load(t, entry.Name())))
		})
	}
}

// shrunk describes the first incompatible change to a released schema. If there is none, it returns "". Only
// descriptions may change, and only optional properties and values of an enumeration may be added.
func shrunk(path string, released, current schema) string {
	for key, was := range released {
		if key == "description" || key == "title" {
			continue
		}
		is, ok := current[key]
		here := path + "/" + key
		if !ok {
			return here + " is missing"
		}
		old, isObject := was.(map[string]any)
		now, stillObject := is.(map[string]any)
		switch {
		case key == "enum" && grows(was, is):
		case isObject != stillObject, !isObject && !reflect.DeepEqual(was, is):
			return here + " has changed"
		case isObject:
			if lost := shrunk(here, old, now); lost != "" {
				return lost
			}
		}
	}
	for key := range current {
		_, known := released[key]
		grows := strings.HasSuffix(path, "/properties") || strings.HasSuffix(path, "/$defs") || path == "" && key == "$defs"
		if !known && !grows && key != "description" && key != "title" {
			return path + "/" + key + " is new, and may reject input that was valid"
		}
	}
	return ""
}

// grows reports whether "is", the new list, begins with all values of "was", the old list.
func grows(was, is any) bool {
	old, wasList := was.([]any)
	now, isList := is.([]any)
	return wasList && isList && len(now) >= len(old) && reflect.DeepEqual(old, now[:len(old)])
}

func TestShrunkReportsIncompatibleChanges(t *testing.T) {
	released := `{"type":"object","properties":{"a":{"type":"string","description":"x"}},"required":["a"]}`
	for changed, allowed := range map[string]bool{
		released: true,
		`{"type":"object","properties":{"a":{"type":"string","description":"y"},"b":{"type":"integer"}},"required":["a"]}`: true,
		`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer"}},"required":["a","b"]}`:               false,
		`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`:                                         false,
		`{"type":"object","properties":{"a":{"type":"string","maxLength":3}},"required":["a"]}`:                            false,
		`{"type":"object","properties":{},"required":["a"]}`:                                                               false,
		`{"type":"object","properties":{"a":{"type":"string"}}}`:                                                           false,
		`{"type":"object","properties":{"a":{"type":"string","enum":["x"]}},"required":["a"]}`:                             false,
	} {
		require.Equal(t, allowed, shrunk("", parse(t, []byte(released)), parse(t, []byte(changed))) == "", changed)
	}
}
