package worker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
)

// pipe creates a named pipe. A command that reads from the pipe waits until release is called.
func (w *fixture) pipe(name string) (release func()) {
	w.t.Helper()
	path := filepath.Join(w.root, name)
	require.NoError(w.t, syscall.Mkfifo(path, 0o600))
	return func() { require.NoError(w.t, os.WriteFile(path, nil, 0o600)) }
}

var attemptID = ids.AttemptID(domain, runID, "a/b", 1)

func TestFollowLogWritesWhileTheCommandRuns(t *testing.T) {
	w, _ := withSecrets(t, map[string]plan.Work{"a/b": shellWithSecrets(
		`echo "begun $TOKEN"; printf %s hunter2; cat go; echo -canary; echo end; echo x > $SERVO_OUTPUT/x`,
		map[string]string{"TOKEN": "file:token"})}, task("a/b", "", nil))
	release := w.pipe("go")
	status := make(chan int, 1)
	go func() { status <- w.deliver("a/b") }()

	reader, writer := io.Pipe()
	followed := make(chan error, 1)
	go func() {
		for { // the delivery may not have arrived yet
			found, err := w.worker.FollowLog(t.Context(), attemptID, writer)
			if found || err != nil {
				followed <- err
				_ = writer.Close()
				return
			}
		}
	}()
	first := make([]byte, len("begun ***\n"))
	_, err := io.ReadFull(reader, first)
	require.NoError(t, err)
	require.Equal(t, "begun ***\n", string(first))
	require.Zero(t, w.control.calls("finished"), "the command still runs")
	release()
	rest, err := io.ReadAll(reader)
	require.NoError(t, err)
	require.NoError(t, <-followed)
	require.Equal(t, http.StatusOK, <-status)
	require.Equal(t, w.log("a/b"), string(first)+string(rest), "the same text is stored")
	require.Equal(t, "***\nend\n", string(rest), "the parts of a secret arrive separately")

	found, err := w.worker.FollowLog(t.Context(), attemptID, io.Discard)
	require.NoError(t, err)
	require.False(t, found, "the attempt has ended")
}

// errClosed is the error of a write after the reader has closed the connection.
var errClosed = errors.New("closed")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errClosed }

func TestFollowLogEndsWithItsReader(t *testing.T) {
	w := newFixture(t, nil, map[string]plan.Work{"a/b": shell(`echo begun; cat go; echo x > $SERVO_OUTPUT/x`)}, task("a/b", "", nil))
	release := w.pipe("go")
	status := make(chan int, 1)
	go func() { status <- w.deliver("a/b") }()
	for found := false; !found; {
		var err error
		if found, err = w.worker.FollowLog(t.Context(), attemptID, broken{}); found {
			require.ErrorIs(t, err, errClosed)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var text bytes.Buffer
	_, err := w.worker.FollowLog(ctx, attemptID, writerFunc(func(p []byte) (int, error) {
		cancel() // end FollowLog, which would otherwise wait for more text
		return text.Write(p)
	}))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "begun\n", text.String())
	release()
	require.Equal(t, http.StatusOK, <-status)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
