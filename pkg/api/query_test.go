package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/api"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/query/arrowipc"
)

// asked is the response to a query.
type asked struct {
	status int
	kind   string
	header http.Header
	body   string
	err    error
}

// clockOnly returns an engine that has only a clock: queries use their own session.
func clockOnly() *engine.Engine {
	return engine.New(engine.Config{Handle: &domain.Handle{Clock: clock.System{}}})
}

// ask sends a query to a server over an empty state.
func ask(t *testing.T, accept, body string, open func(context.Context, string, string) (api.QuerySession, api.Revision, error)) asked {
	t.Helper()
	mux := http.NewServeMux()
	api.Register(mux, api.Config{Engine: clockOnly(), OpenQuery: open})
	server := httptest.NewServer(mux)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/query", strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	response, err := server.Client().Do(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	data, err := io.ReadAll(response.Body)
	return asked{response.StatusCode, response.Header.Get("Content-Type"), response.Header, string(data), err}
}

const timeline = "01KAJ2T0000000000000000000"

func openEmpty(ctx context.Context, _, asOf string) (api.QuerySession, api.Revision, error) {
	if asOf == "9" {
		return nil, api.Revision{}, fmt.Errorf("load revision 9: %w", manifest.ErrAbsent)
	}
	db, err := query.Open(ctx, query.Source{}, query.Options{})
	return db, api.Revision{Number: 7, Timeline: timeline}, err
}

func TestQueryFormats(t *testing.T) {
	const sql = `{"sql": "SELECT 1 AS a, 9007199254740993 AS b, 1.50::DECIMAL(9,2) AS c, [9223372036854775807] AS d, NULL AS e"}`
	got := ask(t, "", sql, openEmpty)
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, "application/json", got.kind)
	require.Contains(t, got.body, `"columns":[{"name":"a","type":"INTEGER"},{"name":"b","type":"BIGINT"},{"name":"c","type":"DECIMAL(9,2)"},`)
	require.Contains(t, got.body, `"rows":[[1,"9007199254740993","1.50",["9223372036854775807"],null]]`) // JavaScript would round these numbers
	require.Contains(t, got.body, `"revision":7,"row_count":1,"truncated":false`)

	got = ask(t, "application/x-ndjson", sql, openEmpty)
	require.Equal(t, `{"a":1,"b":9007199254740993,"c":1.50,"d":[9223372036854775807],"e":null}`+"\n", got.body)

	got = ask(t, "text/csv", `{"sql": "FROM range(3)", "row_limit": 2}`, openEmpty)
	require.Equal(t, "range\n0\n1\n", got.body)
	require.Equal(t, "text/csv", got.kind)

	const arrow = "application/vnd.apache.arrow.stream"
	got = ask(t, arrow, sql, openEmpty)
	require.Equal(t, arrow, got.kind)
	var want bytes.Buffer
	session, _, err := openEmpty(t.Context(), "", "")
	require.NoError(t, err)
	defer session.Close()
	rows, err := session.QueryAtMost(t.Context(), 1, "SELECT 1 AS a, 9007199254740993 AS b, 1.50::DECIMAL(9,2) AS c, [9223372036854775807] AS d, NULL AS e")
	require.NoError(t, err)
	require.NoError(t, arrowipc.Write(&want, rows.Columns, rows.All())) // arrowipc has its own tests
	require.NoError(t, rows.Close())
	require.Equal(t, want.String(), got.body)
}

func TestQueryNamesItsRevision(t *testing.T) {
	for _, accept := range []string{"application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"} {
		header := ask(t, accept, `{"sql": "SELECT 1"}`, openEmpty).header
		require.Equal(t, accept, header.Get("Content-Type"))
		require.Equal(t, "7", header.Get("Servo-Revision"), accept)
		require.Equal(t, timeline, header.Get("Servo-Timeline"), accept)
	}
	empty := ask(t, "", `{"sql": "SELECT 1"}`, func(ctx context.Context, _, _ string) (api.QuerySession, api.Revision, error) {
		db, err := query.Open(ctx, query.Source{}, query.Options{})
		return db, api.Revision{}, err
	})
	require.Equal(t, "0", empty.header.Get("Servo-Revision"))
	require.NotContains(t, empty.header, "Servo-Timeline", "a new state has no timeline")
}

func TestQueryLimits(t *testing.T) {
	got := ask(t, "", `{"sql": "FROM range(5000)"}`, openEmpty)
	require.Contains(t, got.body, `"row_count":1000,"truncated":true`)
	got = ask(t, "", `{"sql": "FROM range(5000)", "row_limit": 5000}`, openEmpty)
	require.Contains(t, got.body, `"row_count":5000,"truncated":false`)
	got = ask(t, "text/csv", `{"sql": "FROM range(5000)"}`, openEmpty)
	require.Equal(t, 5001, strings.Count(got.body, "\n")) // CSV has no default limit
}

// DuckDB must neither compute nor keep in memory the rows that the response leaves out.
func TestQueryComputesNoRowsBeyondLimit(t *testing.T) {
	const sql = "SELECT CASE WHEN i < 5000000 THEN i ELSE error('more rows than necessary') END AS i FROM range(10000000) t(i)"
	for _, accept := range []string{"", "text/csv"} {
		got := ask(t, accept, `{"sql": "`+sql+`", "row_limit": 3}`, openEmpty)
		require.Equal(t, http.StatusOK, got.status, got.body)
	}
	got := ask(t, "", `{"sql": "`+sql+`; `+sql+`"}`, openEmpty)
	require.Contains(t, got.body, `"row_count":1000,"truncated":true`)
}

// This test fails if a response that ends early looks complete.
func TestQueryErrorAfterRows(t *testing.T) {
	const sql = `{"sql": "FROM range(1100000)", "row_limit": 0}`
	for _, accept := range []string{"text/csv", "application/x-ndjson", "application/vnd.apache.arrow.stream"} {
		got := ask(t, accept, sql, openEmpty)
		require.ErrorIs(t, got.err, io.ErrUnexpectedEOF, accept)
	}
	got := ask(t, "", `{"sql": "SELECT repeat('x', 1000000) FROM range(100)"}`, openEmpty)
	require.NoError(t, got.err)
	require.Contains(t, got.body, `"error":"the result has more than 64 MiB: select fewer rows or columns"`)
	got = ask(t, "", `{"sql": "SELECT repeat('x', 70000000)"}`, openEmpty)
	require.Contains(t, got.body, `"rows":[],"revision":7,"row_count":0,`)
	require.Contains(t, got.body, `"error":"read the result: a row takes more than 64 MiB`)
	got = ask(t, "", `{"sql": "SELECT range(9000000)"}`, openEmpty)
	require.Contains(t, got.body, `"error":"read the result: a row takes more than 64 MiB`)
	got = ask(t, "", `{"sql": "SELECT `+strings.Repeat("[", 1000)+strings.Repeat("]", 1000)+`"}`, openEmpty)
	require.Equal(t, http.StatusBadRequest, got.status)
	require.Contains(t, got.body, "query: line 1: brackets are nested more than 100 deep")
}

// If a result cannot be written at all, the client learns the reason in every format.
func TestQueryNamesErrorBeforeFirstBytes(t *testing.T) {
	for accept, sql := range map[string]string{
		"application/vnd.apache.arrow.stream": "SELECT DATE '12000-01-01' AS x",
		"text/csv":                            "SELECT TIME_NS '10:00:00' AS x",
		"application/x-ndjson":                "SELECT MAP {[1]: 2} AS x",
	} {
		got := ask(t, accept, `{"sql": "`+sql+`"}`, openEmpty)
		require.NoError(t, got.err, accept)
		require.Equal(t, http.StatusBadRequest, got.status, accept)
		require.Equal(t, "application/problem+json", got.kind, accept)
		require.Contains(t, got.body, "to VARCHAR", accept)
	}
}

func TestQueryRefusals(t *testing.T) {
	tests := []struct {
		name, accept, body string
		status             int
		detail             string
	}{
		{"no SQL", "", `{"sql": " "}`, http.StatusBadRequest, "sql: is empty"},
		{"broken SQL", "", `{"sql": "SELEC 1"}`, http.StatusBadRequest, "syntax error"},
		{"write a file", "", `{"sql": "COPY (SELECT 1) TO '/tmp/x'"}`, http.StatusBadRequest, "disabled"},
		{"read a file", "", `{"sql": "FROM read_text('/etc/passwd')"}`, http.StatusBadRequest, "disabled"},
		{"unknown member", "", `{"sql": "SELECT 1", "rows": 5}`, http.StatusBadRequest, "rows"},
		{"too many rows", "", `{"sql": "SELECT 1", "row_limit": 1000001}`, http.StatusBadRequest, "row_limit: is 1000001: must be 1 to 1000000"},
		{"unknown format", "application/xml", `{"sql": "SELECT 1"}`, http.StatusNotAcceptable, "unknown format"},
		{"collected revision", "", `{"sql": "SELECT 1", "as_of": "9"}`, http.StatusGone, "revision 9"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := ask(t, test.accept, test.body, openEmpty)
			require.Equal(t, test.status, got.status, got.body)
			require.Equal(t, "application/problem+json", got.kind)
			require.Contains(t, got.body, test.detail)
		})
	}
	require.Equal(t, http.StatusNotImplemented, ask(t, "", `{"sql": "SELECT 1"}`, nil).status)
}

// blockedQueries serves queries. When a query begins, it sends a value to entered. It then runs until release is
// closed.
func blockedQueries() (mux *http.ServeMux, entered, release chan struct{}) {
	mux, entered, release = http.NewServeMux(), make(chan struct{}), make(chan struct{})
	api.Register(mux, api.Config{Engine: clockOnly(), OpenQuery: func(context.Context, string, string) (api.QuerySession, api.Revision, error) {
		entered <- struct{}{}
		<-release
		return nil, api.Revision{}, errors.New("no session")
	}})
	return mux, entered, release
}

func postQuery(ctx context.Context, h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/query", strings.NewReader(`{"sql": "SELECT 1"}`))
	r.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(w, r)
	return w
}

// This test fails if a query that finds no place does not wait, if the number of waiting queries has no bound, or if
// a query that has ended keeps its place.
func TestQueriesAtOnce(t *testing.T) {
	mux, entered, release := blockedQueries()
	const running, waiting = 2, 8
	answers := make(chan *httptest.ResponseRecorder)
	for range running {
		go func() { answers <- postQuery(t.Context(), mux) }()
		<-entered
	}
	for range waiting + 1 {
		go func() { answers <- postQuery(t.Context(), mux) }()
	}
	refused := <-answers // all other queries wait
	require.Equal(t, http.StatusTooManyRequests, refused.Code)
	require.Equal(t, "1", refused.Header().Get("Retry-After"))
	require.Contains(t, refused.Body.String(), "2 queries are running and 8 are waiting")
	go func() {
		for range waiting {
			<-entered
		}
	}()
	close(release)
	for range running + waiting {
		require.Equal(t, http.StatusBadRequest, (<-answers).Code)
	}
}

// This test fails if a query still counts as waiting after its caller has left.
func TestWaitingQueryEndsWithItsCaller(t *testing.T) {
	mux, entered, release := blockedQueries()
	answers := make(chan string)
	post := func(ctx context.Context) { answers <- postQuery(ctx, mux).Body.String() }
	for range 2 {
		go post(t.Context())
		<-entered
	}
	const more = 20 // more than the maximum number of waiting queries
	for range more {
		ctx, cancel := context.WithCancel(t.Context())
		go post(ctx)
		cancel()
		require.Contains(t, <-answers, "2 other queries ran while this one waited: context canceled")
	}
	close(release)
	<-answers
	<-answers
}

// A caller leaves while DuckDB is still preparing the caller's statement. This test fails if such a query keeps other
// queries from running, or if the number of such queries is not limited.
func TestStuckQueriesAreBounded(t *testing.T) {
	stuck := &stuckSession{entered: make(chan struct{}), closing: make(chan struct{}), release: make(chan struct{})}
	mux := http.NewServeMux()
	api.Register(mux, api.Config{Engine: clockOnly(), OpenQuery: func(context.Context, string, string) (api.QuerySession, api.Revision, error) {
		return stuck, api.Revision{Number: 1}, nil
	}})
	post := func(ctx context.Context) int { return postQuery(ctx, mux).Code }
	for range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan int)
		go func() { left <- post(ctx) }()
		<-stuck.entered
		cancel()
		require.Equal(t, http.StatusBadRequest, <-left)
		<-stuck.closing
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, http.StatusTooManyRequests, post(gone), "two have given their places away, and two keep theirs")
	close(stuck.release)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			select {
			case <-stuck.entered:
				cancel()
				<-stuck.closing
			case <-ctx.Done():
			}
		}()
		return post(ctx) == http.StatusBadRequest
	}, 10*time.Second, time.Millisecond)
}

// stuckSession is a session whose DuckDB does not react to an interrupt.
type stuckSession struct{ entered, closing, release chan struct{} }

func (s *stuckSession) QueryAtMost(ctx context.Context, _ int, _ string) (*query.Rows, error) {
	s.entered <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s *stuckSession) Close() error {
	s.closing <- struct{}{}
	<-s.release
	return nil
}

// This test fails if a client that does not read its response occupies a place forever.
func TestQueryHasWriteDeadline(t *testing.T) {
	mux := http.NewServeMux()
	api.Register(mux, api.Config{Engine: clockOnly(), OpenQuery: openEmpty})
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/query", strings.NewReader(`{"sql": "SELECT 1"}`))
	r.Header.Set("Content-Type", "application/json")
	mux.ServeHTTP(w, r)
	require.Equal(t, http.StatusOK, w.Code)
	require.Len(t, w.set, 2)
	require.False(t, w.set[0].IsZero())
	require.True(t, w.set[1].IsZero(), "the connection serves other requests, too")
}

// deadlines records the write deadlines of a connection.
type deadlines struct {
	*httptest.ResponseRecorder

	set []time.Time
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.set = append(d.set, at)
	return nil
}
