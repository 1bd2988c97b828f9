package service

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/identity"
	"github.com/servo-orchestration/servo/pkg/trace"
)

// handler wraps the server's mux. It limits the time and the size of requests, authorizes, counts and logs them.
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
			route = noRoute
			refuse(answer, r, handler)
		} else if authorized := s.authorize(answer, r, route); authorized != nil {
			r = s.serveTraced(answer, authorized, route)
		}
		took := s.clock.Now().Sub(began)
		s.metrics.Add(httpRequests, 1, route, strconv.Itoa(answer.status))
		s.metrics.Observe(httpDuration, took, route)
		s.log(r, route, answer.status, took)
	})
}

// log logs an answered request. The record is a warning if the status is 5xx, except 503, or if a callback had no
// valid signature. Otherwise it has level debug.
func (s *server) log(r *http.Request, route string, status int, took time.Duration) {
	attributes := []slog.Attr{
		slog.String("method", r.Method), slog.String("path", contract.Truncate(r.URL.Path)), slog.Int("status", status), slog.Duration("took", took),
	}
	if caller := identity.Caller(r.Context()); caller != "" {
		attributes = append(attributes, slog.String("caller", caller))
	}
	switch {
	case route == contract.CallbackPattern && status == http.StatusUnauthorized:
		s.metrics.Add(refusedCallbacks, 1)
		s.warnings.warn(r.Context(), "callback", "callback refused: its signature is wrong or has expired", attributes...)
	case status >= http.StatusInternalServerError && status != http.StatusServiceUnavailable:
		s.warnings.warn(r.Context(), "request "+strconv.Itoa(status)+" "+route, "request", attributes...)
	default:
		s.logger.LogAttrs(r.Context(), slog.LevelDebug, "request", attributes...)
	}
}

// serveTraced serves a request. It creates a span for the request, but not on routes without authentication, so that
// strangers cannot create spans. The dispatcher creates the span of a callback after it has verified the callback's
// signature.
func (s *server) serveTraced(answer *recorder, r *http.Request, route string) *http.Request {
	if !open[route] {
		traced, end := s.traces.Serve(r, route)
		defer func() { end(answer.status) }()
		r = traced
	}
	s.mux.ServeHTTP(answer, r)
	return r
}

// recorder records the status of a response.
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

// Unwrap supports [http.ResponseController].
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// refuse answers a request that matches no route. It takes the status, 404 or 405, from the mux's own handler, and
// sends a problem document as the body.
func refuse(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	probe := &captured{header: http.Header{}, status: http.StatusOK}
	handler.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
	}
	httpx.Refuse(w, probe.status, "unknown route "+r.Method+" "+r.URL.Path)
}

// captured is a response that is inspected and not sent.
type captured struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (u *captured) Header() http.Header { return u.header }

// Write implements [http.ResponseWriter].
func (u *captured) Write(p []byte) (int, error) { return u.body.Write(p) }

// WriteHeader implements [http.ResponseWriter].
func (u *captured) WriteHeader(status int) { u.status = status }
