// Package httpx writes the responses of every HTTP server of Servo.
package httpx

import (
	"encoding/json"
	"net/http"

	"github.com/servo-orchestration/servo/pkg/contract"
)

// JSON writes a response. It returns an error if the client has disconnected.
func JSON(w http.ResponseWriter, status int, body any) error {
	return write(w, "application/json", status, body)
}

// Problem writes an error as a problem document (RFC 9457). The title of the document defaults to the text of its
// status. The detail is truncated, because it may quote long texts from the request. Problem returns an error if the
// client has disconnected.
func Problem(w http.ResponseWriter, p contract.Problem) error {
	p.Detail = contract.Truncate(p.Detail)
	return LongProblem(w, p)
}

// LongProblem is like [Problem], but does not truncate the detail. It is for answers whose whole detail users need.
func LongProblem(w http.ResponseWriter, p contract.Problem) error {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	return write(w, "application/problem+json", p.Status, p)
}

// Refuse writes a problem document with a status and a detail.
func Refuse(w http.ResponseWriter, status int, detail string) {
	_ = Problem(w, contract.Problem{Status: status, Detail: detail}) // on an error, the client has disconnected
}

func write(w http.ResponseWriter, contentType string, status int, body any) error {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(body) //nolint:wrapcheck // callers only log the error
}
