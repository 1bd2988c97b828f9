package main

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// schema describes the API for the generators of the plugin.
type schema struct {
	services []service
	// messages and enums are in the order of their definition. Messages and enums of other packages are omitted.
	messages []*protogen.Message
	enums    []enum
	rules    map[protoreflect.FullName]rule
	// sent contains the names of the messages that callers send: requests, and all messages in them.
	sent map[protoreflect.FullName]bool
}

// enum is an enum, together with the comments of the message that contains it. In the outputs, an enum called Value
// has the name of this message.
type enum struct {
	*protogen.Enum
	comments protogen.CommentSet
}

type service struct {
	desc    *protogen.Service
	methods []method
}

// method is a method with its routes.
type method struct {
	desc       *protogen.Method
	permission string
	status     int
	// idempotencyKey means that the method honours the header Idempotency-Key.
	idempotencyKey bool
	// ifMatch means that the method honours the header If-Match.
	ifMatch bool
	routes  []route
}

// route is a REST route of a method.
type route struct {
	verb, path string // the path in the annotation: "/v1/tenants/{tenant_id}/…"
	body       bool   // fields that are not in the path are in the body and not in the query
}

// rule is the value of the option servo.v1.field of a field.
type rule struct {
	maxLen, maxItems, maxKeyLen int64
	pattern                     string
	min, max                    *int64
	required                    bool
	in                          []string
}

// options reads protobuf options for which this program has no generated code.
type options struct{ types *dynamicpb.Types }

func read(p *protogen.Plugin) (*schema, error) {
	files, err := protodesc.NewFiles(&descriptorpb.FileDescriptorSet{File: p.Request.ProtoFile})
	if err != nil {
		return nil, fmt.Errorf("link the files: %w", err)
	}
	o := options{dynamicpb.NewTypes(files)}
	s := &schema{rules: map[protoreflect.FullName]rule{}, sent: map[protoreflect.FullName]bool{}}
	for _, f := range p.Files {
		if !f.Generate {
			continue
		}
		for _, m := range f.Messages {
			if err := s.message(o, m); err != nil {
				return nil, err
			}
		}
		for _, x := range f.Services {
			added := service{desc: x}
			for _, m := range x.Methods {
				read, err := o.method(m)
				if err != nil {
					return nil, err
				}
				added.methods = append(added.methods, read)
				s.send(m.Input)
			}
			s.services = append(s.services, added)
		}
	}
	return s, nil
}

// message adds a message, and the messages that are declared in it.
func (s *schema) message(o options, m *protogen.Message) error {
	for _, e := range m.Enums {
		s.enums = append(s.enums, enum{e, m.Comments})
	}
	if len(m.Fields) > 0 || len(m.Enums) == 0 {
		s.messages = append(s.messages, m)
	}
	for _, field := range m.Fields {
		r, err := o.rule(field)
		if err != nil {
			return err
		}
		s.rules[field.Desc.FullName()] = r
	}
	for _, inner := range m.Messages {
		if inner.Desc.IsMapEntry() {
			continue
		}
		if err := s.message(o, inner); err != nil {
			return err
		}
	}
	return nil
}

// send marks a message, and all messages that it can contain, as sent by callers.
func (s *schema) send(m *protogen.Message) {
	if s.sent[m.Desc.FullName()] {
		return
	}
	s.sent[m.Desc.FullName()] = true
	for _, field := range m.Fields {
		if field.Message != nil {
			s.send(field.Message)
		}
	}
}

// extension returns an option of a descriptor as a message. It returns nil if the option is not set.
func (o options) extension(of protoreflect.Descriptor, name protoreflect.FullName) (protoreflect.Message, error) {
	raw, err := proto.Marshal(of.Options())
	if err != nil {
		return nil, fmt.Errorf("encode the options of %s: %w", of.FullName(), err)
	}
	kind, err := o.types.FindExtensionByName(name)
	if err == protoregistry.NotFound {
		return nil, fmt.Errorf("no file defines the option %s", name)
	} else if err != nil {
		return nil, fmt.Errorf("find option %s: %w", name, err)
	}
	known := of.Options().ProtoReflect().New().Interface()
	if err := (proto.UnmarshalOptions{Resolver: o.types}).Unmarshal(raw, known); err != nil {
		return nil, fmt.Errorf("decode the options of %s: %w", of.FullName(), err)
	}
	if !known.ProtoReflect().Has(kind.TypeDescriptor()) {
		return nil, nil //nolint:nilnil // nil means that the option is not set
	}
	return known.ProtoReflect().Get(kind.TypeDescriptor()).Message(), nil
}

// get returns a field of an option.
func get(m protoreflect.Message, name protoreflect.Name) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(name))
}

func (o options) method(m *protogen.Method) (method, error) {
	read := method{desc: m, status: 200}
	own, err := o.extension(m.Desc, "servo.v1.method")
	if err != nil {
		return read, err
	}
	if own == nil {
		return read, fmt.Errorf("method %s has no option servo.v1.method", m.Desc.FullName())
	}
	permission := own.Descriptor().Fields().ByName("permission")
	read.permission = string(permission.Enum().Values().ByNumber(own.Get(permission).Enum()).Name())
	read.idempotencyKey = get(own, "idempotency_key").Bool()
	read.ifMatch = get(own, "if_match").Bool()
	if status := get(own, "success_status").Int(); status != 0 {
		read.status = int(status)
	}
	http, err := o.extension(m.Desc, "google.api.http")
	if err != nil || http == nil {
		return read, fmt.Errorf("method %s has no option google.api.http: %w", m.Desc.FullName(), err)
	}
	read.routes = append(read.routes, routeOf(http))
	more := get(http, "additional_bindings").List()
	for i := range more.Len() {
		read.routes = append(read.routes, routeOf(more.Get(i).Message()))
	}
	return read, nil
}

func routeOf(http protoreflect.Message) route {
	pattern := http.WhichOneof(http.Descriptor().Oneofs().ByName("pattern"))
	return route{verb: strings.ToUpper(string(pattern.Name())), path: http.Get(pattern).String(), body: get(http, "body").String() == "*"}
}

func (o options) rule(field *protogen.Field) (r rule, err error) {
	own, err := o.extension(field.Desc, "servo.v1.field")
	if err != nil || own == nil {
		return r, err
	}
	r.maxLen, r.maxItems, r.maxKeyLen = get(own, "max_len").Int(), get(own, "max_items").Int(), get(own, "max_key_len").Int()
	r.pattern, r.required = get(own, "pattern").String(), get(own, "required").Bool()
	for name, to := range map[protoreflect.Name]**int64{"min": &r.min, "max": &r.max} {
		if own.Has(own.Descriptor().Fields().ByName(name)) {
			*to = new(get(own, name).Int())
		}
	}
	in := get(own, "in").List()
	for i := range in.Len() {
		r.in = append(r.in, in.Get(i).String())
	}
	return r, nil
}

// comment returns the comment before a definition, without indentation.
func comment(set protogen.CommentSet) string {
	lines := strings.Split(strings.TrimSpace(string(set.Leading)), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

// nameOf returns the name of a message or an enum in TypeScript and in OpenAPI: "PartitionSummaryBucket"
// for PartitionSummary.Bucket, and "RunState" for RunState.Value.
func nameOf(d protoreflect.Descriptor) string {
	name := strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
	return strings.ReplaceAll(strings.TrimSuffix(name, ".Value"), ".", "")
}
