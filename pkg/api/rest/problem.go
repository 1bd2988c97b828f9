package rest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/servo-orchestration/servo/pkg/api/jsonpb"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// typePrefix is the prefix of the type of each problem.
const typePrefix = "urn:servo:problem:"

func problem(status int, name, title, detail string) *servov1.Problem {
	return &servov1.Problem{Type: typePrefix + name, Title: title, Status: int32(status), Detail: detail} //nolint:gosec // an HTTP status
}

func internalProblem(err error) *servov1.Problem {
	return problem(http.StatusInternalServerError, "internal", "Internal error", err.Error())
}

// violation is the problem of a request that cannot be decoded.
func violation(err error) *servov1.Problem {
	p := problem(http.StatusBadRequest, "invalid-request", "Invalid request", "invalid request: "+err.Error())
	if field, ok := errors.AsType[*jsonpb.FieldError](err); ok {
		p.FieldViolations = []*servov1.Problem_FieldViolation{{Field: field.Path, Description: field.Problem}}
	}
	return p
}

// callError is an error in the JSON form of Connect.
type callError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	} `json:"details"`
}

// problemOf returns the problem of a failed call, whose response is an error in the form of Connect.
func problemOf(status int, body []byte) *servov1.Problem {
	var failed callError
	if err := json.Unmarshal(body, &failed); err != nil || failed.Code == "" {
		return problem(status, "internal", "Internal error", fmt.Sprintf("the server answered the call with the status %d: %s", status, body))
	}
	return failed.problem(status)
}

func (e *callError) problem(status int) *servov1.Problem {
	for _, detail := range e.Details {
		if detail.Type != string((&servov1.Problem{}).ProtoReflect().Descriptor().FullName()) {
			continue
		}
		p := &servov1.Problem{}
		raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(detail.Value, "="))
		if err == nil && proto.Unmarshal(raw, p) == nil {
			return p
		}
	}
	if status == http.StatusOK { // the error came at the end of a stream
		status = http.StatusInternalServerError
	}
	return problem(status, strings.ReplaceAll(e.Code, "_", "-"), http.StatusText(status), e.Message)
}

// document is a problem in JSON. It leaves out members without a value.
type document struct {
	Type            string               `json:"type"`
	Title           string               `json:"title"`
	Status          int32                `json:"status"`
	Detail          string               `json:"detail,omitempty"`
	FieldViolations []violationsDocument `json:"field_violations,omitempty"`
	Retryable       bool                 `json:"retryable,omitempty"`
	RetryAfterMS    int64                `json:"retry_after_ms,omitempty"`
}

type violationsDocument struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

func encodeProblem(p *servov1.Problem) []byte {
	d := document{
		Type: p.GetType(), Title: p.GetTitle(), Status: p.GetStatus(), Detail: p.GetDetail(), Retryable: p.GetRetryable(), RetryAfterMS: p.GetRetryAfterMs(),
	}
	for _, v := range p.GetFieldViolations() {
		d.FieldViolations = append(d.FieldViolations, violationsDocument{v.GetField(), v.GetDescription()})
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		panic(fmt.Sprintf("rest: encode a problem: %v", err)) // cannot happen: it has only strings and numbers
	}
	return []byte(b.String())
}

// WriteProblem answers with a problem document.
func WriteProblem(w http.ResponseWriter, p *servov1.Problem) {
	if p.GetRetryAfterMs() > 0 {
		const second = 1000
		w.Header().Set("Retry-After", strconv.FormatInt((p.GetRetryAfterMs()+second-1)/second, 10))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(int(p.GetStatus()))
	_, _ = w.Write(encodeProblem(p)) // an error means that the client has disconnected
}
