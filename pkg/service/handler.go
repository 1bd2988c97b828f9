package service

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// handler is the server's mux, with limits on every request, a count of it and,
// where it failed, a log line.
func (s *server) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, route := s.mux.Handler(r)
		ctx, cancel := context.WithTimeout(trace.WithinRequest(r.Context(), r.Header), cmp.Or(s.timeouts[route], requestTimeout))
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		began := s.clock.Now()
		answer := &recorder{ResponseWriter: w, status: http.StatusOK}
		if route == "" {
			route = "none"
			refuse(answer, r, handler)
		} else if admitted := s.admit(answer, r, route); admitted != nil {
			r = s.serveTraced(answer, admitted, route)
		}
		s.metrics.Add("servo_http_requests_total", 1, "route", route, "status", strconv.Itoa(answer.status))
		s.log(r, route, answer.status, s.clock.Now().Sub(began))
	})
}

// log logs a request that was answered: at level debug, and as a warning where it failed or
// was a callback that nobody signed.
func (s *server) log(r *http.Request, route string, status int, took time.Duration) {
	attributes := []slog.Attr{
		slog.String("method", r.Method), slog.String("path", contract.Cut(r.URL.Path)), slog.Int("status", status), slog.Duration("took", took),
	}
	switch {
	case route == contract.CallbackPattern && status == http.StatusUnauthorized:
		s.metrics.Add("servo_refused_callbacks_total", 1)
		s.warnings.warn(r.Context(), "callback", "callback refused: its signature is wrong or has expired", attributes...)
	case status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable:
		s.warnings.warn(r.Context(), "request "+strconv.Itoa(status)+" "+route, "request", attributes...)
	default:
		s.logger.LogAttrs(r.Context(), slog.LevelDebug, "request", attributes...)
	}
}

// serveTraced serves a request, with a span of its own if it is clear who calls: a
// stranger makes none. Those of workers' callbacks the dispatcher makes, once it has
// verified them.
func (s *server) serveTraced(answer *recorder, r *http.Request, route string) *http.Request {
	if !open[route] {
		traced, end := s.traces.Serve(r, route)
		defer func() { end(answer.status) }()
		r = traced
	}
	s.mux.ServeHTTP(answer, r)
	return r
}

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
	begun  bool
}

// WriteHeader implements [http.ResponseWriter].
func (r *recorder) WriteHeader(status int) {
	if !r.begun {
		r.status, r.begun = status, true
	}
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// refuse answers what no route is for: with the status that the mux's own
// handler gives, 404 or 405, and like every error as a problem document.
func refuse(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	probe := &unsent{header: http.Header{}, status: http.StatusOK}
	handler.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
	}
	writeProblem(w, probe.status, "unknown route "+r.Method+" "+r.URL.Path)
}

func writeProblem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(contract.Problem{Title: http.StatusText(status), Status: status, Detail: contract.Cut(detail)}) //nolint:errchkjson // who asked is gone if this fails
}

// unsent is an answer that is looked at and not sent.
type unsent struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (u *unsent) Header() http.Header { return u.header }

// Write implements [http.ResponseWriter].
func (u *unsent) Write(p []byte) (int, error) { return u.body.Write(p) }

// WriteHeader implements [http.ResponseWriter].
func (u *unsent) WriteHeader(status int) { u.status = status }
