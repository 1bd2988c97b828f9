package dispatcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/compactor/remote"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// tick is a clock that only the methods pass and Sleep advance. Sleep does not block.
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
	acme   = foldtest.Domain
	codec  = snapshot.NewCodec()
	keys   = contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": bytes.Repeat([]byte("s"), contract.MinSecret)}}
	forged = contract.Keyring{Current: "k1", Secrets: map[string][]byte{"k1": bytes.Repeat([]byte("x"), contract.MinSecret)}}
)

// fixture is a domain with its dispatcher. Nothing runs by itself: the queue only stores its tasks, and only the
// method fold folds the ledger.
type fixture struct {
	*foldtest.World // builds events; its state is not used

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
	durable []event.Payload // appended payloads, in order
	pending []compactor.Entry
	// unmarked makes workers report successes without creating the commit marker.
	unmarked bool
	reads    map[string]int // reads of the dispatcher's store, by the first part of the key
}

// stepper folds synchronously, for every caller.
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

// spool is a queue that delivers nothing and records the tasks that it was given.
type spool struct {
	*localqueue.Queue
	mu     sync.Mutex
	tasks  []queue.Task
	asked  []string // the names that were passed to Exists
	failed error    // the error that the next Create returns
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

// names returns the names of the tasks that were created in a queue.
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

// created returns the tasks that were created.
func (s *spool) created() []queue.Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.tasks)
}

// watched sends to the channel waiting when a caller begins to wait for a snapshot.
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

// latest returns the snapshots of the compactor of this process.
type latest struct{ *snapshot.Latest }

func (l latest) Current(context.Context) (*snapshot.Snapshot, error) {
	snap, _ := l.Get()
	return snap, nil
}

func (l latest) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	return l.Latest.Await(ctx, func(s *snapshot.Snapshot) bool { return s.Revision > after })
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{
		World: foldtest.New(t), t: t, clock: &tick{now: foldtest.Epoch}, reads: map[string]int{},
	}
	w.blobs = memblob.New(memblob.Options{Now: w.clock.Now})
	w.ids = ids.NewSource(w.clock.Now, nil)
	w.manifests = w.manifestsOver(w.blobs)
	w.appender = ledger.NewAppender(ledger.Config{
		Domain: acme, Store: w.blobs, IDs: w.ids, Clock: w.clock, OnStored: w.onDurable,
	})
	w.compactor = &stepper{c: w.open("one")}
	w.queue = &spool{Queue: localqueue.New(localqueue.Options{Clock: w.clock})}
	w.snapshots = &watched{Snapshots: latest{w.compactor.c.Latest()}, waiting: make(chan int64, 1)}
	mux := http.NewServeMux()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mux.ServeHTTP(w, r.WithContext(remote.WithRights(r.Context(), remote.Rights{Sweep: true})))
	}))
	t.Cleanup(server.Close)
	w.url = server.URL
	w.d = w.dispatcher(w.snapshots)
	find := func(_ context.Context, d ids.Domain) (*dispatcher.Dispatcher, error) {
		if d != acme {
			return nil, nil
		}
		return w.d, nil
	}
	dispatcher.Register(mux, find, keys, w.clock)
	dispatcher.RegisterControl(mux, find)
	return w
}

func (w *fixture) onDurable(e ledger.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending, compactor.Entry{ID: e.Name, Data: e.Data, Stored: e.Object.Updated})
	for _, g := range event.Groups(event.DecodeEntry(e.Data)) {
		for _, e := range g.Events {
			w.durable = append(w.durable, e.Payload)
		}
	}
}

func (w *fixture) manifestsOver(store blob.Store) *manifest.Store {
	return manifest.New(manifest.Config{Domain: acme, Store: store, IDs: w.ids, Clock: w.clock})
}

func (w *fixture) open(writer string) *compactor.Compactor {
	w.t.Helper()
	c, err := compactor.Open(w.t.Context(), compactor.Config{
		Handle: domain.Open(domain.Handle{Domain: acme, Store: w.blobs, Manifests: w.manifests, Codec: codec, IDs: w.ids, Clock: w.clock}),
		Writer: writer,
	})
	require.NoError(w.t, err)
	return c
}

func (w *fixture) dispatcher(s dispatcher.Snapshots) *dispatcher.Dispatcher {
	return w.dispatcherOver(w.blobs, s)
}

func (w *fixture) handle(store blob.Store, c clock.Clock) *domain.Handle {
	return domain.Open(domain.Handle{Domain: acme, Store: store, IDs: w.ids, Clock: c})
}

func (w *fixture) dispatcherOver(store blob.Store, s dispatcher.Snapshots) *dispatcher.Dispatcher {
	return dispatcher.New(dispatcher.Config{
		Handle:    w.handle(store, w.clock),
		Queue:     w.queue,
		Appender:  w.appender,
		Compactor: w.compactor,
		Snapshots: s,
		Keys:      keys,
		WorkerURL: func(string) string { return "http://worker.example" },
		BaseURL:   w.url,
	})
}

// reader returns a reader of the published states that counts its reads.
func (w *fixture) reader() *snapshot.Reader {
	counted := faultblob.New(w.blobs, func(_ faultblob.Op, key string) faultblob.Fault {
		w.mu.Lock()
		defer w.mu.Unlock()
		kind, _, _ := strings.Cut(key, "/")
		w.reads[kind]++
		return faultblob.None
	})
	return snapshot.NewReader(acme, codec, w.manifestsOver(counted), w.clock)
}

// pass advances the clock.
func (w *fixture) pass(d time.Duration) {
	w.clock.pass(d)
	w.Now = w.clock.Now()
}

// append writes payloads to the ledger as one group. It does not fold them.
func (w *fixture) append(payloads ...event.Payload) {
	w.t.Helper()
	w.pass(time.Millisecond)
	group := make([]*event.Envelope, len(payloads))
	for i, p := range payloads {
		group[i] = &event.Envelope{Domain: acme, Payload: p}
	}
	_, err := w.appender.Append(w.t.Context(), group)
	require.NoError(w.t, err)
}

// fold folds everything that was appended.
func (w *fixture) fold() {
	w.t.Helper()
	w.mu.Lock()
	entries := w.pending
	w.pending = nil
	w.mu.Unlock()
	_, err := w.compactor.Compact(w.t.Context(), compactor.Request{Entries: entries})
	require.NoError(w.t, err)
}

func (w *fixture) state() *state.State {
	snap, _ := w.compactor.c.Latest().Get()
	return snap.State
}

func (w *fixture) snapshot() *snapshot.Snapshot {
	snap, _ := w.compactor.c.Latest().Get()
	return snap
}

func (w *fixture) revision() int64 {
	snap, _ := w.compactor.c.Latest().Get()
	return snap.Revision
}

// trigger folds a new run of tasks and returns its id.
func (w *fixture) trigger(defs ...event.TaskDef) string {
	w.t.Helper()
	w.Now = w.clock.Now()
	p := &event.RunTriggered{RunID: w.ids.New()}
	w.append(w.Triggered(p, defs...)...)
	w.fold()
	return p.RunID
}

// appended returns the appended payloads of a type.
func appended[P event.Payload](w *fixture) []P {
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

// entries returns the entries that were appended since the last fold.
func (w *fixture) entries() []compactor.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending
}

func (w *fixture) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.durable)
}

// callback returns the callback for a report on an attempt, as the dispatcher signs it.
func (w *fixture) callback(run, key, verb string, attempt int32) contract.Callback {
	return contract.Callback{
		Domain: acme, RunID: run, TaskKey: key, Verb: verb, Attempt: attempt, AttemptID: ids.AttemptID(acme, run, key, attempt),
		Expires: event.At(w.clock.Now().Add(time.Hour)), Revision: w.revision(),
	}
}

// answer is the response to a request.
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

// post sends a request. The parameter body is JSON text, or a value to encode.
func (w *fixture) post(url string, body any) answer {
	w.t.Helper()
	return w.postAs(url, "", body)
}

// postAs sends a request with an Authorization header.
func (w *fixture) postAs(url, authorization string, body any) answer {
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

// report sends a callback with a valid body for its verb.
func (w *fixture) report(cb contract.Callback) answer {
	w.t.Helper()
	url, authorization := contract.SignCallback(w.url, cb, keys)
	return w.postAs(url, authorization, w.body(cb))
}

func (w *fixture) reportAs(cb contract.Callback, body any) answer {
	return w.post(contract.CallbackURL(w.url, cb, keys), body)
}

func (w *fixture) body(cb contract.Callback) any {
	now := event.At(w.clock.Now())
	switch cb.Verb {
	case contract.VerbStarted:
		return contract.Started{AttemptID: cb.AttemptID, WorkerID: "w1", StartedAt: now}
	case contract.VerbHeartbeat:
		return contract.Heartbeat{AttemptID: cb.AttemptID, WorkerID: "w1", HeartbeatAt: now}
	}
	asset := ids.AssetKey{Namespace: "test", Name: cb.TaskKey}
	made := ids.MaterializationID(acme, cb.RunID, cb.TaskKey)
	if !w.unmarked {
		_, err := w.blobs.Put(w.t.Context(), contract.CommitMarkerKey(acme, asset, "", made), []byte("{}"))
		require.NoError(w.t, err)
	}
	return contract.Finished{
		AttemptID: cb.AttemptID, WorkerID: "w1", Outcome: event.Succeeded, MaterializationID: made,
		Output:    &event.Output{URI: contract.ExecutionPrefix(acme, asset, "", made, cb.AttemptID, "n1"), RowCount: 1},
		StartedAt: now, CompletedAt: now,
	}
}

// decoded decodes a response with status 200.
func decoded[T any](t *testing.T, a answer) T {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	var v T
	require.NoError(t, json.Unmarshal(a.body, &v))
	return v
}

func (w *fixture) task(run, key string) *state.Task {
	return w.state().Tasks.Get(state.Key2{A: run, B: key})
}

// timers returns the scheduled timers of a type.
func (w *fixture) timers(timerType string) []*state.Timer {
	return slices.DeleteFunc(w.state().Timers.Rows(), func(t *state.Timer) bool {
		return t.TimerType != timerType || t.State != state.TimerScheduled
	})
}

func (w *fixture) fire(timer *state.Timer) answer {
	w.t.Helper()
	return w.post(w.url+"/v1/tenants/acme/workspaces/prod/timers/fire",
		fmt.Sprintf(`{"timer_id":%q,"generation":%d}`, timer.TimerID, timer.Generation))
}
