// Package api serves the HTTP API: list runs and their tasks, explain a task, start a run, cancel a
// run. This package is not a stable API.
//
// Responses are JSON with snake_case names; errors are problem documents (RFC 9457). A POST must
// declare a JSON body. A web page cannot send that Content-Type to another origin without a
// preflight request, so no page can start a run behind its reader's back.
package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// Project is the project whose assets runs materialize.
type Project struct {
	Name   string
	Root   string
	Assets []plan.Asset
	// Data lists the folders that queries may read: see [plan.Request].
	Data []string
	// MaxParallelism limits each run; 0: no limit.
	MaxParallelism int32
	// Release is the hash of the deployed release that the assets belong to. Source is the hash of the
	// archive of its files: workers then need no Root.
	Release, Source string
}

// Config holds the dependencies of the routes.
type Config struct {
	Engine *engine.Engine
	// Project returns the newest valid project, or an error if there is none.
	Project func() (*Project, error)
	// User returns the verified user who sends a request. Runs and events record it.
	User func(*http.Request) string
	// OpenQuery opens a session for SQL over a revision or a time; "": the newest revision. It also
	// returns the number of the revision. Nil: queries are rejected.
	OpenQuery func(ctx context.Context, asOf string) (QuerySession, int64, error)
}

// maxBody is the largest accepted request body, in bytes.
const maxBody = 1 << 20

// Register adds the routes to a mux.
func Register(mux *http.ServeMux, cfg Config) {
	h := handler{cfg, make(chan struct{}, maxQueries), make(chan struct{}, maxWatches)}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_ = httpx.JSON(w, http.StatusOK, map[string]string{"status": "ok"}) // the client has disconnected if this fails
	})
	mux.HandleFunc("GET /readyz", h.serve(h.ready))
	mux.HandleFunc("GET /v1/assets", h.serve(h.assets))
	mux.HandleFunc("GET /v1/key-sets", h.serve(h.keySets))
	mux.HandleFunc("GET /v1/key-sets/{set}", h.serve(h.keySet))
	mux.HandleFunc("POST /v1/key-sets/{set}", h.serve(h.changeKeySet))
	mux.HandleFunc("GET /v1/runs", h.serve(h.runs))
	mux.HandleFunc("POST /v1/runs", h.serve(h.start))
	mux.HandleFunc("GET /v1/runs/{run}", h.serve(h.run))
	mux.HandleFunc("GET /v1/runs/{run}/tasks", h.serve(h.tasks))
	mux.HandleFunc("GET /v1/runs/{run}/tasks/{task}", h.serve(h.explain))
	mux.HandleFunc("POST /v1/runs/{run}/cancel", h.serve(h.cancel))
	mux.HandleFunc("GET /v1/alerts", h.serve(h.alerts))
	mux.HandleFunc("GET /v1/attention", h.serve(h.attention))
	mux.HandleFunc("GET /v1/deadlines", h.serve(h.deadlines))
	mux.HandleFunc("GET /v1/schedules", h.serve(h.schedules))
	mux.HandleFunc("GET /v1/schedules/{schedule}", h.serve(h.schedule))
	mux.HandleFunc("GET /v1/schedules/{schedule}/ticks", h.serve(h.ticks))
	mux.HandleFunc("POST /v1/schedules/{schedule}/pause", h.serve(h.commandSchedule(event.VerbPause)))
	mux.HandleFunc("POST /v1/schedules/{schedule}/resume", h.serve(h.commandSchedule(event.VerbResume)))
	mux.HandleFunc("POST /v1/schedules/{schedule}/trigger", h.serve(h.commandSchedule(event.VerbTrigger)))
	mux.HandleFunc("POST /v1/schedules/{schedule}/backfill", h.serve(h.backfillSchedule))
	mux.HandleFunc("GET /v1/backfills", h.serve(h.backfills))
	mux.HandleFunc("POST /v1/backfills", h.serve(h.createBackfill))
	mux.HandleFunc("GET /v1/backfills/{backfill}", h.serve(h.backfill))
	mux.HandleFunc("POST /v1/backfills/{backfill}/pause", h.serve(h.commandBackfill(event.VerbPause)))
	mux.HandleFunc("POST /v1/backfills/{backfill}/resume", h.serve(h.commandBackfill(event.VerbResume)))
	mux.HandleFunc("POST /v1/backfills/{backfill}/cancel", h.serve(h.commandBackfill(event.VerbCancel)))
	mux.HandleFunc("POST /v1/backfills/{backfill}/retry-failed", h.serve(h.commandBackfill(event.VerbRetryFailed)))
	mux.HandleFunc("POST /v1/backfills/{backfill}/set", h.serve(h.commandBackfill(event.VerbSet)))
	mux.HandleFunc("POST /v1/query", h.query)
	mux.HandleFunc("GET /v1/watch", h.watch)
	mux.HandleFunc("GET /v1/requests", h.serve(h.requests))
	mux.HandleFunc("POST /v1/requests/{request}/cancel", h.serve(h.cancelRequest))
	mux.HandleFunc("GET /v1/quarantine", h.serve(h.candidates))
	mux.HandleFunc("POST /v1/quarantine/{materialization}/approve", h.serve(h.resolve(event.DecisionApprove)))
	mux.HandleFunc("POST /v1/quarantine/{materialization}/reject", h.serve(h.resolve(event.DecisionReject)))
}

type handler struct {
	Config

	queries chan struct{} // has one value for each running query
	watches chan struct{} // has one value for each stream of changes
}

// engineOf returns the engine for changes that the sender of a request makes.
func (h handler) engineOf(r *http.Request) *engine.Engine { return h.Engine.As(engine.User(h.User(r))) }

// refusal is an error with an HTTP status.
type refusal struct {
	status int
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

func refuse(status int, format string, args ...any) error {
	return &refusal{status, fmt.Errorf(format, args...)}
}

// serve returns a handler that writes the result of f.
func (h handler) serve(f func(*http.Request) (status int, body any, err error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, body, err := f(r)
		if err != nil {
			_ = httpx.LongProblem(w, contract.Problem{Status: statusOf(err), Detail: err.Error()}) // the client has disconnected if this fails
			return
		}
		_ = httpx.JSON(w, status, body) // as above
	}
}

// statusOf returns the HTTP status of an error.
func statusOf(err error) int {
	var r *refusal
	var invalid *engine.InvalidError
	switch {
	case errors.As(err, &invalid):
		return http.StatusBadRequest
	case errors.As(err, &r):
		return r.status
	case errors.Is(err, engine.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, engine.ErrConflict), errors.Is(err, engine.ErrChanged), errors.Is(err, engine.ErrEnded), errors.Is(err, engine.ErrRequestEnded), errors.Is(err, engine.ErrNoEffect), errors.Is(err, engine.ErrLiveRetry), errors.Is(err, engine.ErrMissingInput), errors.Is(err, engine.ErrResolved):
		return http.StatusConflict
	}
	return http.StatusInternalServerError
}

// decode reads the JSON body of a POST. It rejects unknown fields, because a misspelt field could
// start a different run than the caller intended.
func decode(r *http.Request, to any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "unsupported Content-Type %q: send application/json", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return refuse(http.StatusBadRequest, "read the request: %w", err)
	}
	if len(body) > maxBody {
		return refuse(http.StatusRequestEntityTooLarge, "the request body has more than %d bytes", maxBody)
	}
	if len(body) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(to); err != nil {
		return refuse(http.StatusBadRequest, "invalid request body: %w", inWords(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return refuse(http.StatusBadRequest, "invalid request body: trailing data after the JSON object")
	}
	if err := contract.CheckNames(body, to); err != nil {
		return refuse(http.StatusBadRequest, "invalid request body: %w", err)
	}
	return nil
}

// inWords replaces the error for a JSON value of the wrong type, which names Go types.
func inWords(err error) error {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err
	}
	what := "it"
	if wrong.Field != "" {
		what = strconv.Quote(wrong.Field)
	}
	got, _, _ := strings.Cut(wrong.Value, " ") // "number 1"
	return fmt.Errorf("%s must be %s, got %s", what, expected(wrong.Type), cmp.Or(map[string]string{
		"array": "a list", "bool": "true or false", "object": "an object", "number": "a number", "string": "a string",
	}[got], wrong.Value))
}

// expected describes the JSON values of a Go type.
func expected(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // the types of request bodies
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of strings"
	case reflect.String:
		return "a string"
	}
	return "an object"
}

// limit returns the query parameter limit, which must be between 1 and most.
func limit(r *http.Request, fallback, most int) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, refuse(http.StatusBadRequest, "invalid limit %q: must be 1 to %d", text, most)
	}
	return n, nil
}
