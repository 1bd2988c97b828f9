package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/worker"
)

// registerLogs adds the route GET /v1/attempts/{attempt}/log, which streams the log of an attempt from its beginning
// until the execution ends. If the connection breaks earlier, the response is incomplete. The route responds with 404
// for attempts that this process does not execute: logs of ended attempts are in the folder.
func registerLogs(mux *http.ServeMux, w *worker.Worker, logger *slog.Logger) {
	mux.HandleFunc("GET /v1/attempts/{attempt}/log", func(rw http.ResponseWriter, r *http.Request) {
		attempt := r.PathValue("attempt")
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		rw.Header().Set("Cache-Control", "no-store")
		found, err := w.FollowLog(r.Context(), attempt, flushed{rw, http.NewResponseController(rw)})
		switch {
		case !found:
			httpx.Refuse(rw, http.StatusNotFound, fmt.Sprintf("this process does not execute attempt %s", attempt))
		case err != nil:
			logger.DebugContext(r.Context(), "a reader of a log has disconnected", slog.Any("error", err))
			panic(http.ErrAbortHandler) // abort the response, so that it does not look complete
		}
	})
}

// flushed is a response writer that sends every write immediately.
type flushed struct {
	io.Writer
	controller *http.ResponseController
}

// Write implements [io.Writer].
func (f flushed) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	return n, errors.Join(err, f.controller.Flush())
}

// ErrNotExecuting reports that the owner of a folder does not execute an attempt.
var ErrNotExecuting = errors.New("the owner of the folder does not execute the attempt")

// FollowLog copies the log of an attempt to the writer "out", from the beginning of the log until the execution ends.
// It returns [ErrNotExecuting] if the owner does not execute the attempt.
func (o Owner) FollowLog(ctx context.Context, attemptID string, out io.Writer) (err error) {
	client := o.Client()
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL+"/v1/attempts/"+url.PathEscape(attemptID)+"/log", nil)
	if err != nil {
		return fmt.Errorf("follow log of attempt %s: %w", attemptID, err)
	}
	response, err := client.Do(r)
	if err != nil {
		return fmt.Errorf("follow log of attempt %s: %w", attemptID, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return ErrNotExecuting
	default:
		text, _ := io.ReadAll(io.LimitReader(response.Body, contract.MaxResponseBytes))
		return fmt.Errorf("follow log of attempt %s: process %d answered %s: %s", attemptID, o.PID, response.Status, text)
	}
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("follow log of attempt %s: %w", attemptID, err)
	}
	return nil
}
