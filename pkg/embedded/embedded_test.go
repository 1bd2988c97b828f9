package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/embedded"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/repair"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
	"github.com/servo-orchestration/servo/pkg/worker"
)

func options(t testing.TB, dir string) embedded.Options {
	t.Helper()
	return embedded.Options{
		Dir: dir, Domain: ids.Domain{Tenant: "acme", Workspace: "prod"}, Clock: clock.System{},
		Logger:  slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Environ: os.Environ(), Concurrency: 4, Actor: "user:test",
	}
}

func start(t testing.TB, dir string) *embedded.Stack {
	t.Helper()
	s, err := embedded.Start(t.Context(), options(t, dir))
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// command returns an asset that a shell command computes.
func command(key, script string, deps ...string) plan.Asset {
	asset := func(key string) ids.AssetKey {
		k, err := ids.ParseAssetKey(key)
		if err != nil {
			panic(err)
		}
		return k
	}
	a := plan.Asset{Key: asset(key), Work: plan.Work{Command: []string{"sh", "-c", script}}}
	for _, dep := range deps {
		a.Deps = append(a.Deps, asset(dep))
	}
	return a
}

func run(t testing.TB, e *engine.Engine, runKey string, assets ...plan.Asset) engine.RunHandle {
	t.Helper()
	handle, err := e.Run(t.Context(), engine.RunRequest{
		Plan: plan.Request{Root: t.TempDir(), Assets: assets, All: true}, RunKey: runKey, Trigger: event.Trigger{Type: "manual"},
	})
	require.NoError(t, err)
	return handle
}

// await waits until the function "ok" returns true for a run, and returns the snapshot for which it does.
func await(t testing.TB, e *engine.Engine, runID string, ok func(*snapshot.Snapshot, *state.Run) bool) *snapshot.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	snap, err := e.Current(ctx)
	for err == nil {
		if r := snap.State.Runs.Get(runID); r != nil && ok(snap, r) {
			return snap
		}
		snap, err = e.Await(ctx, snap.Revision)
	}
	require.NoError(t, err)
	return nil
}

func ended(_ *snapshot.Snapshot, r *state.Run) bool { return r.State.Terminal() }

func states(snap *snapshot.Snapshot, runID string) []string {
	var states []string
	snap.State.TasksOf(runID, func(t *state.Task) bool {
		states = append(states, fmt.Sprintf("%s=%s", t.TaskKey, t.State))
		return true
	})
	return states
}

func verify(t testing.TB, dir string) {
	t.Helper()
	p, err := embedded.Open(options(t, dir))
	require.NoError(t, err)
	defer p.Close()
	report, err := repair.Verify(t.Context(), repair.Config{
		Handle: p.Handle,
	})
	require.NoError(t, err)
	require.Empty(t, report.Problems)
}

func TestRunExecutesPipeline(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	handle := run(t, s.Engine, "",
		command("raw/a", `echo hello > "$SERVO_OUTPUT/a.txt"`),
		command("raw/b", "true", "raw/a"), command("raw/c", "true", "raw/a"), command("raw/d", "true", "raw/b", "raw/c"))
	snap := await(t, s.Engine, handle.RunID, ended)
	require.Equal(t, []string{"raw/a=SUCCEEDED", "raw/b=SUCCEEDED", "raw/c=SUCCEEDED", "raw/d=SUCCEEDED"}, states(snap, handle.RunID))
	require.Equal(t, state.RunSucceeded, snap.State.Runs.Get(handle.RunID).State)
	require.NoError(t, s.Close())
	verify(t, dir)
}

func TestRunSkipsDownstreamOfFailuresAndRetries(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	flaky := command("raw/flaky", `test -e "$HOME_DIR/once" || { touch "$HOME_DIR/once"; exit 3; }`)
	flaky.Work.Env = map[string]string{"HOME_DIR": t.TempDir()}
	flaky.Retries = plan.Retries{MaxAttempts: 3, InitialDelayMS: 50, MaxDelayMS: 100, MultiplierPermille: 2000, UserErrors: true}
	handle := run(t, s.Engine, "", flaky, command("raw/bad", "exit 7"), command("raw/after", "true", "raw/bad"), command("raw/free", "true", "raw/flaky"))
	snap := await(t, s.Engine, handle.RunID, ended)
	require.Equal(t, []string{
		"raw/after=SKIPPED", "raw/bad=FAILED", "raw/flaky=SUCCEEDED", "raw/free=SUCCEEDED",
	}, states(snap, handle.RunID))
	require.Equal(t, int32(2), snap.State.Tasks.Get(state.Key2{A: handle.RunID, B: "raw/flaky"}).Attempt)
	require.NoError(t, s.Close())
	verify(t, dir)
}

func TestCancelKillsRunningTasks(t *testing.T) {
	s := start(t, t.TempDir())
	handle := run(t, s.Engine, "", command("raw/long", "sleep 600"), command("raw/after", "true", "raw/long"))
	await(t, s.Engine, handle.RunID, func(_ *snapshot.Snapshot, r *state.Run) bool { return r.TasksRunning == 1 })
	require.NoError(t, s.Cancel(t.Context(), handle.RunID, "no longer needed", false))
	snap := await(t, s.Engine, handle.RunID, ended)
	require.Equal(t, state.RunCancelled, snap.State.Runs.Get(handle.RunID).State)
	require.Equal(t, []string{"raw/after=CANCELLED", "raw/long=CANCELLED"}, states(snap, handle.RunID))
}

func TestRestartResumesRunningTasks(t *testing.T) {
	dir, marks := t.TempDir(), t.TempDir()
	s := start(t, dir)
	done := command("raw/done", `echo x >> "$MARKS/done"`)
	long := command("raw/long", `echo x >> "$MARKS/long"; test "$(wc -l < "$MARKS/long")" -gt 1 || sleep 600`, "raw/done")
	done.Work.Env, long.Work.Env = map[string]string{"MARKS": marks}, map[string]string{"MARKS": marks}
	handle := run(t, s.Engine, "nightly", done, long)
	await(t, s.Engine, handle.RunID, func(_ *snapshot.Snapshot, r *state.Run) bool { return r.TasksRunning == 1 })
	require.NoError(t, s.Close())

	s = start(t, dir)
	snap := await(t, s.Engine, handle.RunID, ended)
	require.Equal(t, []string{"raw/done=SUCCEEDED", "raw/long=SUCCEEDED"}, states(snap, handle.RunID))
	data, err := os.ReadFile(marks + "/done")
	require.NoError(t, err)
	require.Equal(t, "x\n", string(data), "a finished task is not repeated")
	require.NoError(t, s.Close())
	verify(t, dir)
}

// ahead is a system clock that is ahead by a duration.
type ahead struct {
	clock.System
	by time.Duration
}

// Now implements [clock.Clock].
func (a ahead) Now() time.Time { return a.System.Now().Add(a.by) }

func TestRestartAfterLongOutageKeepsAttempts(t *testing.T) {
	dir, marks := t.TempDir(), t.TempDir()
	s := start(t, dir)
	long := command("raw/long", `echo x >> "$MARKS/long"; test "$(wc -l < "$MARKS/long")" -gt 1 || sleep 600`)
	long.Work.Env = map[string]string{"MARKS": marks}
	long.HeartbeatTimeoutSec = 60
	handle := run(t, s.Engine, "nightly", long)
	await(t, s.Engine, handle.RunID, func(_ *snapshot.Snapshot, r *state.Run) bool { return r.TasksRunning == 1 })
	require.NoError(t, s.Close())

	opts := options(t, dir)
	opts.Clock = ahead{by: 24 * time.Hour}
	s, err := embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	snap := await(t, s.Engine, handle.RunID, ended)
	require.Equal(t, []string{"raw/long=SUCCEEDED"}, states(snap, handle.RunID), "no process received its heartbeats during the outage")
	require.EqualValues(t, 1, snap.State.Tasks.Get(state.Key2{A: handle.RunID, B: "raw/long"}).Attempt)
	require.NoError(t, s.Close())
	verify(t, dir)
}

// The liveness timer of the earlier process is due, but not so late that the fold would postpone it. So only the
// heartbeats that the new process appends keep the attempt alive.
func TestRestartKeepsAttemptsWhoseTimerIsDue(t *testing.T) {
	dir, marks := t.TempDir(), t.TempDir()
	s := start(t, dir)
	long := command("raw/long", `echo x >> "$MARKS/long"; until test -e "$MARKS/go"; do sleep 0.1; done`)
	long.Work.Env = map[string]string{"MARKS": marks}
	long.HeartbeatTimeoutSec = 60
	handle := run(t, s.Engine, "nightly", long)
	snap := await(t, s.Engine, handle.RunID, func(_ *snapshot.Snapshot, r *state.Run) bool { return r.TasksRunning == 1 })
	timer := snap.State.Liveness()
	require.NotNil(t, timer)
	require.NoError(t, s.Close())

	opts := options(t, dir)
	opts.Clock = ahead{by: timer.FireAt.Time().Sub(clock.System{}.Now()) + fold.LateCall/2}
	s, err := embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	await(t, s.Engine, handle.RunID, func(snap *snapshot.Snapshot, _ *state.Run) bool {
		next := snap.State.Liveness()
		return next == nil || next.Generation > timer.Generation
	})
	require.NoError(t, os.WriteFile(filepath.Join(marks, "go"), nil, 0o600))
	snap = await(t, s.Engine, handle.RunID, ended)
	require.Equal(t, []string{"raw/long=SUCCEEDED"}, states(snap, handle.RunID))
	require.EqualValues(t, 1, snap.State.Tasks.Get(state.Key2{A: handle.RunID, B: "raw/long"}).Attempt)
	require.NoError(t, s.Close())
	verify(t, dir)
}

func TestSecondProcessAttachesToOwner(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir)
	_, err := embedded.Start(t.Context(), options(t, dir))
	locked := new(embedded.LockedError)
	require.True(t, errors.As(err, &locked))
	require.Equal(t, first.URL, locked.Owner.URL)
	require.Equal(t, os.Getpid(), locked.Owner.PID)

	second, err := embedded.Attach(t.Context(), options(t, dir), locked.Owner)
	require.NoError(t, err)
	handle := run(t, second, "", command("raw/a", "true"))
	snap := await(t, second, handle.RunID, ended)
	require.Equal(t, state.RunSucceeded, snap.State.Runs.Get(handle.RunID).State)
}

func TestRunKeyAttachesOrConflicts(t *testing.T) {
	s := start(t, t.TempDir())
	one := run(t, s.Engine, "nightly", command("raw/a", "true"))
	again := run(t, s.Engine, "nightly", command("raw/a", "true"))
	require.True(t, again.Attached)
	require.Equal(t, one.RunID, again.RunID)
	_, err := s.Run(t.Context(), engine.RunRequest{
		Plan: plan.Request{Root: t.TempDir(), Assets: []plan.Asset{command("raw/a", "false")}, All: true}, RunKey: "nightly",
		Trigger: event.Trigger{Type: "manual"},
	})
	require.ErrorIs(t, err, engine.ErrConflict)
}

func TestStackRejectsWebPages(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	owner, err := embedded.ReadOwner(dir)
	require.NoError(t, err)
	client := owner.Client()
	defer client.CloseIdleConnections()
	send := func(change func(*http.Request)) int {
		body := strings.NewReader(`{"tenant":"acme","workspace":"prod","barrier":true}`)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/compact", body)
		require.NoError(t, err)
		change(r)
		answer, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	require.Equal(t, http.StatusOK, send(func(*http.Request) {}), "a program on this machine")
	require.Equal(t, http.StatusForbidden, send(func(r *http.Request) { r.Host = "evil.example" }), "a page that rebinds its own name (DNS rebinding)")
	require.Equal(t, http.StatusForbidden, send(func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }))
	require.Equal(t, http.StatusForbidden, send(func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }))
}

// A worker in another process repeats a report that gets no response.
func TestCloseAnswersAcceptedRequests(t *testing.T) {
	entered := make(chan string, 1)
	dir := t.TempDir()
	opts := options(t, dir)
	opts.WorkerURL = "http://127.0.0.1:1"
	opts.Routes = func(mux *http.ServeMux, _ *engine.Engine, _ *worker.Worker) {
		mux.HandleFunc("GET /report", func(w http.ResponseWriter, r *http.Request) {
			entered <- r.Host
			for { // wait until the stack accepts no more connections
				conn, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
				if err != nil {
					break
				}
				_ = conn.Close()
			}
			if r.Context().Err() == nil {
				_, _ = io.WriteString(w, "taken")
			}
		})
	}
	s, err := embedded.Start(t.Context(), opts)
	require.NoError(t, err)
	owner, err := embedded.ReadOwner(dir)
	require.NoError(t, err)
	client := owner.Client()
	defer client.CloseIdleConnections()
	answer := make(chan string, 1)
	go func() {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/report", http.NoBody)
		response, err := client.Do(request)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		answer <- string(body)
	}()
	<-entered
	require.NoError(t, s.Close())
	require.Equal(t, "taken", <-answer)
}
