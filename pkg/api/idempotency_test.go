package api_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/servov1"
)

func withKey(ctx context.Context, key string) context.Context {
	return withHeader(ctx, "Idempotency-Key", key)
}

func withHeader(ctx context.Context, name, value string) context.Context {
	ctx, call := connect.NewClientContext(ctx)
	call.RequestHeader().Set(name, value)
	return ctx
}

// A repeated request attaches to the run of the first request, even if planning it again would have another result by
// now, or would fail.
func TestIdempotencyKeyAttaches(t *testing.T) {
	f := serve(t, daily(asset("raw/days", "exit 0")))
	c := f.connect(t)
	request := &servov1.TriggerRunRequest{Assets: []string{"raw/days"}, Partitions: []string{"date=2025-01-01"}}
	first, err := c.execution.TriggerRun(withKey(t.Context(), "k"), request)
	require.NoError(t, err)
	require.False(t, first.GetAttached())
	f.await(t, first.GetRunId())

	f.project.Assets[0].Work.Command = []string{"sh", "-c", "echo other code"}
	again, err := c.execution.TriggerRun(withKey(t.Context(), "k"), request)
	require.NoError(t, err)
	require.True(t, again.GetAttached())
	require.Equal(t, first.GetRunId(), again.GetRunId())

	request.Partitions[0] = "date=2025-01-02"
	_, err = c.execution.TriggerRun(withKey(t.Context(), "k"), request)
	require.Equal(t, connect.CodeAlreadyExists, connect.CodeOf(err), err)
	other, err := c.execution.TriggerRun(withKey(t.Context(), "k2"), request)
	require.NoError(t, err)
	require.NotEqual(t, first.GetRunId(), other.GetRunId())
}

func TestIdempotencyKeyAttachesWithoutAssetsOfRun(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"), asset("raw/b", "exit 0"))
	c := f.connect(t)
	request := &servov1.TriggerRunRequest{Assets: []string{"raw/a"}}
	first, err := c.execution.TriggerRun(withKey(t.Context(), "k"), request)
	require.NoError(t, err)
	f.await(t, first.GetRunId())
	attaches := func() {
		again, err := c.execution.TriggerRun(withKey(t.Context(), "k"), request)
		require.NoError(t, err)
		require.True(t, again.GetAttached())
		require.Equal(t, first.GetRunId(), again.GetRunId())
	}
	f.project.Assets = f.project.Assets[1:] // raw/a was renamed or deleted
	attaches()
	f.project = nil // the project has problems
	attaches()
}

// The plan of a request for stale partitions shrinks as soon as a task of its run has ended.
func TestRunKeyOfStalePartitionsAttaches(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	f := serve(t, asset("raw/a", "exit 0"), asset("raw/b", "until [ -e "+gate+" ]; do sleep 0.02; done", "raw/a"))
	c := f.connect(t)
	request := &servov1.TriggerRunRequest{All: true, Only: "stale", RunKey: "nightly"}
	first, err := c.execution.TriggerRun(t.Context(), request)
	require.NoError(t, err)
	f.awaitAttempt(t, first.GetRunId(), "raw/b") // raw/a has ended, so it is fresh now
	again, err := c.execution.TriggerRun(t.Context(), request)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.NoError(t, err)
	require.Equal(t, first.GetRunId(), again.GetRunId())
	f.await(t, first.GetRunId())
	again, err = c.execution.TriggerRun(t.Context(), request)
	require.NoError(t, err, "nothing is stale, but the run exists")
	require.Equal(t, first.GetRunId(), again.GetRunId())

	request.Only = "missing"
	_, err = c.execution.TriggerRun(t.Context(), request)
	require.Equal(t, connect.CodeAlreadyExists, connect.CodeOf(err), err)
}

func TestIdempotencyKeyIsNeverIgnored(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	c := f.connect(t)
	run := f.run(t)
	_, err := c.execution.GetRun(withKey(t.Context(), "k"), &servov1.GetRunRequest{RunId: run})
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	require.ErrorContains(t, err, "does not support the header Idempotency-Key")
	for _, key := range []string{"", "a b", "ä", strings.Repeat("k", 129)} {
		_, err = c.execution.TriggerRun(withKey(t.Context(), key), &servov1.TriggerRunRequest{All: true})
		require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%q: %v", key, err)
	}
	_, err = c.execution.RetryRun(t.Context(), &servov1.RetryRunRequest{RunId: run})
	require.EqualValues(t, http.StatusConflict, problemIn(t, err).GetStatus(), "nothing to retry")
}

// A repeated retry attaches to the run that the first retry started, even if this run has ended.
func TestRetryWithKeyStartsOneRun(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 1"))
	c := f.connect(t)
	request := &servov1.RetryRunRequest{RunId: f.run(t)}
	first, err := c.execution.RetryRun(withKey(t.Context(), "k"), request)
	require.NoError(t, err)
	require.False(t, first.GetAttached())
	f.await(t, first.GetRunId())
	again, err := c.execution.RetryRun(withKey(t.Context(), "k"), request)
	require.NoError(t, err)
	require.True(t, again.GetAttached())
	require.Equal(t, first.GetRunId(), again.GetRunId())
}

// A client can read the log of a running attempt in parts, or follow it to its end.
func TestLogIsReadAndFollowed(t *testing.T) {
	dir := t.TempDir()
	gate := filepath.Join(dir, "gate")
	f := serve(t, asset("raw/a", "echo one; until [ -e "+gate+" ]; do sleep 0.02; done; echo zwö"))
	c := f.connect(t)
	started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true})
	require.NoError(t, err)
	running := f.awaitAttempt(t, started.GetRunId(), "raw/a")
	require.Equal(t, "RUNNING", running)

	stream, err := c.logs.TailLog(t.Context(), &servov1.TailLogRequest{RunId: started.GetRunId(), TaskKey: "raw/a"})
	require.NoError(t, err)
	defer stream.Close()
	require.True(t, stream.Receive(), stream.Err())
	text, next := stream.Msg().GetText(), stream.Msg().GetNextOffset()
	require.False(t, stream.Msg().GetComplete())
	part, err := c.logs.ReadLog(t.Context(), &servov1.ReadLogRequest{RunId: started.GetRunId(), TaskKey: "raw/a"})
	require.NoError(t, err)
	require.False(t, part.GetComplete())
	require.Contains(t, part.GetText(), "one\n")

	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	for !part.GetComplete() { // the log can be read at any time, even between the end of the execution and its report
		part, err = c.logs.ReadLog(t.Context(), &servov1.ReadLogRequest{RunId: started.GetRunId(), TaskKey: "raw/a"})
		require.NoError(t, err)
	}
	for stream.Receive() {
		require.Equal(t, next, stream.Msg().GetOffset())
		text += stream.Msg().GetText()
		next = stream.Msg().GetNextOffset()
	}
	require.NoError(t, stream.Err())
	f.await(t, started.GetRunId())
	whole, err := c.logs.ReadLog(t.Context(), &servov1.ReadLogRequest{RunId: started.GetRunId(), TaskKey: "raw/a"})
	require.NoError(t, err)
	require.True(t, whole.GetComplete())
	require.Equal(t, whole.GetText(), text)
	require.Equal(t, whole.GetNextOffset(), next)

	// The ö has two bytes: a part never ends between them.
	var joined string
	for offset := int64(0); ; {
		part, err := c.logs.ReadLog(t.Context(), &servov1.ReadLogRequest{RunId: started.GetRunId(), TaskKey: "raw/a", Offset: offset, Limit: 4})
		require.NoError(t, err)
		joined += part.GetText()
		if offset = part.GetNextOffset(); part.GetComplete() {
			break
		}
	}
	require.Equal(t, text, joined)
}
