package api_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/api/jsonpb"
	"github.com/servo-orchestration/servo/pkg/servov1"
)

// sse is a connection to a stream of server-sent events.
type sse struct {
	t      *testing.T
	lines  *bufio.Scanner
	cancel context.CancelFunc
	header http.Header
}

// listen opens a stream. The test fails if the response is not a stream.
func (f *fixture) listen(t *testing.T, path, lastID string) *sse {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.owner.URL+path, nil)
	require.NoError(t, err)
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	client := f.owner.Client()
	t.Cleanup(client.CloseIdleConnections)
	res, err := client.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { cancel(); _ = res.Body.Close() })
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	return &sse{t: t, lines: lines, cancel: cancel, header: res.Header}
}

// event reads the next event. It returns false at the end of the stream.
func (s *sse) event() (name, id, data string, ok bool) {
	for s.lines.Scan() {
		key, value, _ := strings.Cut(s.lines.Text(), ": ")
		switch key {
		case "id":
			id = value
		case "event":
			name = value
		case "data":
			data = value
		}
		if s.lines.Text() == "" && name != "" {
			return name, id, data, true
		}
	}
	return "", "", "", false
}

// A client whose connection breaks again and again sees the last state of every row.
func TestWatchResumesWithoutLoss(t *testing.T) {
	f := serve(t, daily(asset("raw/days", "exit 0")), asset("report/bad", "exit 3", "raw/days"))
	c := f.connect(t)
	runs, tasks, changed := map[string]string{}, map[string]string{}, map[string]bool{}
	stream := f.listen(t, "/v1/watch", "")
	last, events := "", 0
	// read applies events until done returns true. It disconnects after every third event.
	read := func(done func() bool) {
		for !done() {
			name, id, data, ok := stream.event()
			require.True(t, ok)
			require.Equal(t, "changes", name, data)
			last = id
			m := &servov1.WatchResponse{}
			require.NoError(t, jsonpb.Unmarshal([]byte(data), m))
			require.Equal(t, fmt.Sprintf("%s.%d", m.GetTimeline(), m.GetRevision()), id)
			for _, run := range m.GetRuns() {
				runs[run.GetRunId()] = run.GetState().String()
			}
			for _, task := range m.GetTasks() {
				tasks[task.GetRunId()+" "+task.GetTaskKey()] = task.GetState().String()
			}
			for _, p := range m.GetPartitions() {
				changed[p.GetAssetKey()+" "+p.GetPartitionKey()] = true
			}
			if events++; events%3 == 0 {
				stream.cancel()
				stream = f.listen(t, "/v1/watch", last)
			}
		}
	}
	read(func() bool { return last != "" }) // the first event has the position at which the stream begins
	for day := range 4 {
		started, err := c.execution.TriggerRun(t.Context(), &servov1.TriggerRunRequest{
			All: true, Partitions: []string{fmt.Sprintf("date=2025-01-0%d", day+1)}, AllowIncomplete: true,
		})
		require.NoError(t, err)
		read(func() bool { return runs[started.GetRunId()] == "FAILED" })
	}
	list, err := c.execution.ListRuns(t.Context(), &servov1.ListRunsRequest{})
	require.NoError(t, err)
	require.Len(t, runs, len(list.GetRuns()))
	for _, run := range list.GetRuns() {
		require.Equal(t, run.GetState().String(), runs[run.GetRunId()])
		rows, err := c.execution.ListTasks(t.Context(), &servov1.ListTasksRequest{RunId: run.GetRunId()})
		require.NoError(t, err)
		for _, task := range rows.GetTasks() {
			require.Equal(t, task.GetState().String(), tasks[run.GetRunId()+" "+task.GetTaskKey()], task.GetTaskKey())
		}
	}
	require.Len(t, changed, 4, changed)
}

func TestWatchAsksToReadAgain(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	f.run(t)
	for _, id := range []string{"another-process.7", "another-process.1"} {
		name, _, data, ok := f.listen(t, "/v1/watch?tables=runs", id).event()
		require.True(t, ok)
		require.Equal(t, "resync", name, data)
	}
}

func TestWatchSendsWhatWasAskedFor(t *testing.T) {
	f := serve(t, asset("raw/a", "exit 0"))
	c := f.connect(t)
	first := f.run(t)
	stream, err := c.state.Watch(t.Context(), &servov1.WatchRequest{Tables: []string{"runs"}})
	require.NoError(t, err)
	defer stream.Close()
	require.True(t, stream.Receive(), stream.Err())
	second := f.run(t)
	for stream.Receive() {
		m := stream.Msg()
		require.NotEmpty(t, m.GetRuns())
		require.Empty(t, m.GetTasks())
		require.Empty(t, m.GetPartitions())
		run := m.GetRuns()[0]
		require.NotEqual(t, first, run.GetRunId(), "it has not changed")
		if run.GetRunId() == second && run.GetState() == servov1.RunState_SUCCEEDED {
			return
		}
	}
	require.NoError(t, stream.Err())
}

// If a problem occurs before the first event, the response has the HTTP status of the problem.
func TestStreamProblemsHaveStatus(t *testing.T) {
	f := serve(t, asset("raw/a", "echo out"))
	client := f.owner.Client()
	defer client.CloseIdleConnections()
	for path, want := range map[string]int{
		"/v1/watch?tables=nothing": http.StatusBadRequest, "/v1/watch?run_ids=x": http.StatusBadRequest,
		"/v1/runs/NONE/tasks/x/attempts/1/log:tail": http.StatusNotFound, "/v1/tenants/x/workspaces/y/watch": http.StatusNotFound,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.owner.URL+path, nil)
		require.NoError(t, err)
		res, err := client.Do(r)
		require.NoError(t, err)
		require.Equal(t, want, res.StatusCode, path)
		require.Equal(t, "application/problem+json", res.Header.Get("Content-Type"))
		require.NoError(t, res.Body.Close())
	}
	run := f.run(t)
	stream := f.listen(t, "/v1/runs/"+run+"/tasks/raw%2Fa/attempts/1/log:tail", "")
	name, id, data, ok := stream.event()
	require.True(t, ok)
	require.Equal(t, "chunk", name)
	require.Contains(t, data, `"complete":true`)
	_, _, _, more := stream.event()
	require.False(t, more)
	_, _, data, ok = f.listen(t, "/v1/runs/"+run+"/tasks/raw%2Fa/attempts/1/log:tail", id).event()
	require.True(t, ok)
	require.Contains(t, data, `"text":""`, "the client has the whole log already")
}
