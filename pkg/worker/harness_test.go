package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/fileblob"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/worker"
)

const runID = "01KAJ2T0000000000000000000"

var (
	domain = ids.Domain{Tenant: "acme", Workspace: "main"}
	keys   = contract.Keyring{Current: "k", Secrets: map[string][]byte{"k": bytes.Repeat([]byte("s"), contract.MinSecret)}}
	epoch  = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
)

// manualClock is a clock for tests. A sleep whose duration is in the list manual ends when the test calls the method
// fire. Any other sleep is a backoff: it ends immediately, and the clock advances by its duration.
type manualClock struct {
	mu       sync.Mutex
	now      time.Time
	arrived  chan struct{} // closed and replaced when a goroutine begins to sleep
	sleepers []*sleeper
}

type sleeper struct {
	d    time.Duration
	wake chan struct{}
}

// manual lists the durations of sleeps that end only when the test calls fire: the delay of a late start, the grace
// period of a kill, the time between heartbeats, a task's timeout, the time that a delivery waits, and the time
// between parts of a log.
var manual = []time.Duration{lateStart, 5 * time.Second, 10 * time.Second, taskTimeout, longTimeout, 25 * time.Minute, worker.LogPartInterval}

const (
	lateStart   = 100 * time.Millisecond
	taskTimeout = 77 * time.Second
	longTimeout = 25*time.Minute + time.Second // longer than the time for which a delivery waits
)

func newClock() *manualClock { return &manualClock{now: epoch, arrived: make(chan struct{})} }

func (c *manualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	if !slices.Contains(manual, d) {
		c.now = c.now.Add(d)
		c.mu.Unlock()
		return ctx.Err()
	}
	s := &sleeper{d, make(chan struct{})}
	c.sleepers = append(c.sleepers, s)
	close(c.arrived)
	c.arrived = make(chan struct{})
	c.mu.Unlock()
	select {
	case <-s.wake:
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sleepers = slices.DeleteFunc(c.sleepers, func(other *sleeper) bool { return other == s })
		return ctx.Err()
	}
}

// fire waits until a goroutine sleeps for d, and wakes it.
func (c *manualClock) fire(t *testing.T, d time.Duration) {
	t.Helper()
	c.awaitSleeper(t, d, func(i int) {
		close(c.sleepers[i].wake)
		c.sleepers = slices.Delete(c.sleepers, i, i+1)
		c.now = c.now.Add(d)
	})
}

// awaitSleeper waits until a goroutine sleeps for d. It then passes the index of the sleeper to the callback.
func (c *manualClock) awaitSleeper(t *testing.T, d time.Duration, then func(sleeper int)) {
	t.Helper()
	for {
		c.mu.Lock()
		if i := slices.IndexFunc(c.sleepers, func(s *sleeper) bool { return s.d == d }); i >= 0 {
			then(i)
			c.mu.Unlock()
			return
		}
		arrived := c.arrived
		c.mu.Unlock()
		select {
		case <-arrived:
		case <-t.Context().Done():
			t.Fatalf("no goroutine sleeps for %v", d)
		}
	}
}

// control is a fake control plane, which verifies and records callbacks.
type control struct {
	server *httptest.Server
	clock  *manualClock
	// answer returns the response to the n-th callback of a verb; status 0 means 200.
	answer       func(verb string, n int) (status int, body any)
	failedStarts int // the number of "started" callbacks that the field answer rejects

	mu    sync.Mutex
	count map[string]int
	ends  []*contract.Finished
	bad   []error
	ended chan struct{}
}

func newControl(t *testing.T, clock *manualClock) *control {
	t.Helper()
	c := &control{clock: clock, count: map[string]int{}, ended: make(chan struct{}, 1000)}
	mux := http.NewServeMux()
	mux.HandleFunc(contract.CallbackPattern, c.callback)
	c.server = httptest.NewServer(mux)
	t.Cleanup(c.server.Close)
	return c
}

func (c *control) callback(rw http.ResponseWriter, r *http.Request) {
	verb := r.PathValue("verb")
	data, err := io.ReadAll(r.Body)
	if err == nil {
		_, err = contract.VerifyCallback(contract.Callback{
			Domain: ids.Domain{Tenant: r.PathValue("tenant"), Workspace: r.PathValue("workspace")},
			RunID:  r.PathValue("run"), TaskKey: r.PathValue("task"), Verb: verb,
		}, r.URL.Query(), r.Header.Get("Authorization"), keys, event.At(c.clock.Now()))
	}
	var finished *contract.Finished
	if err == nil {
		switch verb {
		case contract.VerbStarted:
			_, err = contract.DecodeStarted(data)
		case contract.VerbHeartbeat:
			_, err = contract.DecodeHeartbeat(data)
		default:
			finished, err = contract.DecodeFinished(data)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.bad = append(c.bad, fmt.Errorf("%s: %w", verb, err))
		rw.WriteHeader(http.StatusUnauthorized)
		return
	}
	c.count[verb]++
	status, body := http.StatusOK, any(contract.StartedResponse{})
	if c.answer != nil {
		if s, b := c.answer(verb, c.count[verb]); s != 0 {
			status, body = s, b
		}
	}
	if finished != nil && status == http.StatusOK {
		c.ends = append(c.ends, finished)
		c.ended <- struct{}{}
	}
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(body)
}

func (c *control) calls(verb string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[verb]
}

// end returns the report of the end. There must be exactly one such report.
func (c *control) end(t *testing.T) *contract.Finished {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.bad)
	require.Len(t, c.ends, 1)
	return c.ends[0]
}

// fixture is a store, a fake control plane and a worker.
type fixture struct {
	t       *testing.T
	clock   *manualClock
	control *control
	store   blob.Store
	root    string
	ref     string
	plan    *plan.Plan
	config  worker.Config
	worker  *worker.Worker
	server  *httptest.Server
	nonces  *atomic.Int64
}

func newFixture(t *testing.T, store blob.Store, assets map[string]plan.Work, tasks ...plan.Task) *fixture {
	t.Helper()
	clock := newClock()
	if store == nil {
		files, err := fileblob.Open(t.TempDir(), fileblob.Options{NoSync: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, files.Close()) })
		store = files
	}
	w := &fixture{t: t, clock: clock, control: newControl(t, clock), store: store, root: t.TempDir(), nonces: &atomic.Int64{}}
	w.store = store
	w.setPlan(assets, tasks...)
	w.config = worker.Config{
		Store: store, Clock: clock, Keyring: keys, WorkerID: "worker-1", ScratchDir: t.TempDir(),
		Nonce:   func() string { return fmt.Sprintf("n%d", w.nonces.Add(1)) },
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
		Environ: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, ServoBin: "/opt/servo",
		MaxConcurrent: 4, HeartbeatEvery: 10 * time.Second, DuckDB: worker.DuckDB{MemoryLimit: "256MB", Threads: 2},
	}
	w.worker, w.server = w.open(w.config)
	return w
}

// setPlan stores a plan. Tasks must be in dependency order.
func (w *fixture) setPlan(assets map[string]plan.Work, tasks ...plan.Task) {
	w.t.Helper()
	w.plan = &plan.Plan{SchemaVersion: 1, Root: w.root, Assets: assets, Tasks: tasks}
	w.storePlan()
}

func (w *fixture) storePlan() {
	w.t.Helper()
	data, sha, err := w.plan.Encode()
	require.NoError(w.t, err)
	w.ref = plan.Ref(domain, sha)
	_, err = w.store.Put(context.Background(), w.ref, data)
	require.NoError(w.t, err)
}

func (w *fixture) open(config worker.Config) (*worker.Worker, *httptest.Server) {
	w.t.Helper()
	wk, err := worker.Open(config)
	require.NoError(w.t, err)
	server := httptest.NewServer(wk.Handler())
	w.t.Cleanup(func() {
		require.NoError(w.t, wk.Close(context.Background()))
		server.Close()
	})
	return wk, server
}

// envelope returns the signed envelope of a task's attempt.
func (w *fixture) envelope(taskKey string, attempt int32, change ...func(*contract.Envelope)) []byte {
	w.t.Helper()
	i := slices.IndexFunc(w.plan.Tasks, func(t plan.Task) bool { return t.TaskKey == taskKey })
	require.GreaterOrEqual(w.t, i, 0, taskKey)
	expires := event.At(epoch.Add(7 * 24 * time.Hour))
	callback := contract.Callback{
		Domain: domain, RunID: runID, TaskKey: taskKey, Attempt: attempt,
		AttemptID: ids.AttemptID(domain, runID, taskKey, attempt), Expires: expires, Revision: 1,
	}
	sign := func(verb string) (url, authorization string) {
		callback.Verb = verb
		return contract.SignCallback(w.control.server.URL, callback, keys)
	}
	var calls contract.Callbacks
	calls.Started, calls.Authorization.Started = sign(contract.VerbStarted)
	calls.Heartbeat, calls.Authorization.Heartbeat = sign(contract.VerbHeartbeat)
	calls.Finished, calls.Authorization.Finished = sign(contract.VerbFinished)
	env := &contract.Envelope{
		ContractVersion: contract.Version, Tenant: domain.Tenant, Workspace: domain.Workspace, RunID: runID,
		TaskKey: taskKey, TaskID: ids.TaskID(domain, runID, taskKey), Attempt: attempt, AttemptID: callback.AttemptID,
		MaxAttempts: 3, PlanRef: w.ref, AssetKey: w.plan.Tasks[i].AssetKey, PartitionKey: w.plan.Tasks[i].PartitionKey,
		MaterializationID: ids.MaterializationID(domain, runID, taskKey), HeartbeatTimeoutSec: 60,
		Callbacks: calls,
	}
	for _, f := range change {
		f(env)
	}
	return signedJSON(w.t, env, expires)
}

func signedJSON(t testing.TB, env *contract.Envelope, expires event.Time) []byte {
	t.Helper()
	data, err := contract.Seal(env, keys, expires)
	require.NoError(t, err)
	return data
}

// post delivers an envelope to a worker, as a queue does.
func post(t *testing.T, url string, body []byte) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/execute", bytes.NewReader(body))
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(answer)
}

// deliver delivers a task's first attempt and returns the status.
func (w *fixture) deliver(taskKey string, change ...func(*contract.Envelope)) int {
	w.t.Helper()
	status, _ := post(w.t, w.server.URL, w.envelope(taskKey, 1, change...))
	return status
}

// deliverLater calls deliver in a goroutine. The channel receives the status.
func (w *fixture) deliverLater(taskKey string, change ...func(*contract.Envelope)) <-chan int {
	w.t.Helper()
	body, url := w.envelope(taskKey, 1, change...), w.server.URL
	answer := make(chan int, 1)
	go func() {
		status, _ := post(w.t, url, body)
		answer <- status
	}()
	return answer
}

// run delivers a task, which must succeed, and returns its report.
func (w *fixture) run(taskKey string) *contract.Finished {
	w.t.Helper()
	require.Equal(w.t, http.StatusOK, w.deliver(taskKey))
	end := w.control.last(w.t)
	require.Equal(w.t, event.Succeeded, end.Outcome, "%+v", end.Error)
	return end
}

// failed delivers a task, which must fail, and returns its error.
func (w *fixture) failed(taskKey string) *event.Error {
	w.t.Helper()
	require.Equal(w.t, http.StatusOK, w.deliver(taskKey))
	end := w.control.last(w.t)
	require.Equal(w.t, event.Failed, end.Outcome)
	require.Nil(w.t, end.Output)
	return end.Error
}

func (c *control) last(t *testing.T) *contract.Finished {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.bad)
	require.NotEmpty(t, c.ends)
	return c.ends[len(c.ends)-1]
}

// keysBelow returns the store's keys with a prefix.
func (w *fixture) keysBelow(prefix string) []string {
	w.t.Helper()
	var found []string
	for object, err := range w.store.List(w.t.Context(), blob.ListOptions{Prefix: prefix}) {
		require.NoError(w.t, err)
		found = append(found, object.Key)
	}
	return found
}

func (w *fixture) read(key string) string {
	w.t.Helper()
	data, _, err := w.store.Get(w.t.Context(), key)
	require.NoError(w.t, err)
	return string(data)
}

func (w *fixture) log(taskKey string) string {
	w.t.Helper()
	return w.read(contract.LogKey(domain, runID, taskKey, 1, ids.AttemptID(domain, runID, taskKey, 1)))
}

func (w *fixture) marker(taskKey string) *contract.CommitMarker {
	w.t.Helper()
	i := slices.IndexFunc(w.plan.Tasks, func(t plan.Task) bool { return t.TaskKey == taskKey })
	asset, err := ids.ParseAssetKey(w.plan.Tasks[i].AssetKey)
	require.NoError(w.t, err)
	key := contract.CommitMarkerKey(domain, asset, w.plan.Tasks[i].PartitionKey, ids.MaterializationID(domain, runID, taskKey))
	m, err := contract.DecodeCommitMarker([]byte(w.read(key)))
	require.NoError(w.t, err)
	return m
}

// file writes a file to the project's folder.
func (w *fixture) file(name, content string) {
	w.t.Helper()
	path := filepath.Join(w.root, name)
	require.NoError(w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(w.t, os.WriteFile(path, []byte(content), 0o755)) //nolint:gosec // scripts are executed
}

// scratchIsEmpty closes the worker, and checks that no execution has left files.
func (w *fixture) scratchIsEmpty() {
	w.t.Helper()
	require.NoError(w.t, w.worker.Close(w.t.Context()))
	left, err := filepath.Glob(filepath.Join(w.config.ScratchDir, "*", "*"))
	require.NoError(w.t, err)
	for _, path := range left {
		require.True(w.t, strings.HasSuffix(path, "/lock"), path)
	}
}

func task(taskKey, partitionKey string, inputs map[string]plan.InputSet, dependsOn ...string) plan.Task {
	asset, _, _ := strings.Cut(taskKey, "[")
	return plan.Task{
		TaskDef: event.TaskDef{TaskKey: taskKey, AssetKey: asset, PartitionKey: partitionKey, DependsOn: dependsOn},
		Inputs:  inputs,
	}
}

func from(taskKeys ...string) plan.InputSet {
	var set plan.InputSet
	for _, key := range taskKeys {
		set.Items = append(set.Items, plan.Input{TaskKey: key})
	}
	return set
}

func query(text string) plan.Work { return plan.Work{SQL: text} }

func shell(script string) plan.Work { return plan.Work{Command: []string{"sh", "-c", script}} }
