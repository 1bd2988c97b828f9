package dispatcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/blob/faultblob"
	"github.com/servo-orchestration/servo/pkg/blob/memblob"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// tick is a clock that moves only when told, and does not wait.
type tick struct {
	mu  sync.Mutex
	now time.Time
}

func (c *tick) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *tick) Sleep(ctx context.Context, d time.Duration) error {
	c.pass(d)
	return ctx.Err()
}

func (c *tick) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

var (
	domain = foldtest.Domain
	codec  = snapshot.NewCodec()
	keys   = contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": bytes.Repeat([]byte("s"), contract.MinSecret)}}
	forged = contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": bytes.Repeat([]byte("x"), contract.MinSecret)}}
)

// world is a domain with a dispatcher that serves it. Nothing moves by itself:
// the queue keeps what it is given, and the ledger is folded when told.
type world struct {
	*foldtest.World // says events; its state is not used

	t         *testing.T
	clock     *tick
	blobs     *memblob.Store
	ids       *ids.Source
	manifests *manifest.Store
	appender  *ledger.Appender
	compactor *stepper
	queue     *spool
	snapshots *watched
	d         *dispatcher.Dispatcher
	url       string

	mu      sync.Mutex
	durable []event.Payload // what was appended, in order
	pending []compactor.Entry
	// unmarked: workers report successes without creating the commit marker.
	unmarked bool
	reads    map[string]int // of the dispatcher's store, by the first part of the key
}

// stepper folds at once, for whoever asks.
type stepper struct {
	mu       sync.Mutex
	c        *compactor.Compactor
	barriers int
}

func (s *stepper) Compact(ctx context.Context, r compactor.Request) (compactor.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Barrier {
		s.barriers++
	}
	return s.c.Step(ctx, r)
}

// spool is a queue that does not run, and tells what it was given.
type spool struct {
	*localqueue.Queue
	mu     sync.Mutex
	tasks  []queue.Task
	asked  []string // names of Exists
	failed error    // of the next Create
}

func (s *spool) Create(ctx context.Context, t queue.Task) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.failed; err != nil {
		s.failed = nil
		return err
	}
	err := s.Queue.Create(ctx, t)
	if err == nil {
		s.tasks = append(s.tasks, t)
	}
	return err
}

func (s *spool) Exists(ctx context.Context, queueName, name string) (bool, error) {
	s.mu.Lock()
	s.asked = append(s.asked, name)
	s.mu.Unlock()
	return s.Queue.Exists(ctx, queueName, name)
}

// names are the names of the tasks of a queue that were created.
func (s *spool) names(queueName string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, t := range s.tasks {
		if t.Queue == queueName {
			names = append(names, t.Name)
		}
	}
	return names
}

// watched are snapshots that tell when somebody waits for one.
type watched struct {
	dispatcher.Snapshots
	waiting chan int64
}

func (w *watched) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	select {
	case w.waiting <- after:
	default:
	}
	return w.Snapshots.Await(ctx, after)
}

// latest are the snapshots of the compactor in this process.
type latest struct{ *snapshot.Latest }

func (l latest) Current(context.Context) (*snapshot.Snapshot, error) {
	snap, _ := l.Get()
	return snap, nil
}

func (l latest) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	return l.Latest.Await(ctx, func(s *snapshot.Snapshot) bool { return s.Revision > after })
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		World: foldtest.New(t), t: t, clock: &tick{now: foldtest.Epoch}, reads: map[string]int{},
	}
	w.blobs = memblob.New(memblob.Options{Now: w.clock.Now})
	w.ids = ids.NewSource(w.clock.Now, nil)
	w.manifests = w.manifestsOver(w.blobs)
	w.appender = ledger.NewAppender(ledger.Config{
		Domain: domain, Store: w.blobs, IDs: w.ids, Clock: w.clock, OnDurable: w.onDurable,
	})
	w.compactor = &stepper{c: w.open("one")}
	w.queue = &spool{Queue: localqueue.New(localqueue.Options{Clock: w.clock})}
	w.snapshots = &watched{Snapshots: latest{w.compactor.c.Latest()}, waiting: make(chan int64, 1)}
	mux := http.NewServeMux()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(compactor.WithRights(r.Context(), compactor.Rights{Sweep: true})))
	}))
	t.Cleanup(server.Close)
	w.url = server.URL
	w.d = w.dispatcher(w.snapshots)
	find := func(_ context.Context, d ids.Domain) (*dispatcher.Dispatcher, error) {
		if d != domain {
			return nil, nil
		}
		return w.d, nil
	}
	dispatcher.Register(mux, find, keys, w.clock)
	dispatcher.RegisterControl(mux, find)
	return w
}

func (w *world) onDurable(e ledger.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending, compactor.Entry{ID: e.Name, Data: e.Data, Stored: e.Object.Updated})
	for _, g := range event.Groups(event.DecodeEntry(e.Data)) {
		for _, e := range g.Events {
			w.durable = append(w.durable, e.Payload)
		}
	}
}

func (w *world) manifestsOver(store blob.Store) *manifest.Store {
	return manifest.New(manifest.Config{Domain: domain, Store: store, IDs: w.ids, Clock: w.clock})
}

func (w *world) open(writer string) *compactor.Compactor {
	w.t.Helper()
	c, err := compactor.Open(w.t.Context(), compactor.Config{
		Domain: domain, Store: w.blobs, Manifests: w.manifests, Codec: codec, IDs: w.ids, Clock: w.clock,
		Writer: writer, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(w.t, err)
	return c
}

func (w *world) dispatcher(s dispatcher.Snapshots) *dispatcher.Dispatcher {
	return dispatcher.New(dispatcher.Config{
		Domain: domain, Markers: w.blobs, Queue: w.queue, Appender: w.appender, Compactor: w.compactor, Snapshots: s, Keys: keys,
		WorkerURL: func(string) string { return "http://worker.example" }, BaseURL: w.url,
		IDs: w.ids, Clock: w.clock, Logger: slog.New(slog.DiscardHandler),
	})
}

// reader follows the published states over a store that counts reads.
func (w *world) reader() *snapshot.Reader {
	counted := faultblob.New(w.blobs, func(_ faultblob.Op, key string) faultblob.Fault {
		w.mu.Lock()
		defer w.mu.Unlock()
		kind, _, _ := strings.Cut(key, "/")
		w.reads[kind]++
		return faultblob.None
	})
	return snapshot.NewReader(domain, codec, w.manifestsOver(counted), w.clock)
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.clock.pass(d)
	w.Now = w.clock.Now()
}

// append makes payloads durable as one group. Nobody folds it yet.
func (w *world) append(payloads ...event.Payload) {
	w.t.Helper()
	w.pass(time.Millisecond)
	group := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		group[i] = &event.Envelope{Domain: domain, Payload: p}
	}
	_, err := w.appender.Append(w.t.Context(), group)
	require.NoError(w.t, err)
}

// fold folds all that was appended.
func (w *world) fold() {
	w.t.Helper()
	w.mu.Lock()
	entries := w.pending
	w.pending = nil
	w.mu.Unlock()
	_, err := w.compactor.Compact(w.t.Context(), compactor.Request{Entries: entries})
	require.NoError(w.t, err)
}

func (w *world) state() *state.State {
	snap, _ := w.compactor.c.Latest().Get()
	return snap.State
}

func (w *world) revision() int64 {
	snap, _ := w.compactor.c.Latest().Get()
	return snap.Revision
}

// trigger has a run of tasks folded.
func (w *world) trigger(defs ...event.TaskDef) string {
	w.t.Helper()
	w.Now = w.clock.Now()
	p := &event.RunTriggered{RunID: w.ids.New()}
	w.append(w.Triggered(p, defs...)...)
	w.fold()
	return p.RunID
}

// appended are the payloads of a type that were appended.
func appended[P event.Payload](w *world) []P {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []P
	for _, p := range w.durable {
		if p, ok := p.(P); ok {
			found = append(found, p)
		}
	}
	return found
}

// entries are those that were appended since the last fold.
func (w *world) entries() []compactor.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.durable)
}

// callback is the right to report on an attempt, as the dispatcher hands it out.
func (w *world) callback(run, key, verb string, attempt int32) contract.Callback {
	return contract.Callback{
		Domain: domain, RunID: run, TaskKey: key, Verb: verb, Attempt: attempt, AttemptID: ids.AttemptID(domain, run, key, attempt),
		Expires: event.At(w.clock.Now().Add(time.Hour)), Revision: w.revision(),
	}
}

// answer is what a request came to.
type answer struct {
	status int
	body   []byte
}

func (a answer) problem(t *testing.T) contract.Problem {
	t.Helper()
	var p contract.Problem
	require.NoError(t, json.Unmarshal(a.body, &p), "%s", a.body)
	require.Equal(t, a.status, p.Status)
	return p
}

// post makes a request; body is JSON text, or is encoded.
func (w *world) post(url string, body any) answer {
	w.t.Helper()
	return w.postAs(url, "", body)
}

// postAs makes a request with an Authorization header.
func (w *world) postAs(url, authorization string, body any) answer {
	w.t.Helper()
	text, ok := body.(string)
	if !ok {
		data, err := json.Marshal(body)
		require.NoError(w.t, err)
		text = string(data)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, url, strings.NewReader(text))
	require.NoError(w.t, err)
	req.Header.Set("Content-Type", "application/json")
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(w.t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	require.NoError(w.t, err)
	return answer{res.StatusCode, data}
}

// report makes a callback with the body that fits it.
func (w *world) report(cb contract.Callback) answer {
	w.t.Helper()
	url, authorization := contract.SignCallback(w.url, cb, keys)
	return w.postAs(url, authorization, w.body(cb))
}

func (w *world) reportAs(cb contract.Callback, body any) answer {
	return w.post(contract.CallbackURL(w.url, cb, keys), body)
}

func (w *world) body(cb contract.Callback) any {
	now := event.At(w.clock.Now())
	switch cb.Verb {
	case contract.VerbStarted:
		return contract.Started{AttemptID: cb.AttemptID, WorkerID: "w1", StartedAt: now}
	case contract.VerbHeartbeat:
		return contract.Heartbeat{AttemptID: cb.AttemptID, WorkerID: "w1", HeartbeatAt: now}
	}
	asset := ids.AssetKey{Namespace: "test", Name: cb.TaskKey}
	made := ids.MaterializationID(domain, cb.RunID, cb.TaskKey)
	if !w.unmarked {
		_, err := w.blobs.Put(w.t.Context(), contract.MarkerKey(domain, asset, "", made), []byte("{}"))
		require.NoError(w.t, err)
	}
	return contract.Finished{
		AttemptID: cb.AttemptID, WorkerID: "w1", Outcome: event.Succeeded, MaterializationID: made,
		Output:    &event.Output{URI: contract.ExecutionPrefix(domain, asset, "", made, cb.AttemptID, "n1"), RowCount: 1},
		StartedAt: now, CompletedAt: now,
	}
}

// decoded is an answer of 200 as T.
func decoded[T any](t *testing.T, a answer) T {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	var v T
	require.NoError(t, json.Unmarshal(a.body, &v))
	return v
}

func (w *world) task(run, key string) *state.Task {
	return w.state().Tasks.Get(state.Key2{A: run, B: key})
}

// timers are the scheduled timers of a type.
func (w *world) timers(timerType string) []*state.Timer {
	return slices.DeleteFunc(w.state().Timers.Rows(), func(t *state.Timer) bool {
		return t.TimerType != timerType || t.State != state.TimerScheduled
	})
}

func (w *world) fire(timer *state.Timer) answer {
	w.t.Helper()
	return w.post(w.url+"/v1/tenants/acme/workspaces/prod/timers/fire",
		fmt.Sprintf(`{"timer_id":%q,"generation":%d}`, timer.TimerID, timer.Generation))
}
