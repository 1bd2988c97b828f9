package api

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

// rules checks messages against the options servo.v1.field of their fields.
type rules struct {
	compiled sync.Map // the compiled patterns: string → *regexp.Regexp
}

// maxViolations limits how many violations a response lists.
const maxViolations = 20

// check returns a problem that lists what is wrong with a request, or nil.
func (r *rules) check(m proto.Message) error {
	found := r.message(nil, "", m.ProtoReflect())
	if len(found) == 0 {
		return nil
	}
	return &problemError{
		kind: invalidRequest, err: fmt.Errorf("%s %s", found[0].GetField(), found[0].GetDescription()), violations: found,
	}
}

type violations []*servov1.Problem_FieldViolation

func (v violations) add(path, format string, args ...any) violations {
	if len(v) == maxViolations {
		return v
	}
	return append(v, &servov1.Problem_FieldViolation{Field: path, Description: fmt.Sprintf(format, args...)})
}

func (r *rules) message(found violations, path string, m protoreflect.Message) violations {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		at := string(field.Name())
		if path != "" {
			at = path + "." + at
		}
		found = r.field(found, at, m, field)
	}
	return found
}

func (r *rules) field(found violations, path string, m protoreflect.Message, field protoreflect.FieldDescriptor) violations {
	rule := ruleOf(field)
	v := m.Get(field)
	switch {
	case rule.GetRequired() && !m.Has(field):
		return found.add(path, "is required")
	case field.IsList():
		if v.List().Len() > int(rule.GetMaxItems()) && rule.GetMaxItems() > 0 {
			return found.add(path, "has %d items: at most %d are allowed", v.List().Len(), rule.GetMaxItems())
		}
		for i := range v.List().Len() {
			found = r.value(found, fmt.Sprintf("%s[%d]", path, i), rule, field, v.List().Get(i))
		}
	case field.IsMap():
		if v.Map().Len() > int(rule.GetMaxItems()) && rule.GetMaxItems() > 0 {
			return found.add(path, "has %d members: at most %d are allowed", v.Map().Len(), rule.GetMaxItems())
		}
		for key, value := range v.Map().Range {
			at := fmt.Sprintf("%s[%s]", path, key.String())
			if limit := rule.GetMaxKeyLen(); limit > 0 && len(key.String()) > int(limit) {
				found = found.add(path, "has a key of %d bytes: at most %d are allowed", len(key.String()), limit)
			}
			found = r.value(found, at, rule, field.MapValue(), value)
		}
		slices.SortFunc(found, func(a, b *servov1.Problem_FieldViolation) int { return strings.Compare(a.GetField(), b.GetField()) })
	case field.Kind() == protoreflect.MessageKind && !m.Has(field):
	case field.HasPresence() && !m.Has(field):
	default:
		found = r.value(found, path, rule, field, v)
	}
	return found
}

// value checks a value that is neither a list nor a map.
func (r *rules) value(found violations, path string, rule *servov1.FieldRule, field protoreflect.FieldDescriptor, v protoreflect.Value) violations {
	switch field.Kind() { //nolint:exhaustive // other kinds have no rules
	case protoreflect.MessageKind:
		return r.message(found, path, v.Message())
	case protoreflect.StringKind:
		return r.text(found, path, rule, v.String())
	case protoreflect.EnumKind:
		if v.Enum() != 0 && field.Enum().Values().ByNumber(v.Enum()) == nil {
			return found.add(path, "is unknown: %d", v.Enum())
		}
		if field.IsList() && v.Enum() == 0 {
			return found.add(path, "is unspecified")
		}
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		if rule.Min != nil && v.Int() < rule.GetMin() || rule.Max != nil && v.Int() > rule.GetMax() {
			return found.add(path, "is %d: must be %d to %d", v.Int(), rule.GetMin(), rule.GetMax())
		}
	}
	return found
}

func (r *rules) text(found violations, path string, rule *servov1.FieldRule, text string) violations {
	switch {
	case rule.GetMaxLen() > 0 && len(text) > int(rule.GetMaxLen()):
		return found.add(path, "has %d bytes: at most %d are allowed", len(text), rule.GetMaxLen())
	case text == "":
		return found
	case len(rule.GetIn()) > 0 && !slices.Contains(rule.GetIn(), text):
		return found.add(path, "is unknown: %q; choose from %s", text, strings.Join(rule.GetIn(), ", "))
	case rule.GetPattern() != "" && !r.pattern(rule.GetPattern()).MatchString(text):
		return found.add(path, "is invalid: %q does not match %s", text, rule.GetPattern())
	}
	return found
}

func (r *rules) pattern(text string) *regexp.Regexp {
	if found, ok := r.compiled.Load(text); ok {
		if known, ok := found.(*regexp.Regexp); ok {
			return known
		}
	}
	made := regexp.MustCompile("^(?:" + text + ")$") // cannot panic: a test compiles all patterns of the schema
	r.compiled.Store(text, made)
	return made
}

// ruleOf returns the rule of a field; without one, the rule allows everything.
func ruleOf(field protoreflect.FieldDescriptor) *servov1.FieldRule {
	options, _ := field.Options().(*descriptorpb.FieldOptions)
	rule, _ := proto.GetExtension(options, servov1.E_Field).(*servov1.FieldRule)
	return cmp.Or(rule, &servov1.FieldRule{})
}

// methodRule returns the rule of a method.
func methodRule(m protoreflect.MethodDescriptor) *servov1.MethodRule {
	options, _ := m.Options().(*descriptorpb.MethodOptions)
	rule, _ := proto.GetExtension(options, servov1.E_Method).(*servov1.MethodRule)
	return cmp.Or(rule, &servov1.MethodRule{})
}
