// Package rest serves the API as REST: it translates requests into calls of a Connect handler in the same
// process, according to the options google.api.http of the schema. This package is not a stable API.
//
// A route is served in two forms. One form has the path of the schema, which names the tenant and the workspace. The
// other form omits both, and refers to the only workspace of the server. Errors are problem documents (RFC 9457). A
// POST must have the Content-Type application/json. A web page cannot send this type to another origin without a
// preflight request. So no web page can start a run without the user's knowledge.
package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/api/jsonpb"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// MaxBody is the greatest size of a request body, in bytes.
const MaxBody = 4 << 20

// Handler serves the routes of the schema.
type Handler struct {
	calls  http.Handler
	routes []*Route
}

// New returns a handler that calls a Connect handler.
func New(calls http.Handler) *Handler { return &Handler{calls: calls, routes: Routes()} }

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	found, values, allowed := find(h.routes, method, r.URL.EscapedPath())
	switch {
	case found == nil && len(allowed) == 0:
		WriteProblem(w, problem(http.StatusNotFound, "not-found", "Not found", "unknown route "+r.URL.Path))
		return
	case found == nil:
		allow := strings.Join(allowed, ", ")
		w.Header().Set("Allow", allow)
		WriteProblem(w, problem(http.StatusMethodNotAllowed, "method-not-allowed", "Method not allowed",
			fmt.Sprintf("%s allows %s, not %s", r.URL.Path, allow, r.Method)))
		return
	}
	request, p := decode(w, r, found, values)
	switch {
	case p != nil:
		WriteProblem(w, p)
	case found.Stream:
		h.stream(w, r, found, request)
	default:
		h.unary(w, r, found, request)
	}
}

// decode reads the request message of a route from the path, and from the query or the body.
func decode(w http.ResponseWriter, r *http.Request, route *Route, values map[string]string) (proto.Message, *servov1.Problem) {
	request := route.input.New().Interface()
	query := r.URL.Query()
	if route.Body {
		for name := range query {
			return nil, violation(&jsonpb.FieldError{Path: name, Problem: "is in the query of the URL: send it in the body"})
		}
		if p := decodeBody(w, r, request); p != nil {
			return nil, p
		}
	}
	for _, name := range slices.Sorted(keysOf(query)) {
		if _, inPath := values[name]; inPath {
			return nil, violation(&jsonpb.FieldError{Path: name, Problem: "is in the query of the URL, but the path already contains it: remove it from the query"})
		}
		if err := jsonpb.SetText(request, name, query[name]); err != nil {
			return nil, violation(err)
		}
	}
	for name, value := range values {
		field := request.ProtoReflect().Descriptor().Fields().ByTextName(name)
		if given := request.ProtoReflect().Get(field); request.ProtoReflect().Has(field) && given.String() != value {
			return nil, violation(&jsonpb.FieldError{Path: name, Problem: fmt.Sprintf("is %q in the body and %q in the path: remove it from the body", given.String(), value)})
		}
		if err := jsonpb.SetText(request, name, []string{value}); err != nil {
			return nil, violation(err)
		}
	}
	return request, nil
}

func keysOf(query map[string][]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name := range query {
			if !yield(name) {
				return
			}
		}
	}
}

func decodeBody(w http.ResponseWriter, r *http.Request, request proto.Message) *servov1.Problem {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return problem(http.StatusUnsupportedMediaType, "unsupported-media-type", "Unsupported media type",
			fmt.Sprintf("unsupported Content-Type %q: send application/json", r.Header.Get("Content-Type")))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return problem(http.StatusRequestEntityTooLarge, "too-large", "Request too large", fmt.Sprintf("the request body has more than %d bytes", MaxBody))
	case err != nil:
		return violation(fmt.Errorf("read the request: %w", err))
	case len(bytes.TrimSpace(body)) == 0:
		return nil
	}
	if err := jsonpb.Unmarshal(body, request); err != nil {
		return violation(err)
	}
	return nil
}

// unary makes a call that has one response.
func (h *Handler) unary(w http.ResponseWriter, r *http.Request, route *Route, request proto.Message) {
	raw, err := proto.Marshal(request)
	if err != nil {
		WriteProblem(w, violation(err)) // a string of the message is not UTF-8
		return
	}
	answer := recorder{header: http.Header{}, status: http.StatusOK}
	h.calls.ServeHTTP(&answer, inner(r, route, "application/proto", raw))
	copyHeader(w, answer.header)
	if answer.status != http.StatusOK {
		WriteProblem(w, problemOf(answer.status, answer.body.Bytes()))
		return
	}
	response := route.output.New().Interface()
	if err := proto.Unmarshal(answer.body.Bytes(), response); err != nil {
		WriteProblem(w, internalProblem(err))
		return
	}
	body, err := jsonpb.Marshal(response)
	if err != nil {
		WriteProblem(w, internalProblem(err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if route.Body {
		w.Header().Set("Cache-Control", "no-store")
	} else {
		tag := etag(w.Header().Get(EditTagHeader), body)
		w.Header().Set("ETag", tag)
		// A browser may cache the response, but must ask before each use whether it is still current.
		w.Header().Set("Cache-Control", "private, no-cache")
		if matches(r.Header.Get("If-None-Match"), tag) {
			w.Header().Del("Content-Type")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.WriteHeader(route.Status)
	_, _ = w.Write(append(body, '\n')) // the client has disconnected if this fails
}

// inner returns the request to the Connect handler that corresponds to a REST request.
func inner(r *http.Request, route *Route, contentType string, body []byte) *http.Request {
	call := r.Clone(r.Context())
	call.Method = http.MethodPost
	call.URL.Path, call.URL.RawPath, call.URL.RawQuery = route.Procedure, "", ""
	call.RequestURI = route.Procedure
	for _, name := range []string{"Accept-Encoding", "Content-Encoding", "Content-Length", "Connect-Timeout-Ms", "Te", "Last-Event-Id"} {
		call.Header.Del(name)
	}
	call.Header.Set("Content-Type", contentType)
	call.Header.Set("Connect-Protocol-Version", "1")
	call.Body, call.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return call
}

// copyHeader copies the headers that the call sets for its response.
func copyHeader(w http.ResponseWriter, from http.Header) {
	for name, values := range from {
		if strings.HasPrefix(name, "Servo-") {
			w.Header()[name] = values
		}
	}
}

// recorder keeps a response in memory.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) { r.status = status }

// Write implements [http.ResponseWriter].
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }
