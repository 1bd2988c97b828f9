package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// markdown returns the reference of the API: its calls with their routes, and its messages.
func markdown(s *schema) string {
	var b strings.Builder
	b.WriteString("# Calls of the API\n\n" +
		"`make proto` writes this page from `proto/servo/v1`. [HTTP routes](http.md) says how to authenticate, and what holds\n" +
		"for every call. Each route also exists below `/v1/tenants/{tenant_id}/workspaces/{workspace_id}`.\n")
	for _, x := range s.services {
		name := string(x.desc.Desc.Name())
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| call | route | |\n| --- | --- | --- |\n", name, paragraph(comment(x.desc.Comments)))
		for _, m := range x.methods {
			for i, r := range m.routes {
				call := ""
				if i == 0 {
					call = "`" + string(m.desc.Desc.Name()) + "`"
				}
				fmt.Fprintf(&b, "| %s | `%s %s` | %s |\n", call, r.verb, short(r.path), s.describe(m, i))
			}
		}
	}
	b.WriteString("\n## Messages\n")
	for _, m := range s.messages {
		s.section(&b, m)
	}
	for _, e := range s.enums {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| value | |\n| --- | --- |\n", nameOf(e.Desc), paragraph(comment(e.comments)))
		for _, v := range e.Values[1:] { // omit UNSPECIFIED
			fmt.Fprintf(&b, "| `%s` | %s |\n", v.Desc.Name(), cell(comment(v.Comments)))
		}
	}
	return b.String()
}

// describe returns the description of a call: its purpose, its request and its response.
func (s *schema) describe(m method, route int) string {
	if route > 0 {
		return "the same"
	}
	text := cell(comment(m.desc.Comments))
	stream := ""
	if m.desc.Desc.IsStreamingServer() {
		stream = "a stream of "
	}
	return fmt.Sprintf("%s %s → %s%s, %d. Needs `%s`", text, link(m.desc.Input.Desc), stream, link(m.desc.Output.Desc), m.status, m.permission)
}

func (s *schema) section(b *strings.Builder, m *protogen.Message) {
	fmt.Fprintf(b, "\n### %s\n\n%s\n\n| member | type | |\n| --- | --- | --- |\n", nameOf(m.Desc), paragraph(comment(m.Comments)))
	for _, f := range m.Fields {
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", f.Desc.Name(), s.kindOf(f), cell(strings.TrimSpace(comment(f.Comments)+" "+s.boundsOf(m, f))))
	}
}

// kindOf returns a description of the type of a field.
func (s *schema) kindOf(f *protogen.Field) string {
	switch {
	case f.Desc.IsMap():
		return "object of " + s.oneOf(f.Message.Fields[1])
	case f.Desc.IsList():
		return "list of " + s.oneOf(f)
	}
	return s.oneOf(f)
}

func (s *schema) oneOf(f *protogen.Field) string {
	switch kind := f.Desc.Kind(); kind {
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.StringKind:
		return "string"
	case protoreflect.EnumKind:
		return link(f.Enum.Desc)
	case protoreflect.MessageKind:
		switch f.Message.Desc.FullName() {
		case "google.protobuf.Timestamp":
			return "time"
		case "google.protobuf.Duration":
			return "seconds: `1.5s`"
		}
		return link(f.Message.Desc)
	}
	return "number"
}

// boundsOf describes the values that a field may have: a list of the values, if they are few, and the limits of the
// field, if callers send it.
func (s *schema) boundsOf(m *protogen.Message, f *protogen.Field) string {
	r, texts := s.rules[f.Desc.FullName()], []string{}
	if len(r.in) > 0 {
		texts = append(texts, "One of `"+strings.Join(r.in, "`, `")+"`.")
	}
	if !s.sent[m.Desc.FullName()] {
		return strings.Join(texts, " ")
	}
	if r.required {
		texts = append(texts, "Required.")
	}
	if r.maxItems > 0 {
		texts = append(texts, fmt.Sprintf("At most %d.", r.maxItems))
	}
	if r.maxLen > 0 && len(r.in) == 0 {
		texts = append(texts, fmt.Sprintf("At most %d bytes.", r.maxLen))
	}
	if r.min != nil && r.max != nil {
		texts = append(texts, fmt.Sprintf("%d to %d.", *r.min, *r.max))
	}
	return strings.Join(texts, " ")
}

// link returns a link to the section of a message or an enum.
func link(d protoreflect.Descriptor) string {
	return fmt.Sprintf("[%s](#%s)", nameOf(d), strings.ToLower(nameOf(d)))
}

// cell escapes a text for a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("\n", " ", "|", `\|`, "<", "&lt;").Replace(text)
}

// paragraph wraps a text into lines.
func paragraph(text string) string {
	const width = 120
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return strings.Join(append(lines, line), "\n")
}
