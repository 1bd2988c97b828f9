package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// got is the response to a GET.
type got struct {
	status int
	header http.Header
	body   string
}

// get sends a GET to the routes of the API.
func (f *fixture) get(t *testing.T, path, ifNoneMatch string) got {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
	if ifNoneMatch != "" {
		r.Header.Set("If-None-Match", ifNoneMatch)
	}
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, r)
	return got{w.Code, w.Header(), w.Body.String()}
}

func TestGETIsConditional(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	run := f.run(t)
	first := f.get(t, "/v1/runs/"+run, "")
	require.Equal(t, http.StatusOK, first.status)
	tag := first.header.Get("ETag")
	require.Regexp(t, `^"[A-Za-z0-9_-]{16}"$`, tag)
	require.Equal(t, "private, no-cache", first.header.Get("Cache-Control"))
	for _, header := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
		same := f.get(t, "/v1/runs/"+run, header)
		require.Equal(t, http.StatusNotModified, same.status, header)
		require.Empty(t, same.body)
		require.Equal(t, tag, same.header.Get("ETag"))
		require.NotEmpty(t, same.header.Get("Servo-Revision"))
	}
	require.Equal(t, http.StatusOK, f.get(t, "/v1/runs/"+run, `"other"`).status)
	list := f.get(t, "/v1/runs", "").header.Get("ETag")
	f.run(t)
	require.Equal(t, http.StatusNotModified, f.get(t, "/v1/runs/"+run, tag).status, "another run changes nothing in this one")
	require.Equal(t, http.StatusOK, f.get(t, "/v1/runs", list).status)
	require.Equal(t, http.StatusNotFound, f.get(t, "/v1/runs/none", "*").status)
}

func TestReadsShowTheStateAsOf(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	c := f.connect(t)
	first := f.run(t)
	snap, err := f.stack.Current(t.Context())
	require.NoError(t, err)
	then, asOf := clock.System{}.Now(), fmt.Sprint(snap.Revision)
	second := f.run(t)

	runs, err := c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{AsOf: asOf})
	require.NoError(t, err)
	require.Len(t, runs.GetRuns(), 1)
	require.Equal(t, first, runs.GetRuns()[0].GetRunId())
	require.Equal(t, snap.Revision, runs.GetRevision())
	_, err = c.execution.GetRun(t.Context(), &servov1.GetRunRequest{RunId: second, AsOf: asOf})
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = c.execution.GetRun(t.Context(), &servov1.GetRunRequest{RunId: second})
	require.NoError(t, err)
	byTime, err := c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{AsOf: then.UTC().Format(time.RFC3339Nano)})
	require.NoError(t, err)
	require.Len(t, byTime.GetRuns(), 1)
	asset, err := c.assets.GetAsset(t.Context(), &servov1.GetAssetRequest{Namespace: "raw", Name: "a", AsOf: asOf})
	require.NoError(t, err)
	require.Equal(t, first, asset.GetLastRunId())

	// All pages of a listing show the revision that as_of names.
	page := f.get(t, "/v1/runs?as_of="+asOf+"&page_size=1", "")
	require.Equal(t, asOf, page.header.Get("Servo-Revision"))
	for value, status := range map[string]int{
		"yesterday": http.StatusBadRequest, "2025-13-01": http.StatusBadRequest, "0": http.StatusBadRequest, "999999": http.StatusGone, "2001-01-01T00:00:00Z": http.StatusGone,
	} {
		answer := f.get(t, "/v1/runs?as_of="+value, "")
		require.Equal(t, status, answer.status, "%s: %s", value, answer.body)
	}
	require.Contains(t, f.get(t, "/v1/whoami?as_of=1", "").body, "as_of")
}

// A revision that was published while a task ran shows the task as running, even after the task has ended.
func TestTaskIsExplainedAsOf(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	f := serve(t, asset("raw/a", "echo one; until [ -e "+gate+" ]; do sleep 0.02; done; echo two"))
	c := f.connect(t)
	started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{All: true})
	require.NoError(t, err)
	require.Equal(t, "RUNNING", f.awaitAttempt(t, started.GetRunId(), "raw/a"))
	snap, err := f.stack.Current(t.Context())
	require.NoError(t, err)
	asOf := fmt.Sprint(snap.Revision)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	f.await(t, started.GetRunId())
	f.run(t) // from now on, "latest" means another run

	request := &servov1.ExplainTaskRequest{RunId: "latest", TaskKey: "raw/a", AsOf: asOf}
	then, err := c.execution.ExplainTask(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, started.GetRunId(), then.GetRunId())
	require.Equal(t, servov1.TaskState_RUNNING, then.GetState())
	request.RunId, request.AsOf = started.GetRunId(), ""
	now, err := c.execution.ExplainTask(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, servov1.TaskState_SUCCEEDED, now.GetState())
	require.Greater(t, len(now.GetEvents()), len(then.GetEvents()))
	for _, e := range then.GetEvents() {
		require.NotEqual(t, "TaskFinished", e.GetType())
	}
	log, err := c.logs.ReadLog(t.Context(), &servov1.ReadLogRequest{RunId: "latest", TaskKey: "raw/a", AsOf: asOf})
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", log.GetText(), "the text is the newest")
	require.True(t, log.GetComplete())
	for _, path := range []string{"/v1/alerts", "/v1/deadlines", "/v1/runs/latest/tasks/raw%2Fa:explain"} {
		answer := f.get(t, path+"?as_of="+asOf, "")
		require.Equal(t, http.StatusOK, answer.status, "%s: %s", path, answer.body)
		require.Equal(t, asOf, answer.header.Get("Servo-Revision"), path)
		require.Equal(t, http.StatusGone, f.get(t, path+"?as_of=2001-01-01T00:00:00Z", "").status, path)
	}
}

func TestAnswersNameTheirTimeline(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	f.run(t)
	stream, err := f.connect(t).state.Watch(t.Context(), &servov1.WatchRequest{})
	require.NoError(t, err)
	defer stream.Close()
	require.True(t, stream.Receive(), stream.Err())
	require.NotEmpty(t, stream.Msg().GetTimeline())
	for _, path := range []string{"/v1/runs", "/v1/runs/latest", "/v1/deadlines", "/v1/runs?as_of=" + fmt.Sprint(stream.Msg().GetRevision())} {
		require.Equal(t, stream.Msg().GetTimeline(), f.get(t, path, "").header.Get("Servo-Timeline"), path)
	}
}

func TestReadsWaitForRevision(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	f.run(t)
	snap, err := f.stack.Current(t.Context())
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, f.get(t, fmt.Sprintf("/v1/runs?min_revision=%d", snap.Revision), "").status)
	answer := f.get(t, "/v1/runs?as_of=1&min_revision=2", "")
	require.Equal(t, http.StatusBadRequest, answer.status)
	answer = f.get(t, "/v1/runs?min_revision=999999", "")
	require.Equal(t, http.StatusBadRequest, answer.status)
	answer = f.get(t, fmt.Sprintf("/v1/runs?min_revision=%d", snap.Revision+50), "")
	require.Equal(t, http.StatusServiceUnavailable, answer.status)
	require.Equal(t, "1", answer.header.Get("Retry-After"))
	require.True(t, strings.Contains(answer.body, "has not been published within 5s"))
}

func ifMatch(ctx context.Context, tag string) context.Context {
	return withHeader(ctx, "If-Match", tag)
}

func TestCommandsAreConditional(t *testing.T) {
	f := serve(t, daily(asset("raw/days", "sleep 60")))
	c := f.connect(t)
	create := &servov1.CreateBackfillRequest{Assets: []string{"raw/days"}, Partitions: []string{"date=2025-01-01..2025-01-03"}, Chunk: 1}
	made, err := c.backfills.CreateBackfill(withKey(t.Context(), "k"), create)
	require.NoError(t, err)
	again, err := c.backfills.CreateBackfill(withKey(t.Context(), "k"), create)
	require.NoError(t, err)
	require.Equal(t, made.GetBackfillId(), again.GetBackfillId())
	create.Chunk = 2
	_, err = c.backfills.CreateBackfill(withKey(t.Context(), "k"), create)
	require.EqualValues(t, http.StatusConflict, problemIn(t, err).GetStatus())

	id := made.GetBackfillId()
	tag := f.get(t, "/v1/backfills/"+id, "").header.Get("ETag")
	require.Regexp(t, `^"[0-9a-f]{16}\.[A-Za-z0-9_-]{16}"$`, tag)
	_, err = c.backfills.PauseBackfill(ifMatch(t.Context(), tag), &servov1.PauseBackfillRequest{BackfillId: id})
	require.NoError(t, err)
	_, err = c.backfills.ResumeBackfill(ifMatch(t.Context(), tag), &servov1.ResumeBackfillRequest{BackfillId: id})
	require.EqualValues(t, http.StatusPreconditionFailed, problemIn(t, err).GetStatus())
	current := f.get(t, "/v1/backfills/"+id, "").header.Get("Servo-Edit-Tag")
	require.ErrorContains(t, err, current)
	_, err = c.backfills.ResumeBackfill(ifMatch(t.Context(), `"`+current+`"`), &servov1.ResumeBackfillRequest{BackfillId: id})
	require.NoError(t, err)
	_, err = c.backfills.CancelBackfill(ifMatch(t.Context(), "*"), &servov1.CancelBackfillRequest{BackfillId: id})
	require.NoError(t, err)
	_, err = c.backfills.CancelBackfill(withKey(t.Context(), "late"), &servov1.CancelBackfillRequest{BackfillId: id})
	require.EqualValues(t, http.StatusConflict, problemIn(t, err).GetStatus(), "it has no effect")

	for _, invalid := range []string{"x", `W/"0123456789abcdef"`, `"a", "b"`, ""} {
		_, err = c.backfills.RetryBackfill(ifMatch(t.Context(), invalid), &servov1.RetryBackfillRequest{BackfillId: id})
		require.ErrorContains(t, err, "invalid header If-Match", invalid)
	}
	_, err = c.execution.TriggerRun(ifMatch(t.Context(), tag), &servov1.TriggerRunRequest{All: true})
	require.ErrorContains(t, err, "TriggerRun does not support the header If-Match")
}
