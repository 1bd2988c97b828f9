package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// MarshalJSON implements [json.Marshaler].
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		b.Write(append(name, ':'))
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(m.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// add adds a member if its value is set.
func (o object) add(name string, value any) object {
	switch v := value.(type) {
	case string:
		if v == "" {
			return o
		}
	case []string:
		if len(v) == 0 {
			return o
		}
	case int64:
		if v == 0 {
			return o
		}
	case *int64:
		if v == nil {
			return o
		}
	}
	return append(o, member{name, value})
}

// openapi returns the OpenAPI document of the REST routes.
func openapi(s *schema) ([]byte, error) {
	paths, at := object{}, map[string]int{}
	tags := []any{}
	for _, x := range s.services {
		tags = append(tags, object{}.add("name", string(x.desc.Desc.Name())).add("description", oneLine(comment(x.desc.Comments))))
		for _, m := range x.methods {
			for i, r := range m.routes {
				path := short(r.path)
				if _, known := at[path]; !known {
					at[path] = len(paths)
					paths = append(paths, member{path, object{}})
				}
				item := &paths[at[path]]
				operations, _ := item.value.(object)
				item.value = append(operations, member{strings.ToLower(r.verb), s.operation(x, m, r, i)})
			}
		}
	}
	schemas := object{}
	for _, m := range s.messages {
		schemas = append(schemas, member{nameOf(m.Desc), s.messageSchema(m)})
	}
	for _, e := range s.enums {
		var names []string
		for _, v := range e.Values {
			names = append(names, string(v.Desc.Name()))
		}
		schemas = append(schemas, member{nameOf(e.Desc), object{}.add("type", "string").add("description", oneLine(comment(e.comments))).add("enum", names)})
	}
	document := object{
		{"openapi", "3.1.0"},
		{"info", object{
			{"title", "Servo"},
			{"version", "v1"},
			{"description", "The API of one workspace. Every route also exists below /v1/tenants/{tenant_id}/workspaces/{workspace_id}. Lengths of strings are counted in bytes of UTF-8."},
		}},
		{"security", []any{object{{"token", []string{}}}}},
		{"tags", tags},
		{"paths", paths},
		{"components", object{
			{"securitySchemes", object{{"token", object{
				{"type", "http"}, {"scheme", "bearer"}, {"description", "The token of owner.json in the state folder."},
			}}}},
			{"schemas", schemas},
		}},
	}
	raw, err := json.Marshal(document)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, raw, "", " ")
	return append(out.Bytes(), '\n'), err
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func (s *schema) operation(x service, m method, r route, n int) object {
	id := string(x.desc.Desc.Name()) + "_" + string(m.desc.Desc.Name())
	if n > 0 {
		id += strconv.Itoa(n + 1)
	}
	op := object{
		{"operationId", id},
		{"tags", []string{string(x.desc.Desc.Name())}},
		{"description", oneLine(comment(m.desc.Comments)) + " Needs the permission " + m.permission + "."},
	}
	parameters := []any{}
	rest := []*protogen.Field{}
	for _, f := range m.desc.Input.Fields {
		name := string(f.Desc.Name())
		switch {
		case name == "tenant_id" || name == "workspace_id":
		case strings.Contains(r.path, "{"+name+"}"):
			parameters = append(parameters, s.parameter(f, "path"))
		case r.body:
			rest = append(rest, f)
		case n > 0 && strings.Contains(m.routes[0].path, "{"+name+"}"): // a request with this field uses the longer route
		default:
			parameters = append(parameters, s.parameter(f, "query"))
		}
	}
	if m.idempotencyKey {
		parameters = append(parameters, object{
			{"name", "Idempotency-Key"},
			{"in", "header"},
			{"description", "Repeated requests with the same key have the effect of a single request."},
			{"schema", object{{"type", "string"}, {"minLength", 1}, {"maxLength", 128}, {"pattern", "^[!-~]+$"}}},
		})
	}
	if m.ifMatch {
		parameters = append(parameters, object{
			{"name", "If-Match"},
			{"in", "header"},
			{"description", "The ETag or the edit tag of the object that the caller has read. The answer is 412 if a command or a deployment has changed the object since."},
			{"schema", object{{"type", "string"}, {"maxLength", 256}, {"pattern", `^("[!#-~]+"|\*)$`}}},
		})
	}
	conditional := !r.body && !m.desc.Desc.IsStreamingServer()
	if conditional {
		parameters = append(parameters, object{
			{"name", "If-None-Match"},
			{"in", "header"},
			{"description", "The ETag of an earlier answer. The answer is 304 if nothing has changed since."},
			{"schema", object{{"type", "string"}}},
		})
	}
	if len(parameters) > 0 {
		op = append(op, member{"parameters", parameters})
	}
	if r.body {
		op = append(op, member{"requestBody", object{{"required", true}, {"content", object{{"application/json", object{{"schema", s.objectSchema(rest, true)}}}}}}})
	}
	kind, result := "application/json", any(reference(m.desc.Output.Desc))
	if m.desc.Desc.IsStreamingServer() {
		kind, result = "text/event-stream", object{{"type", "string"}, {"description", "Events whose data is " + nameOf(m.desc.Output.Desc) + "."}}
	}
	success := object{{"description", "success"}}
	responses := object{}
	if conditional {
		text := object{{"type", "string"}}
		success = append(success, member{"headers", object{{"ETag", object{{"description", "a tag of this answer"}, {"schema", text}}}}})
		responses = append(responses, member{"304", object{{"description", "the answer is the one that If-None-Match names"}}})
	}
	success = append(success, member{"content", object{{kind, object{{"schema", result}}}}})
	responses = append(object{{strconv.Itoa(m.status), success}}, responses...)
	return append(op, member{"responses", append(responses, object{
		{"431", object{{"description", "the URL and the headers are too large"}, {"content", object{{"text/plain", object{{"schema", object{{"type", "string"}}}}}}}}},
		{"default", object{{"description", "a problem"}, {"content", object{{"application/problem+json", object{{"schema", object{{"$ref", "#/components/schemas/Problem"}}}}}}}}},
	}...)})
}

func (s *schema) parameter(f *protogen.Field, in string) object {
	p := object{{"name", string(f.Desc.Name())}, {"in", in}}.add("description", oneLine(comment(f.Comments)))
	if in == "path" || s.rules[f.Desc.FullName()].required {
		p = append(p, member{"required", true})
	}
	value := s.fieldSchema(f, true)
	if in == "path" && f.Desc.Kind() == protoreflect.StringKind && !s.rules[f.Desc.FullName()].required {
		value = append(value, member{"minLength", 1})
	}
	return append(p, member{"schema", value})
}

func (s *schema) messageSchema(m *protogen.Message) object {
	o := s.objectSchema(m.Fields, s.sent[m.Desc.FullName()])
	if nameOf(m.Desc) == "Problem" { // a Problem omits members without a value
		for i := range o {
			if o[i].name == "required" {
				o[i].value = []string{"type", "title", "status"}
			}
		}
	}
	return append(object{}.add("description", oneLine(comment(m.Comments))), o...)
}

// objectSchema returns the schema of an object that has the given fields. In requests, a field is optional unless a
// rule requires it. A response contains every field, unless the field has presence and is not set.
func (s *schema) objectSchema(fields []*protogen.Field, sent bool) object {
	properties, required := object{}, []string{}
	for _, f := range fields {
		value := s.fieldSchema(f, sent)
		if text := oneLine(comment(f.Comments)); text != "" {
			value = append(value, member{"description", text})
		}
		properties = append(properties, member{string(f.Desc.Name()), value})
		if sent && s.rules[f.Desc.FullName()].required || !sent && !f.Desc.HasPresence() {
			required = append(required, string(f.Desc.Name()))
		}
	}
	o := object{{"type", "object"}, {"properties", properties}}.add("required", required)
	if sent {
		o = append(o, member{"additionalProperties", false})
	}
	return o
}

func reference(d protoreflect.Descriptor) object {
	return object{{"$ref", "#/components/schemas/" + nameOf(d)}}
}

func (s *schema) fieldSchema(f *protogen.Field, sent bool) object {
	r := s.rules[f.Desc.FullName()]
	switch {
	case f.Desc.IsMap():
		o := object{{"type", "object"}, {"additionalProperties", s.valueSchema(f.Message.Fields[1], r, sent)}}.add("maxProperties", r.maxItems)
		if r.maxKeyLen > 0 {
			o = append(o, member{"propertyNames", object{{"maxLength", r.maxKeyLen}}})
		}
		return o
	case f.Desc.IsList():
		return object{{"type", "array"}, {"items", s.valueSchema(f, r, sent)}}.add("maxItems", r.maxItems)
	}
	return s.valueSchema(f, r, sent)
}

func (s *schema) valueSchema(f *protogen.Field, r rule, sent bool) object {
	switch kind := f.Desc.Kind(); kind {
	case protoreflect.BoolKind:
		return object{{"type", "boolean"}}
	case protoreflect.EnumKind:
		if !sent {
			return reference(f.Enum.Desc)
		}
		var names []string
		for _, v := range f.Enum.Values[1:] { // omit UNSPECIFIED
			names = append(names, string(v.Desc.Name()))
		}
		return object{{"type", "string"}, {"enum", names}}
	case protoreflect.MessageKind:
		switch f.Message.Desc.FullName() {
		case "google.protobuf.Timestamp":
			return object{{"type", "string"}, {"format", "date-time"}}
		case "google.protobuf.Duration":
			return object{{"type", "string"}, {"pattern", `^-?[0-9]+(\.[0-9]+)?s$`}}
		}
		return reference(f.Message.Desc)
	case protoreflect.StringKind:
		return stringSchema(f, r, sent)
	case protoreflect.DoubleKind:
		return object{{"type", "number"}}
	default:
		return object{{"type", "integer"}, {"format", kind.String()}}.add("minimum", r.min).add("maximum", r.max)
	}
}

func stringSchema(f *protogen.Field, r rule, sent bool) object {
	o := object{{"type", "string"}}
	if len(r.in) > 0 {
		in := slices.Clone(r.in)
		if sent && !r.required && !f.Desc.IsList() {
			in = append([]string{""}, in...)
		}
		return o.add("enum", in)
	}
	if !sent {
		return o
	}
	o = o.add("maxLength", r.maxLen)
	if r.required {
		o = append(o, member{"minLength", 1})
	}
	switch {
	case r.pattern != "" && r.required:
		o = append(o, member{"pattern", fmt.Sprintf("^(?:%s)$", r.pattern)})
	case r.pattern != "":
		o = append(o, member{"pattern", fmt.Sprintf("^(?:%s)?$", r.pattern)})
	}
	return o
}
