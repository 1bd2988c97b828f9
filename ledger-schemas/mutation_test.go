package ledgerschemas_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/eventtest"
	ledgerschemas "github.com/servo-orchestration/servo/ledger-schemas"
	"github.com/servo-orchestration/servo/pkg/event"
)

// mutation is a change that makes one place of a document invalid, and that can be undone.
type mutation struct {
	name  string
	field string // the field that the error must name
	apply func()
	undo  func()
}

// mutations returns changes to a document. Each change violates one rule of the document's schema.
func mutations(path string, root, s schema, doc map[string]any) []mutation {
	var found []mutation
	if s.sub("properties") == nil && s.sub("additionalProperties") == nil {
		return nil // the schema allows anything
	}
	set := func(name, field string, value any) {
		was, present := doc[name]
		found = append(found, mutation{
			name: fmt.Sprintf("%s.%s = %.40v", path, name, value), field: field,
			apply: func() { doc[name] = value },
			undo: func() {
				if doc[name] = was; !present {
					delete(doc, name)
				}
			},
		})
	}
	for _, name := range s.required() {
		was := doc[name]
		found = append(found, mutation{
			name: path + "." + name + " is missing", field: name,
			apply: func() { delete(doc, name) }, undo: func() { doc[name] = was },
		})
	}
	for _, name := range slices.Sorted(maps.Keys(doc)) {
		rule, field := s.sub("properties").sub(name), name
		if rule == nil { // not a declared property: a key of a map
			rule, field = s.sub("additionalProperties"), path[strings.LastIndexByte(path, '.')+1:]
		}
		rule = rule.follow(root)
		set(name, field, nil)
		for _, value := range violations(rule) {
			set(name, field, value)
		}
		switch value := doc[name].(type) {
		case map[string]any:
			found = append(found, mutations(path+"."+name, root, rule, value)...)
		case []any:
			for i, item := range value {
				if inner, ok := item.(map[string]any); ok {
					element := rule.sub("items").follow(root)
					found = append(found, mutations(fmt.Sprintf("%s.%s[%d]", path, name, i), root, element, inner)...)
				}
			}
		}
	}
	return found
}

// violations returns values that a rule rejects.
func violations(rule schema) []any {
	number := func(key string, by int64) (any, bool) {
		n, ok := rule[key].(float64)
		if !ok || n >= 1<<62 || n <= -1<<62 {
			return nil, false
		}
		return json.Number(fmt.Sprint(int64(n) + by)), true
	}
	var values []any
	switch rule["type"] {
	case "string":
		values = append(values, json.Number("7"))
		if longest, ok := rule["maxLength"].(float64); ok {
			values = append(values, strings.Repeat("x", int(longest)+1))
		}
		if _, ok := rule["enum"]; ok {
			values = append(values, "no such value")
		}
		if _, ok := rule["pattern"]; ok {
			values = append(values, "\x01")
		}
		if _, ok := rule["minLength"]; ok {
			values = append(values, "")
		}
	case "integer":
		values = append(values, "7", json.Number("1.5"))
		if n, ok := number("minimum", -1); ok {
			values = append(values, n)
		}
		if n, ok := number("maximum", 1); ok {
			values = append(values, n)
		}
	case "boolean":
		values = append(values, "true", json.Number("1"))
	case "array":
		var wrong any = json.Number("7")
		if rule.sub("items")["type"] == "integer" {
			wrong = "7"
		}
		values = append(values, map[string]any{}, []any{nil}, []any{wrong})
	case "object":
		values = append(values, []any{}, "{}")
	}
	return values
}

func TestDecodeRejectsSchemaViolations(t *testing.T) {
	envelopeRules := load(t, ledgerschemas.Envelope)
	envelope := compile(t, ledgerschemas.Envelope)
	for _, p := range event.Payloads() {
		rules := load(t, ledgerschemas.Name(p.Type(), p.Version()))
		compiled := compile(t, ledgerschemas.Name(p.Type(), p.Version()))
		t.Run(p.Type(), rapid.MakeCheck(func(t *rapid.T) {
			e := eventtest.Envelope().Draw(t, "event")
			e.Payload = eventtest.PayloadLike(p).Draw(t, "payload")
			doc := encode(t, e)
			payload, ok := doc["payload"].(map[string]any)
			require.True(t, ok)

			all := append(mutations("", envelopeRules, envelopeRules, doc), mutations("payload", rules, rules, payload)...)
			m := rapid.SampledFrom(all).Draw(t, "mutation")
			m.apply()
			defer m.undo()
			line, err := json.Marshal(doc)
			require.NoError(t, err)
			invalid := envelope.Validate(doc) != nil || compiled.Validate(doc["payload"]) != nil
			require.True(t, invalid, "the schema allows %s", m.name)
			_, err = event.DecodeLine(line)
			var rejected *event.DecodeError
			require.ErrorAs(t, err, &rejected, m.name)
			require.Contains(t, rejected.Detail, m.field, m.name)
		}))
	}
}
