package rest

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

// Route is a route of a call.
type Route struct {
	Method string // GET or POST
	Path   string // "/v1/runs/{run_id}:cancel"
	Body   bool   // the request is in the body
	Stream bool   // the response is a stream of messages
	Status int    // of a successful response
	// Procedure is the path of the call in Connect: "/servo.v1.ExecutionService/CancelRun".
	Procedure string

	segments []string // the segments of the path: literals, and names in braces
	verb     string   // "cancel"
	input    protoreflect.MessageType
	output   protoreflect.MessageType
}

// scope is the part of a path that names a workspace.
const scope = "/tenants/{tenant_id}/workspaces/{workspace_id}"

// Routes returns the routes of the schema, each with and without tenant and workspace. If two routes
// match a path, the more specific one comes first.
func Routes() []*Route {
	var all []*Route
	protoregistry.GlobalFiles.RangeFilesByPackage(servov1.File_servo_v1_options_proto.Package(), func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, routesOf(methods.Get(j))...)
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b *Route) int {
		return cmp.Or(strings.Compare(sortable(a), sortable(b)), strings.Compare(a.Method, b.Method))
	})
	return all
}

// sortable returns the sort key of a route: paths with a verb come before other paths, and literals before variables.
func sortable(r *Route) string {
	verb := "1"
	if r.verb != "" {
		verb = "0"
	}
	return verb + strings.ReplaceAll(r.Path, "{", "~")
}

func routesOf(m protoreflect.MethodDescriptor) []*Route {
	options, _ := m.Options().(*descriptorpb.MethodOptions)
	http, _ := proto.GetExtension(options, annotations.E_Http).(*annotations.HttpRule)
	own, _ := proto.GetExtension(options, servov1.E_Method).(*servov1.MethodRule)
	var all []*Route
	for _, rule := range append([]*annotations.HttpRule{http}, http.GetAdditionalBindings()...) {
		verb, path := patternOf(rule)
		for _, form := range []string{path, strings.Replace(path, scope, "", 1)} {
			all = append(all, newRoute(m, verb, form, rule.GetBody() == "*", int(own.GetSuccessStatus())))
		}
	}
	return all
}

// patternOf returns the method and the path of a rule.
func patternOf(rule *annotations.HttpRule) (verb, path string) {
	if rule.GetGet() != "" {
		return http.MethodGet, rule.GetGet()
	}
	return http.MethodPost, rule.GetPost()
}

func newRoute(m protoreflect.MethodDescriptor, verb, path string, body bool, status int) *Route {
	r := &Route{
		Method: verb, Path: path, Body: body, Stream: m.IsStreamingServer(), Status: cmp.Or(status, http.StatusOK),
		Procedure: "/" + string(m.Parent().FullName()) + "/" + string(m.Name()),
		input:     messageType(m.Input()), output: messageType(m.Output()),
	}
	path, r.verb = cutVerb(path)
	r.segments = strings.Split(path, "/")
	return r
}

func messageType(d protoreflect.MessageDescriptor) protoreflect.MessageType {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic("rest: " + err.Error()) // cannot happen: the generated code registers all messages
	}
	return t
}

// cutVerb cuts the verb from the last segment of a path.
func cutVerb(path string) (before, verb string) {
	colon := strings.LastIndexByte(path, ':')
	if colon < strings.LastIndexByte(path, '/') {
		return path, ""
	}
	return path[:colon], path[colon+1:]
}

// find returns the route of an escaped path and the values of its variables. If no route matches, allowed lists the
// methods that the path supports.
func find(routes []*Route, method, path string) (found *Route, values map[string]string, allowed []string) {
	hasVerb := false // whether the path ends with a verb, which is not part of an id
	for _, r := range routes {
		values, ok := r.match(path)
		hasVerb = hasVerb || ok && r.verb != ""
		switch {
		case !ok, hasVerb && r.verb == "":
		case r.Method == method:
			return r, values, nil
		case !slices.Contains(allowed, r.Method):
			allowed = append(allowed, r.Method)
		}
	}
	slices.Sort(allowed)
	return nil, nil, allowed
}

// match returns the values of a path's variables, if the path has the form of the route.
func (r *Route) match(path string) (map[string]string, bool) {
	if r.verb != "" {
		before, verb := cutVerb(path)
		if verb != r.verb {
			return nil, false
		}
		path = before
	}
	values := map[string]string{}
	rest := path
	for i, want := range r.segments {
		segment, after, more := strings.Cut(rest, "/")
		if more != (i < len(r.segments)-1) {
			return nil, false
		}
		rest = after
		name, isVariable := strings.CutPrefix(want, "{")
		if !isVariable {
			if segment != want {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(segment)
		if err != nil || value == "" {
			return nil, false
		}
		values[strings.TrimSuffix(name, "}")] = value
	}
	return values, true
}
