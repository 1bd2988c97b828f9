package api

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/servo-orchestration/servo/pkg/api/rest"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/query"
	"github.com/servo-orchestration/servo/pkg/query/arrowipc"
	"github.com/servo-orchestration/servo/pkg/query/render"
)

// QuerySession runs SQL over one revision.
type QuerySession interface {
	// QueryAtMost runs statements and returns the rows of the last one. The parameter limit is the maximum number of rows
	// that DuckDB computes for each query.
	QueryAtMost(ctx context.Context, limit int, sql string) (*query.Rows, error)
	Close() error
}

// Revision identifies a revision of the state. The zero value means that the state has no revisions.
type Revision struct {
	Number   int64
	Timeline string
}

// Limits of queries.
const (
	maxQueries       = 2
	maxWaiting       = 8
	maxStuckQueries  = 2
	maxQueryTime     = time.Minute
	defaultQueryRows = 1000
	maxQueryRows     = 1_000_000
	maxQueryBytes    = 64 << 20
)

// queryRequest asks for the rows of a statement.
type queryRequest struct {
	SQL string `json:"sql"`
	// AsOf is a revision or a time. "": the newest revision.
	AsOf string `json:"as_of"`
	// RowLimit is the maximum number of rows in the response. 0: 1,000 rows as JSON, and all rows in other formats.
	RowLimit int `json:"row_limit"`
}

// Formats of results. The header Accept chooses one of them.
const (
	formatJSON   = "application/json"
	formatNDJSON = "application/x-ndjson"
	formatCSV    = "text/csv"
	formatArrow  = arrowipc.MediaType
)

// queries answers SQL queries. Its route is not in the schema, because the caller chooses the format of the rows.
type queries struct {
	*server

	running chan struct{} // has an item for each running query
	waiting chan struct{} // has an item for each query that waits to run
	// stuck has an item for each query whose caller has left while DuckDB was preparing a statement.
	stuck chan struct{}
}

// ServeHTTP implements [http.Handler].
func (h *queries) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.answer(w, r); err != nil {
		rest.WriteProblem(w, problemOf(err))
	}
}

// queryOf reads a request.
func queryOf(w http.ResponseWriter, r *http.Request) (body queryRequest, format string, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != formatJSON {
		return body, "", refuse(unsupportedType, "unsupported Content-Type %q: send application/json", r.Header.Get("Content-Type"))
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil {
		return body, "", refuse(invalidRequest, "invalid request: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return body, "", refuse(invalidRequest, "invalid request: text follows the JSON object")
	}
	if format, err = queryFormat(r.Header.Get("Accept")); err != nil {
		return body, "", err
	}
	switch {
	case strings.TrimSpace(body.SQL) == "":
		return body, "", invalid("sql", "is empty: write a statement, such as FROM runs LIMIT 10")
	case body.RowLimit < 0 || body.RowLimit > maxQueryRows:
		return body, "", invalid("row_limit", "is %d: must be 1 to %d, or 0 for the default", body.RowLimit, maxQueryRows)
	case body.RowLimit == 0 && format == formatJSON:
		body.RowLimit = defaultQueryRows
	}
	return body, format, nil
}

// answer executes a query and writes the response. It returns an error only if it has not written anything yet.
func (h *queries) answer(w http.ResponseWriter, r *http.Request) (err error) {
	body, format, err := queryOf(w, r)
	if err != nil {
		return err
	}
	if h.OpenQuery == nil {
		return refuse(notBuilt, "this server does not answer queries: use `servo query`")
	}
	start := h.Engine.Now()
	// A client that does not read its response must not keep other queries from running.
	connection := http.NewResponseController(w)
	if err := connection.SetWriteDeadline(start.Add(maxQueryTime + time.Second)); err == nil {
		defer func() { _ = connection.SetWriteDeadline(time.Time{}) }() // later requests on this connection have no deadline
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), maxQueryTime, fmt.Errorf("the query took longer than %s", maxQueryTime))
	defer cancel()
	free, err := h.place(ctx)
	if err != nil {
		return err
	}
	defer func() { free() }()
	session, revision, err := h.OpenQuery(ctx, body.SQL, body.AsOf)
	if errors.Is(err, manifest.ErrAbsent) || errors.Is(err, manifest.ErrNone) {
		return withKind(revisionGone, err)
	}
	if err != nil {
		return withKind(invalidRequest, err)
	}
	rows, err := session.QueryAtMost(ctx, 1+cmp.Or(body.RowLimit, maxQueryRows), body.SQL) // a row more than the limit shows that there are more rows
	if ctx.Err() != nil {                                                                  // DuckDB may still be preparing a statement
		free = h.leave(session, rows, free)
		return withKind(invalidRequest, fmt.Errorf("query: %w", context.Cause(ctx)))
	}
	defer func() { _ = session.Close() }() // the response is complete, so an error does not matter
	if err != nil {
		return withKind(invalidRequest, err)
	}
	defer func() { _ = rows.Close() }() // the response is complete, so an error does not matter
	rows.MaxRowBytes = maxQueryBytes
	a := &queryAnswer{rows: rows, limit: body.RowLimit, revision: revision.Number, took: func() time.Duration { return h.Engine.Now().Sub(start) }}
	w.Header().Set("Content-Type", format)
	revision.writeTo(w.Header())
	out := bufio.NewWriterSize(w, 64<<10)
	failed := a.write(out, format)
	if failed != nil && format != formatJSON && a.bytes == int64(out.Buffered()) { // the client has received nothing yet
		return withKind(invalidRequest, fmt.Errorf("query: %w", failed))
	}
	if err := errors.Join(failed, out.Flush()); err != nil && format != formatJSON {
		panic(http.ErrAbortHandler) // the client must not mistake the rows so far for the whole result
	}
	return nil
}

// place waits until a query may run. It returns the function that frees the place of the query. The web page sends
// several short queries at once, so a query that finds no place waits instead of failing.
func (h *queries) place(ctx context.Context) (free func(), err error) {
	free = sync.OnceFunc(func() { <-h.running })
	select {
	case h.running <- struct{}{}:
		return free, nil
	default:
	}
	select {
	case h.waiting <- struct{}{}:
		defer func() { <-h.waiting }()
	default:
		return nil, refuse(tooManyQueries, "%d queries are running and %d are waiting, which is the maximum: try again when one has ended", maxQueries, maxWaiting)
	}
	select {
	case h.running <- struct{}{}:
		return free, nil
	case <-ctx.Done():
		return nil, refuse(tooManyQueries, "%d other queries ran while this one waited: %w", maxQueries, context.Cause(ctx))
	}
}

// leave closes the session of a caller that has left, and returns the function that frees the place of its query.
// DuckDB cannot be interrupted while it prepares a statement, so Close may take a long time. For the first few such
// sessions, the returned function frees the place immediately. Beyond this number, the function first waits until
// DuckDB returns, so that abandoned work cannot pile up.
func (h *queries) leave(session QuerySession, rows *query.Rows, free func()) func() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if rows != nil {
			_ = rows.Close() // no caller reads the rows
		}
		_ = session.Close() // no caller uses the session
	}()
	select {
	case h.stuck <- struct{}{}:
		go func() {
			<-closed
			<-h.stuck
		}()
		return free
	default:
		return func() {
			go func() {
				<-closed
				free()
			}()
		}
	}
}

// queryFormat returns the first format of a header Accept that the server knows.
func queryFormat(accept string) (string, error) {
	if accept == "" {
		return formatJSON, nil
	}
	for one := range strings.SplitSeq(accept, ",") {
		kind, _, _ := strings.Cut(one, ";")
		switch kind = strings.TrimSpace(kind); kind {
		case formatJSON, formatNDJSON, formatCSV, formatArrow:
			return kind, nil
		case "*/*", "application/*":
			return formatJSON, nil
		}
	}
	return "", refuse(notAcceptable, "unknown format %q: accept %s, %s, %s or %s", accept, formatJSON, formatNDJSON, formatCSV, formatArrow)
}

// queryAnswer is the result of a query.
type queryAnswer struct {
	rows     *query.Rows
	limit    int
	revision int64
	took     func() time.Duration

	count     int
	bytes     int64
	truncated bool // there are more rows than the request's limit
}

// all returns an iterator over the rows, up to the limit of the request. If the result exceeds a limit of the server,
// the iterator ends with an error.
func (a *queryAnswer) all() iter.Seq2[[]any, error] {
	return func(yield func([]any, error) bool) {
		for row, err := range a.rows.All() {
			switch {
			case err != nil:
			case a.limit > 0 && a.count == a.limit:
				a.truncated = true
				return
			case a.count == maxQueryRows:
				err = fmt.Errorf("the result has more than %d rows: add a LIMIT", maxQueryRows)
			case a.bytes+sizeOf(row) > maxQueryBytes:
				err = fmt.Errorf("the result has more than %d MiB: select fewer rows or columns", maxQueryBytes>>20)
			}
			if err == nil {
				a.count++
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

func (a *queryAnswer) write(w io.Writer, format string) error {
	out := &counted{w, &a.bytes}
	switch format {
	case formatCSV:
		return render.Write(out, a.result(), render.Options{Format: render.CSV})
	case formatNDJSON:
		return a.writeLines(out)
	case formatArrow:
		return arrowipc.Write(out, a.rows.Columns, a.all())
	}
	return a.writeColumns(out)
}

func (a *queryAnswer) result() render.Result {
	names := make([]string, len(a.rows.Columns))
	for i, c := range a.rows.Columns {
		names[i] = c.Name
	}
	return render.Result{Columns: names, Rows: a.all()}
}

// writeLines writes an object for each row.
func (a *queryAnswer) writeLines(w io.Writer) error {
	names := render.Distinct(a.result().Columns)
	fields := make(render.Fields, len(names))
	var line []byte
	for row, err := range a.all() {
		if err != nil {
			return err
		}
		for i, name := range names {
			fields[i] = render.Field{Name: name, Value: row[i]}
		}
		if line, err = render.AppendJSON(line[:0], fields); err != nil {
			return err
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// writeColumns writes one object: the columns once, and each row as a list of cells. If an error occurs while rows are
// read, the object contains it as the member error. Numbers that JavaScript cannot represent exactly are written as
// strings.
func (a *queryAnswer) writeColumns(w io.Writer) error {
	columns := make([]any, len(a.rows.Columns))
	for i, c := range a.rows.Columns {
		columns[i] = render.Fields{{Name: "name", Value: c.Name}, {Name: "type", Value: c.Type}}
	}
	line, err := render.AppendJSON([]byte(`{"columns":`), columns)
	if err != nil {
		return err
	}
	line = append(line, `,"rows":[`...)
	var failed error
	first := true
	for row, err := range a.all() {
		if err != nil {
			failed = err
			break
		}
		if !first {
			line = append(line, ',', '\n')
		}
		first = false
		for i, cell := range row {
			row[i] = exact(cell)
		}
		if line, failed = render.AppendJSON(line, row); failed != nil {
			return failed
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
		line = line[:0]
	}
	end := render.Fields{
		{Name: "revision", Value: a.revision},
		{Name: "row_count", Value: int64(a.count)},
		{Name: "truncated", Value: a.truncated},
		{Name: "changes", Value: a.rows.Changes},
		{Name: "elapsed_ms", Value: a.took().Milliseconds()},
	}
	if failed != nil {
		end = append(end, render.Field{Name: "error", Value: failed.Error()})
	}
	line = append(line, ']', ',')
	tail, err := render.AppendJSON(nil, end)
	if err != nil {
		return err
	}
	_, err = w.Write(append(append(line, tail[1:]...), '\n'))
	return errors.Join(failed, err)
}

// sizeOf returns the approximate number of bytes of a cell as text.
func sizeOf(cell any) (n int64) {
	const other = 8
	switch v := cell.(type) {
	case string:
		return int64(len(v))
	case render.Number:
		return int64(len(v))
	case []byte:
		return int64(len(v))
	case []any:
		for _, part := range v {
			n += sizeOf(part) + 1
		}
		return n
	case render.Fields:
		for _, field := range v {
			n += int64(len(field.Name)) + sizeOf(field.Value)
		}
		return n
	}
	return other
}

// exact replaces numbers that a float64 would round: it returns them as text, also within lists and structs.
func exact(cell any) any {
	const most = 1<<53 - 1
	switch v := cell.(type) {
	case int64:
		if v > most || v < -most {
			return strconv.FormatInt(v, 10)
		}
	case uint64:
		if v > most {
			return strconv.FormatUint(v, 10)
		}
	case render.Number:
		return string(v)
	case []any:
		for i, part := range v {
			v[i] = exact(part)
		}
	case render.Fields:
		for i := range v {
			v[i].Value = exact(v[i].Value)
		}
	}
	return cell
}

// counted counts the bytes that are written.
type counted struct {
	io.Writer

	n *int64
}

func (c *counted) Write(data []byte) (int, error) {
	n, err := c.Writer.Write(data)
	*c.n += int64(n)
	return n, err
}
