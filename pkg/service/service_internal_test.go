package service

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/httpx"
	"github.com/servo-orchestration/servo/internal/memblob"
	"github.com/servo-orchestration/servo/pkg/blob"
	"github.com/servo-orchestration/servo/pkg/clock"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
)

var (
	acme   = ids.Domain{Tenant: "acme", Workspace: "prod"}
	globex = ids.Domain{Tenant: "globex", Workspace: "prod"}
	silent = slog.New(slog.DiscardHandler)
)

func none(string) string { return "" }

func TestWeightsParse(t *testing.T) {
	got, err := config{Weights: "acme=3, globex=2"}.weights()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"acme": 3, "globex": 2}, got)
	for _, wrong := range []string{"acme", "acme=", "acme=0", "acme=-1", "acme=1001", "Acme=1", "=1", "acme=1,", "acme=1,acme=2", "acme=1.5"} {
		_, err := config{Weights: wrong}.weights()
		require.ErrorContains(t, err, "--tenant-weights", wrong)
	}
}

func TestCloudLogFields(t *testing.T) {
	var out strings.Builder
	logger := NewLogger(&out, slog.LevelDebug, true, "")
	logger.Warn("slow", slog.String("domain", "acme/prod"), slog.Group("of", slog.String("level", "3")))
	logger.Error("broken")
	logger.Info("well")
	logger.Debug("detail")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"WARNING", "ERROR", "INFO", "DEBUG"} {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(lines[i]), &line))
		require.Equal(t, want, line["severity"])
		require.NotEmpty(t, line["message"])
		require.NotEmpty(t, line["time"])
		require.NotContains(t, line, "msg")
		require.NotContains(t, line, "level")
	}
	require.Contains(t, lines[0], `"of":{"level":"3"}`)
	out.Reset()
	NewLogger(&out, slog.LevelInfo, false, "").Info("well")
	require.Contains(t, out.String(), `"level":"INFO","msg":"well"`)
}

func TestHelpListsFlagsAndSucceeds(t *testing.T) {
	var out strings.Builder
	require.Equal(t, exitDone, RunDispatcher(t.Context(), Process{Args: []string{"--help"}, Getenv: none, Stderr: &out}))
	for _, want := range []string{"servo-dispatcher", "-compactor-url", "-worker-url", "SERVO_STORE"} {
		require.Contains(t, out.String(), want)
	}
}

func TestOpenKeysCreatesKeysOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), KeysFile)
	_, err := ReadKeys(path)
	require.ErrorIs(t, err, os.ErrNotExist, "ReadKeys creates no keys")
	var wg sync.WaitGroup
	made := make([]contract.Keyring, 8)
	for i := range made {
		wg.Go(func() {
			keys, err := OpenKeys(path)
			if err != nil {
				t.Errorf("open keys: %v", err)
			}
			made[i] = keys
		})
	}
	wg.Wait()
	for _, keys := range made {
		require.Equal(t, made[0], keys)
		require.NoError(t, keys.Validate())
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "mode of the key file")
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1)
	for _, bad := range []string{"", "{", `{"current":"a","secrets":{"a":"?"}}`, `{"current":"a","secrets":{"a":"c2hvcnQ="}}`} {
		require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
		_, err := OpenKeys(path)
		require.ErrorContains(t, err, "remove the file to create new keys")
	}
}

// Domains finds each domain with one listing, however many objects the domain has.
func TestDomainsListsOneObjectPerDomain(t *testing.T) {
	store := memblob.New(memblob.Options{})
	put := func(key string) {
		_, err := store.Put(t.Context(), key, []byte("x"))
		require.NoError(t, err)
	}
	found, err := Domains(t.Context(), store)
	require.NoError(t, err)
	require.Empty(t, found)

	source := ids.NewSource(clock.System{}.Now, nil)
	for _, d := range []ids.Domain{acme, globex, {Tenant: "acme", Workspace: "prod-2"}, {Tenant: "acme-2", Workspace: "a"}} {
		for range 50 {
			put(ledger.Key(d, source.New()))
		}
		put(manifest.Key(d, 1))
	}
	put(manifest.Key(ids.Domain{Tenant: "old", Workspace: "w"}, 3)) // the ledger of this domain is archived
	put(ledger.Key(ids.Domain{Tenant: "new", Workspace: "w"}, source.New()))
	put("ledger/orchestration/stray")
	put("ledger/orchestration/tenant=Not a name/workspace=x/y")
	put("manifests/orchestration/zz/zz/zz/zz")
	before := store.Stats()
	found, err = Domains(t.Context(), store)
	require.NoError(t, err)
	var names []string
	for _, d := range found {
		names = append(names, d.String())
	}
	require.Equal(t, []string{"acme-2/a", "acme/prod", "acme/prod-2", "globex/prod", "new/w", "old/w"}, names)
	require.LessOrEqual(t, store.Stats().Sub(before).Lists, int64(2*(len(names)+2)))
}

// far is the receiver of a relay.
type far struct {
	mu    sync.Mutex
	calls []announcement
	at    []time.Time
	fail  int // how many more calls fail
	gate  chan struct{}
}

func (f *far) take(_ context.Context, _ ids.Domain, a announcement) error {
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, a)
	f.at = append(f.at, clock.System{}.Now())
	if f.fail > 0 {
		f.fail--
		return errors.New("away")
	}
	return nil
}

func (f *far) relay(t *testing.T) *relay[announcement] {
	t.Helper()
	r := newRelay(clock.System{}, silent, announcement.with, f.take)
	r.delay = announcement.delay
	ended := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- r.run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return r
}

func entry(name string, urgent bool) announcement {
	return announcement{entries: named(name), urgent: urgent}
}

func named(names ...string) []compactor.Entry {
	entries := make([]compactor.Entry, len(names))
	for i, name := range names {
		entries[i].ID = name
	}
	return entries
}

func TestRelayMergesWhileACallRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{gate: make(chan struct{})}
		r := f.relay(t)
		r.put(acme, entry("1", true))
		synctest.Wait()
		r.put(acme, entry("2", false))
		r.put(acme, entry("3", true))
		close(f.gate)
		synctest.Wait()
		require.Equal(t, []announcement{entry("1", true), {entries: named("2", "3"), urgent: true}}, f.calls)
		require.Empty(t, r.queues, "empty queues are deleted")
	})
}

func TestRelayDelaysAcknowledgements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{}
		r := f.relay(t)
		began := clock.System{}.Now()
		r.put(acme, entry("1", false))
		synctest.Wait()
		require.Empty(t, f.calls)
		r.put(globex, entry("x", true))
		synctest.Wait()
		require.Len(t, f.calls, 1, "domains do not wait for each other")
		require.NoError(t, clock.System{}.Sleep(t.Context(), compactor.MaxLinger/2))
		r.put(acme, entry("2", true))
		synctest.Wait()
		require.Equal(t, announcement{entries: named("1", "2"), urgent: true}, f.calls[1])

		r.put(acme, entry("3", false))
		require.NoError(t, clock.System{}.Sleep(t.Context(), time.Minute))
		synctest.Wait()
		require.Equal(t, entry("3", false), f.calls[2])
		require.Equal(t, compactor.MaxLinger*3/2, f.at[2].Sub(began), "waits for the delay only")
	})
}

func TestRelayRetriesFailedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{fail: 3}
		r := f.relay(t)
		r.put(acme, entry("1", true))
		require.NoError(t, clock.System{}.Sleep(t.Context(), 50*time.Millisecond))
		r.put(acme, entry("2", true))
		require.NoError(t, clock.System{}.Sleep(t.Context(), time.Minute))
		synctest.Wait()
		require.Len(t, f.calls, 4)
		require.Equal(t, announcement{entries: named("1", "2"), urgent: true}, f.calls[3], "merged in order")
		require.Equal(t, []time.Duration{firstBackoff, 2 * firstBackoff, 4 * firstBackoff},
			[]time.Duration{f.at[1].Sub(f.at[0]), f.at[2].Sub(f.at[1]), f.at[3].Sub(f.at[2])})
	})
}

func TestAnnouncementOfTooManyEntriesAsksForAListing(t *testing.T) {
	a := announcement{}
	for range maxAnnounced {
		a = a.with(entry("x", false))
	}
	require.Len(t, a.entries, maxAnnounced)
	require.Equal(t, compactor.MaxLinger, a.delay())
	a = a.with(entry("x", false))
	require.Equal(t, announcement{barrier: true}, a)
	require.Zero(t, a.delay())
}

func TestAnnouncementOfTooManyBytesDropsData(t *testing.T) {
	half := make([]byte, maxAnnouncedBytes/2)
	a := announced(ledger.Entry{Name: "1", Data: half}).with(announced(ledger.Entry{Name: "2", Data: half, Urgent: true}))
	require.Equal(t, []compactor.Entry{{ID: "1", Data: half}, {ID: "2", Data: half}}, a.entries)
	require.True(t, a.urgent)
	a = a.with(announced(ledger.Entry{Name: "3", Data: []byte("x")}))
	require.Equal(t, named("1", "2", "3"), a.entries)
	a = a.with(announced(ledger.Entry{Name: "4", Data: []byte("y")}))
	require.Equal(t, append(named("1", "2", "3"), compactor.Entry{ID: "4", Data: []byte("y")}), a.entries)
}

// serving starts a server on a free port. The channel ended receives the result of the server.
func serving(t *testing.T, s *server) (stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx) }()
	t.Cleanup(stop)
	return stop, done
}

func newServer(t *testing.T) *server {
	t.Helper()
	s, err := listen(t.Context(), "test", config{Listen: "127.0.0.1:0"}, Process{Clock: clock.System{}, Network: tcp{}}, silent)
	require.NoError(t, err)
	s.metrics = newMetrics()
	return s
}

func TestShutdownFinishesRunningRequests(t *testing.T) {
	s := newServer(t)
	begun, gate := make(chan struct{}), make(chan struct{})
	backgroundEnded := make(chan struct{})
	s.background = append(s.background, func(ctx context.Context) error {
		<-ctx.Done()
		close(backgroundEnded)
		return nil
	})
	s.mux.HandleFunc("POST /slow", func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-gate
		select {
		case <-backgroundEnded:
			w.WriteHeader(http.StatusInternalServerError) // background work must outlive requests
		case <-r.Context().Done():
			w.WriteHeader(http.StatusInternalServerError)
		default:
		}
	})
	stop, ended := serving(t, s)
	status := make(chan int, 1)
	go func() {
		res, err := http.Post(s.url()+"/slow", "", nil) //nolint:gosec // the URL of this test's server
		if err != nil {
			t.Errorf("post: %v", err)
			status <- 0
			return
		}
		_ = res.Body.Close()
		status <- res.StatusCode
	}()
	<-begun
	stop()
	require.Empty(t, ended)
	close(gate)
	require.Equal(t, http.StatusOK, <-status)
	require.NoError(t, <-ended)
	<-backgroundEnded
}

func TestServiceEndsWhenBackgroundWorkFails(t *testing.T) {
	s := newServer(t)
	broken := errors.New("the queue has ended")
	s.background = append(s.background, func(context.Context) error { return broken })
	_, ended := serving(t, s)
	require.ErrorIs(t, <-ended, broken)
	_, err := listen(t.Context(), "test", config{Listen: "256.0.0.1:1"}, Process{Clock: clock.System{}, Network: tcp{}}, silent)
	require.ErrorContains(t, err, "choose another address with --listen")
}

func TestHandlerLimitsCountsAndRefuses(t *testing.T) {
	s := newServer(t)
	defer s.endpoint.Close()
	s.mux.HandleFunc("POST /v1/things/{id}", func(w http.ResponseWriter, r *http.Request) {
		_, hasDeadline := r.Context().Deadline()
		require.True(t, hasDeadline)
		if _, err := w.Write([]byte("ok")); err != nil {
			t.Errorf("write: %v", err)
		}
	})
	s.ready = func() error { return errors.New("not yet") }
	get := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader("body")))
		return w
	}
	require.Equal(t, http.StatusOK, get(http.MethodPost, "/v1/things/1").Code)
	require.Equal(t, http.StatusOK, get(http.MethodPost, "/v1/things/2").Code)
	require.Equal(t, http.StatusOK, get(http.MethodGet, "/healthz").Code)
	require.Equal(t, http.StatusServiceUnavailable, get(http.MethodGet, "/readyz").Code)
	wrong := get(http.MethodGet, "/v1/things/1")
	require.Equal(t, http.StatusMethodNotAllowed, wrong.Code)
	require.Equal(t, http.MethodPost, wrong.Header().Get("Allow"))
	for _, w := range []*httptest.ResponseRecorder{wrong, get(http.MethodGet, "/v2")} {
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	}
	require.Equal(t, http.StatusNotFound, get(http.MethodGet, "/metrics").Code, "metrics have a port of their own")
	values := s.metrics.(recorded).values()
	for series, want := range map[string]float64{
		`servo_http_requests_total{route="other",status="200"}`:               2, // this test's route is not in the catalog
		`servo_http_requests_total{route="GET /healthz",status="200"}`:        1,
		`servo_http_requests_total{route="GET /readyz",status="503"}`:         1,
		`servo_http_requests_total{route="none",status="405"}`:                1,
		`servo_http_requests_total{route="none",status="404"}`:                2,
		`servo_http_request_duration_seconds_count{route="GET /healthz"}`:     1,
		`servo_http_request_duration_seconds_bucket{route="none",le="+Inf"}`:  3,
		`servo_http_request_duration_seconds_bucket{route="other",le="+Inf"}`: 2,
	} {
		require.Equal(t, want, values[series], series)
	}
}

func TestWarningsAreLimitedByReason(t *testing.T) {
	var log strings.Builder
	clk := &handClock{now: time.Unix(1_800_000_000, 0)}
	w := &warnings{clock: clk, logger: NewLogger(&log, slog.LevelInfo, false, "")}
	for range 1000 {
		w.warn(t.Context(), "a", "first")
		w.warn(t.Context(), "b", "second")
	}
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	clk.now = clk.now.Add(warnEvery)
	w.warn(t.Context(), "a", "first")
	require.Equal(t, 3, strings.Count(log.String(), "\n"))
	require.Contains(t, log.String(), `"left_out":999`)
	clk.now = clk.now.Add(-time.Hour) // setting the clock back must not silence warnings
	w.warn(t.Context(), "a", "first")
	require.Equal(t, 4, strings.Count(log.String(), "\n"))
}

// handClock is a clock that a test sets.
type handClock struct {
	clock.System

	now time.Time
}

func (c *handClock) Now() time.Time { return c.now }

func TestRefusedCallbacksAreCountedAndLoggedOnce(t *testing.T) {
	var log strings.Builder
	s := newServer(t)
	defer s.endpoint.Close()
	s.warnings.logger = NewLogger(&log, slog.LevelInfo, false, "")
	s.mux.HandleFunc(contract.CallbackPattern, func(w http.ResponseWriter, _ *http.Request) {
		httpx.Refuse(w, http.StatusUnauthorized, strings.Repeat("é", 1000))
	})
	for range 5 {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/tenants/a/workspaces/b/runs/r/tasks/t/callbacks/started?sig=secret", http.NoBody))
		var problem contract.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &problem))
		require.LessOrEqual(t, len(problem.Detail), 300)
		require.True(t, utf8.ValidString(problem.Detail))
		require.NotContains(t, problem.Detail, "\ufffd")
	}
	require.Equal(t, 1, strings.Count(log.String(), "callback refused"), log.String())
	require.NotContains(t, log.String(), "secret")
	require.Equal(t, 5.0, s.metrics.(recorded).values()["servo_refused_callbacks_total"])
}

func TestHeadersAreLimited(t *testing.T) {
	s := newServer(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx) }()
	ask := func(size int) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url()+"/healthz", http.NoBody)
		require.NoError(t, err)
		r.Header.Set("X-Large", strings.Repeat("x", size))
		res, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	require.Equal(t, http.StatusOK, ask(16<<10))
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, ask(40<<10))
	stop()
	require.NoError(t, <-ended)
}

// slowStore takes a second for each request, on the clock of a test.
type slowStore struct {
	blob.Store

	clock *handClock
}

func (s slowStore) Create(ctx context.Context, key string, data []byte) (blob.Object, error) {
	s.clock.now = s.clock.now.Add(time.Second)
	return s.Store.Create(ctx, key, data)
}

func TestStoreRequestsAreCountedAndTimed(t *testing.T) {
	m := newMetrics()
	clk := &handClock{now: time.Unix(1_800_000_000, 0)}
	s := &countedStore{slowStore{memblob.New(memblob.Options{}), clk}, m, clk}
	for range 2 {
		_, _ = s.Create(t.Context(), manifest.Key(acme, 1), []byte("x"))
	}
	_, _, _ = s.Get(t.Context(), manifest.Key(acme, 2))
	_, err := s.Create(t.Context(), "elsewhere/x", nil)
	require.NoError(t, err)
	_, err = Domains(t.Context(), s)
	require.NoError(t, err)
	values := m.values()
	maps.DeleteFunc(values, func(series string, _ float64) bool { return !strings.HasPrefix(series, "servo_store_requests_total") })
	require.Equal(t, map[string]float64{
		`servo_store_requests_total{kind="manifests",op="create",result="ok"}`:     1,
		`servo_store_requests_total{kind="manifests",op="create",result="exists"}`: 1,
		`servo_store_requests_total{kind="other",op="create",result="ok"}`:         1,
		`servo_store_requests_total{kind="manifests",op="get",result="not_found"}`: 1,
		`servo_store_requests_total{kind="manifests",op="list",result="ok"}`:       2,
		`servo_store_requests_total{kind="ledger",op="list",result="ok"}`:          1,
	}, values)
	require.Equal(t, 3.0, m.values()[`servo_store_request_duration_seconds_sum{op="create"}`])
	require.Equal(t, 3.0, m.values()[`servo_store_request_duration_seconds_bucket{op="create",le="1"}`])
	require.Zero(t, m.values()[`servo_store_request_duration_seconds_bucket{op="create",le="0.5"}`])
	require.Equal(t, 3.0, m.values()[`servo_store_request_duration_seconds_count{op="list"}`])
}

// A bucket's listing streams objects. The time that the caller spends on each object does not belong to the
// request.
func TestListDurationEndsWithTheFirstObject(t *testing.T) {
	m := newMetrics()
	clk := &handClock{now: time.Unix(1_800_000_000, 0)}
	s := &countedStore{memblob.New(memblob.Options{}), m, clk}
	for _, key := range []string{"ledger/a", "ledger/b"} {
		_, err := s.Create(t.Context(), key, nil)
		require.NoError(t, err)
	}
	for _, err := range s.List(t.Context(), blob.ListOptions{Prefix: "ledger/"}) {
		require.NoError(t, err)
		clk.now = clk.now.Add(time.Minute)
	}
	require.Zero(t, m.values()[`servo_store_request_duration_seconds_sum{op="list"}`])
}
