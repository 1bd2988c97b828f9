package api

import (
	"context"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/engine/view"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// methods returns all methods of the schema.
func methods() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("servo.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				all = append(all, f.Services().Get(i).Methods().Get(j))
			}
		}
		return true
	})
	return all
}

// messages calls the function visit once for each field of a message and of all messages nested in it.
func messages(m protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool, visit func(protoreflect.FieldDescriptor)) {
	if seen[m.FullName()] || m.ParentFile().Package() != "servo.v1" {
		return
	}
	seen[m.FullName()] = true
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		visit(field)
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			messages(field.MapValue().Message(), seen, visit)
		case !field.IsMap() && field.Message() != nil:
			messages(field.Message(), seen, visit)
		}
	}
}

func TestEveryMethodIsServedWithPermission(t *testing.T) {
	require.NotEmpty(t, methods())
	for _, m := range methods() {
		require.NotZero(t, methodRule(m).GetPermission(), "%s has no permission", m.FullName())
		options, ok := m.Options().(*descriptorpb.MethodOptions)
		require.True(t, ok)
		reads := options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
		require.NotEqual(t, reads, methodRule(m).GetAudit() == servov1.Audit_WRITE, "%s must have no side effects, or be recorded", m.FullName())
		_, served := reflect.TypeFor[*server]().MethodByName(string(m.Name()))
		require.True(t, served, "%s is not implemented", m.FullName())
		require.Contains(t, servicePaths(), "/"+string(m.Parent().FullName())+"/")
	}
}

// This test fails if a text or a list has no bound, because it could exhaust the server. It also fails if an integer
// may have more than 53 bits, because readers would round it.
func TestEveryFieldIsBounded(t *testing.T) {
	sent, received := map[protoreflect.FullName]bool{}, map[protoreflect.FullName]bool{}
	const most = 1<<53 - 1
	for _, m := range methods() {
		messages(m.Input(), sent, func(field protoreflect.FieldDescriptor) {
			rule := ruleOf(field)
			switch kind := field.Kind(); {
			case field.IsMap():
				require.Positive(t, rule.GetMaxItems(), field.FullName())
				require.Positive(t, rule.GetMaxKeyLen(), field.FullName())
				require.Positive(t, rule.GetMaxLen(), field.FullName())
			case field.IsList():
				require.Positive(t, rule.GetMaxItems(), field.FullName())
			case kind == protoreflect.Int32Kind:
				require.NotNil(t, rule.Min, field.FullName())
				require.NotNil(t, rule.Max, field.FullName())
			}
			if field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind {
				require.Positive(t, rule.GetMaxLen(), field.FullName())
			}
			if rule.GetPattern() != "" {
				_, err := regexp.Compile(rule.GetPattern())
				require.NoError(t, err, field.FullName())
			}
		})
		for _, d := range []protoreflect.MessageDescriptor{m.Input(), m.Output()} {
			messages(d, received, func(field protoreflect.FieldDescriptor) {
				value := field
				if field.IsMap() {
					value = field.MapValue()
				}
				switch value.Kind() { //nolint:exhaustive // other kinds need no bound
				case protoreflect.Int64Kind, protoreflect.Uint64Kind, protoreflect.Sint64Kind, protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind:
					require.NotNil(t, ruleOf(field).Max, field.FullName())
					require.LessOrEqual(t, ruleOf(field).GetMax(), int64(most), field.FullName())
				}
			})
		}
	}
}

func TestFirstFieldsNameWorkspace(t *testing.T) {
	for _, m := range methods() {
		require.EqualValues(t, 1, m.Input().Fields().ByName("tenant_id").Number(), m.FullName())
		require.EqualValues(t, 2, m.Input().Fields().ByName("workspace_id").Number(), m.FullName())
	}
}

// populate sets every field of a value. Lists get one item.
func populate(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.IsExported() {
				populate(value)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		populate(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		populate(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		value := reflect.New(v.Type().Elem()).Elem()
		populate(value)
		v.SetMapIndex(reflect.ValueOf("key"), value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7)
	default:
		panic("unknown kind " + v.Kind().String())
	}
}

// filled lists each message that the server fills from a struct, with this struct.
func filled() map[proto.Message]any {
	return map[proto.Message]any{
		&servov1.RunStatus{}: &view.Status{}, &servov1.TaskExplanation{}: &view.Explanation{}, &servov1.Attempt{}: &view.AttemptInfo{},
		&servov1.PartitionExplanation{}: &view.PartitionExplanation{}, &servov1.Schedule{}: &engine.Schedule{}, &servov1.Tick{}: &engine.Tick{},
		&servov1.BackfillScheduleResponse{}: &engine.ScheduleBackfill{}, &servov1.Backfill{}: &engine.Backfill{}, &servov1.RunRequest{}: &engine.Request{},
		&servov1.Deadline{}: &engine.Promise{}, &servov1.ListAlertsResponse{}: &engine.Alerts{}, &servov1.QuarantinedOutput{}: &engine.Candidate{},
		&servov1.ChangeKeysResponse{}: &engine.KeysChanged{}, &servov1.Attention{}: &engine.Attention{},
		&servov1.CountRunsResponse{}: &engine.RunCounts{},
	}
}

// A message has every member that its struct has in JSON, with the same value.
func TestFillCopiesEveryField(t *testing.T) {
	for m, from := range filled() {
		populate(reflect.ValueOf(from).Elem())
		fill(m, from)
		kind := reflect.TypeOf(from).Elem()
		for member := range kind.Fields() {
			name, _, _ := strings.Cut(member.Tag.Get("json"), ",")
			if name == "-" || !member.IsExported() {
				continue
			}
			field := m.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
			require.NotNil(t, field, "%s of %s", name, kind)
			if field.Kind() != protoreflect.EnumKind { // populate has set the text to "x", which names no value of the enum
				require.True(t, m.ProtoReflect().Has(field), "%s of %s", name, kind)
			}
		}
	}
	require.Equal(t, servov1.TickOutcome_NOTHING_TO_DO, fill(&servov1.Tick{}, &engine.Tick{Outcome: "NOTHING_TO_DO"}).GetOutcome())
	require.Nil(t, fill(&servov1.Tick{}, &engine.Tick{}).GetLogical())
	require.Equal(t, int64(7), fill(&servov1.Tick{}, &engine.Tick{Logical: event.Time(7_000_000)}).GetLogical().GetSeconds())
}

// Read returns what fill has copied.
func TestReadReversesFill(t *testing.T) {
	for m, from := range filled() {
		populate(reflect.ValueOf(from).Elem())
		fill(m, from)
		setEnums(m.ProtoReflect())
		back := reflect.New(reflect.TypeOf(from).Elem())
		readMessage(back.Elem(), m.ProtoReflect())
		again := m.ProtoReflect().New().Interface()
		require.True(t, proto.Equal(m, fill(again, back.Interface())), "want %v\n got %v", m, again)
	}
	empty := Read[engine.Tick](&servov1.Tick{})
	require.Equal(t, engine.Tick{}, *empty)
}

// setEnums sets every singular enum field of a message, and of its nested messages, to 1.
func setEnums(m protoreflect.Message) {
	for i := range m.Descriptor().Fields().Len() {
		switch field := m.Descriptor().Fields().Get(i); {
		case field.Kind() == protoreflect.EnumKind && !field.IsList():
			m.Set(field, protoreflect.ValueOfEnum(1))
		case field.IsMap() || field.Kind() != protoreflect.MessageKind || !m.Has(field):
		case field.IsList():
			for j := range m.Get(field).List().Len() {
				setEnums(m.Get(field).List().Get(j).Message())
			}
		default:
			setEnums(m.Get(field).Message())
		}
	}
}

// The schema has a name for each state that a row can have.
func TestEnumsHaveEveryState(t *testing.T) {
	for file, enums := range map[string]map[string]protoreflect.EnumDescriptor{
		"runs.go": {"RunState": servov1.RunState_Value(0).Descriptor()},
		"tasks.go": {
			"TaskState": servov1.TaskState_Value(0).Descriptor(), "AttemptState": servov1.AttemptState_Value(0).Descriptor(),
			"Resolution": servov1.Resolution_Value(0).Descriptor(), "TimerState": servov1.TimerState_Value(0).Descriptor(),
			"DispatchStatus": servov1.DispatchStatus_Value(0).Descriptor(),
		},
		"automation.go": {"TickOutcome": servov1.TickOutcome_Value(0).Descriptor(), "RequestState": servov1.RequestState_Value(0).Descriptor()},
		"backfill.go":   {"BackfillState": servov1.BackfillState_Value(0).Descriptor()},
		"alerts.go":     {"NotificationState": servov1.NotificationState_Value(0).Descriptor()},
	} {
		text, err := os.ReadFile("../state/" + file)
		require.NoError(t, err)
		for kind, enum := range enums {
			found := regexp.MustCompile(kind+`\s+= "([A-Z_]+)"`).FindAllStringSubmatch(string(text), -1)
			require.NotEmpty(t, found, kind)
			for _, m := range found {
				if m[1] != "PLANNED" { // no published row has this state
					require.NotZero(t, enumNumber(enum, m[1]), "%s %s", kind, m[1])
				}
			}
		}
	}
}

func TestReferenceListsProblems(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/errors.md")
	require.NoError(t, err)
	for _, kind := range problemKinds() {
		row := "| `" + kind.name + "` | " + kind.title + " | " + strconv.Itoa(kind.status) + " | `" + kind.code.String() + "` |"
		require.Contains(t, string(page), row)
	}
}

// The guard denies a call whose caller lacks the permission of the method.
func TestGuardAsksForPermission(t *testing.T) {
	var asked []servov1.Permission_Value
	g := &guard{may: func(_ http.Header, p servov1.Permission_Value) bool {
		asked = append(asked, p)
		return p != servov1.Permission_RUNS_CANCEL
	}}
	for _, m := range methods() {
		spec := specOf(m)
		err := g.before(spec, http.Header{}, newInput(t, m))
		denied := methodRule(m).GetPermission() == servov1.Permission_RUNS_CANCEL
		require.Equal(t, denied, err != nil && kindOf(err).name == permissionLacks.name, m.FullName())
	}
	require.Len(t, asked, len(methods()))
	require.Equal(t, cancelled.name, kindOf(context.Canceled).name)
}

func specOf(m protoreflect.MethodDescriptor) connect.Spec {
	return connect.Spec{Procedure: "/" + string(m.Parent().FullName()) + "/" + string(m.Name()), Schema: m}
}

func newInput(t *testing.T, m protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	require.NoError(t, err)
	return kind.New().Interface()
}
