package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/engine"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/plan"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

var codec = snapshot.NewCodec()

// fixture is a domain with a compactor and an engine.
type fixture struct {
	*engine.Engine

	t        *testing.T
	cfg      engine.Config
	blobs    *memblob.Store
	appender *ledger.Appender
	compact  *compactor.Compactor

	mu    sync.Mutex
	fault faultblob.Hook
}

// local provides the snapshots of a compactor in this process.
type local struct{ *snapshot.Latest }

func (l local) Current(context.Context) (*snapshot.Snapshot, error) {
	snap, _ := l.Get()
	return snap, nil
}

func (l local) Await(ctx context.Context, after int64) (*snapshot.Snapshot, error) {
	return l.Latest.Await(ctx, func(s *snapshot.Snapshot) bool { return s.Revision > after })
}

// newFixture returns a fixture. If outside is true, the engine works as in another process: it calls the compactor
// over HTTP, and reads the state from the store.
func newFixture(t *testing.T, outside bool) *fixture {
	t.Helper()
	w := &fixture{t: t, blobs: memblob.New(memblob.Options{})}
	store := faultblob.New(w.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fault == nil {
			return faultblob.None
		}
		return w.fault(op, key)
	})
	source := ids.NewSource(clock.System{}.Now, nil)
	manifests := func() *manifest.Store {
		return manifest.New(manifest.Config{Domain: foldtest.Domain, Store: w.blobs, IDs: source, Clock: clock.System{}})
	}
	var err error
	w.compact, err = compactor.Open(t.Context(), compactor.Config{
		Handle: domain.Open(domain.Handle{Domain: foldtest.Domain, Store: w.blobs, Manifests: manifests(), Codec: codec, IDs: source, Clock: clock.System{}}),
		Writer: "test",
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.compact.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	w.appender = ledger.NewAppender(ledger.Config{Domain: foldtest.Domain, Store: store, IDs: source, Clock: clock.System{}})
	w.cfg = engine.Config{
		Handle:    domain.Open(domain.Handle{Domain: foldtest.Domain, Store: store, IDs: source, Clock: clock.System{}}),
		Appender:  w.appender,
		Compactor: w.compact,
		Snapshots: local{w.compact.Latest()},
	}
	if outside {
		mux := http.NewServeMux()
		remote.Register(mux, func(context.Context, ids.Domain) (*compactor.Compactor, error) { return w.compact, nil })
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		w.cfg.Compactor = &remote.Client{Domain: foldtest.Domain, URL: server.URL, HTTP: server.Client()}
		w.cfg.Snapshots = snapshot.NewReader(foldtest.Domain, codec, manifests(), clock.System{})
	}
	w.Engine = engine.New(w.cfg).As(engine.User("jane"))
	return w
}

func (w *fixture) faults(hook faultblob.Hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = hook
}

// report appends a worker's events and folds them.
func (w *fixture) report(payloads ...event.Payload) {
	w.t.Helper()
	for _, p := range payloads {
		appended, err := w.appender.Append(w.t.Context(), []*event.Envelope{{Domain: foldtest.Domain, Payload: p}})
		require.NoError(w.t, err)
		_, err = w.compact.Compact(w.t.Context(), compactor.Request{Entries: []compactor.Entry{{ID: appended.Entry}}})
		require.NoError(w.t, err)
	}
}

// fireTimers appends a TimerFired event for each timer of the domain, with the time for which the timer is scheduled.
func (w *fixture) fireTimers() {
	w.t.Helper()
	for timer := range w.state().Timers.All {
		w.report(&event.TimerFired{
			TimerID: timer.TimerID, Generation: timer.Generation, FiredAt: timer.FireAt, Observed: event.Observed{CaughtUpAt: timer.FireAt},
		})
	}
}

func (w *fixture) state() *state.State {
	w.t.Helper()
	snap, err := w.Current(w.t.Context())
	require.NoError(w.t, err)
	return snap.State
}

func (w *fixture) finished(run, key string, outcome event.Outcome) *event.TaskFinished {
	now := event.At(clock.System{}.Now())
	p := &event.TaskFinished{AttemptRef: foldtest.Ref(run, key, 1), Outcome: outcome, StartedAt: now, CompletedAt: now}
	if outcome == event.Succeeded {
		p.Output = &event.Output{URI: "assets/" + key + "/", RowCount: 1}
	} else {
		p.Error = &event.Error{Code: "BOOM", Message: "it went wrong"}
	}
	return p
}

// asset returns an asset with a command.
func asset(name string, deps ...string) plan.Asset {
	a := plan.Asset{Key: ids.AssetKey{Namespace: "raw", Name: name}, Work: plan.Work{Command: []string{"true"}}}
	for _, dep := range deps {
		a.Deps = append(a.Deps, ids.AssetKey{Namespace: "raw", Name: dep})
	}
	return a
}

func request(assets ...plan.Asset) engine.RunRequest {
	return engine.RunRequest{Plan: plan.Request{Root: "/project", Assets: assets, All: true}, Trigger: event.Trigger{Type: "manual"}}
}

func (w *fixture) run(r engine.RunRequest) engine.RunHandle {
	w.t.Helper()
	handle, err := w.Run(w.t.Context(), r)
	require.NoError(w.t, err)
	return handle
}

// inBothProcesses runs a test with the engine in the compactor's process, and again with the engine in another
// process.
func inBothProcesses(t *testing.T, test func(t *testing.T, w *fixture)) {
	t.Helper()
	t.Run("in the compactor's process", func(t *testing.T) { test(t, newFixture(t, false)) })
	t.Run("in another process", func(t *testing.T) { test(t, newFixture(t, true)) })
}

func TestRunReturnsAfterFold(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		r := request(asset("a"), asset("b", "a"))
		r.MaxParallelism, r.TimeoutSec, r.Labels = 3, 60, map[string]string{"team": "data"}
		handle := w.run(r)
		require.Equal(t, 2, handle.Tasks)
		require.False(t, handle.Attached)
		st := w.state()
		row := st.Runs.Get(handle.RunID)
		require.Equal(t, int32(3), row.MaxParallelism)
		require.JSONEq(t, `["raw/a","raw/b"]`, row.RootAssets)
		require.JSONEq(t, `{"team":"data"}`, row.Labels)
		require.Equal(t, state.TaskReady, st.Tasks.Get(state.Key2{A: handle.RunID, B: "raw/a"}).State)
		require.Equal(t, state.TaskBlocked, st.Tasks.Get(state.Key2{A: handle.RunID, B: "raw/b"}).State)
		data, _, err := w.cfg.Store.Get(t.Context(), row.PlanRef)
		require.NoError(t, err)
		stored, err := plan.Decode(data)
		require.NoError(t, err)
		require.Len(t, stored.Tasks, 2)
	})
}

func TestRunIsLaterThanThoseItsPlanSaw(t *testing.T) {
	w := newFixture(t, false)
	first := w.run(request(asset("a")))
	behind := w.cfg
	behind.Handle = domain.Open(domain.Handle{
		Domain: foldtest.Domain, Store: w.cfg.Store, Clock: clock.System{},
		IDs: ids.NewSource(func() time.Time { return clock.System{}.Now().Add(-time.Minute) }, nil),
	})
	second, err := engine.New(behind).As(engine.User("jane")).Run(t.Context(), request(asset("a")))
	require.NoError(t, err)
	require.Greater(t, second.RunID, first.RunID, "its outputs replace those of the first run")
}

func TestLargePlanIsReadByReference(t *testing.T) {
	w := newFixture(t, false)
	var assets []plan.Asset
	for i := range 600 {
		assets = append(assets, asset(fmt.Sprintf("a%03d", i)))
	}
	handle := w.run(request(assets...))
	require.Equal(t, 600, handle.Tasks)
	require.Equal(t, int32(600), w.state().Runs.Get(handle.RunID).TasksTotal)
	for name, err := range ledger.List(t.Context(), w.blobs, foldtest.Domain, "") {
		require.NoError(t, err)
		require.Less(t, name.Object.Size, int64(64<<10), "the tasks are in the plan, not in the ledger")
	}
}

func TestRunKeyAttachesOrConflicts(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		r := request(asset("a"), asset("b"))
		r.RunKey = "nightly"
		first := w.run(r)
		again := w.run(r)
		require.Equal(t, engine.RunHandle{RunID: first.RunID, Tasks: 2, Attached: true}, again)
		w.report(w.finished(first.RunID, "raw/a", event.Succeeded), w.finished(first.RunID, "raw/b", event.Succeeded))
		require.Equal(t, again, w.run(r), "after its end")

		for name, change := range map[string]func(*engine.RunRequest){
			"other assets":      func(r *engine.RunRequest) { r.Plan.Assets = r.Plan.Assets[:1] },
			"other code":        func(r *engine.RunRequest) { r.Plan.Assets = []plan.Asset{asset("a"), asset("b", "a")} },
			"another timeout":   func(r *engine.RunRequest) { r.TimeoutSec = 5 },
			"other labels":      func(r *engine.RunRequest) { r.Labels = map[string]string{"x": "y"} },
			"other parallelism": func(r *engine.RunRequest) { r.MaxParallelism = 1 },
		} {
			other := r
			change(&other)
			_, err := w.Run(t.Context(), other)
			require.ErrorIs(t, err, engine.ErrConflict, name)
			require.ErrorContains(t, err, "run "+first.RunID+" keeps this key")
		}
		require.Equal(t, 1, w.state().Runs.Len())
	})
}

func TestInvalidPlanStartsNothing(t *testing.T) {
	w := newFixture(t, false)
	_, err := w.Run(t.Context(), request(asset("a", "b"), asset("b", "a")))
	require.ErrorContains(t, err, "raw/a")
	require.Zero(t, w.blobs.Stats().Creates)
}

func TestPlanWriteWithLostResponseSucceeds(t *testing.T) {
	w := newFixture(t, false)
	lost := 0
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "plans/") {
			lost++
			return faultblob.FailAfter
		}
		return faultblob.None
	})
	w.run(request(asset("a")))
	require.Equal(t, 1, lost)
	w.faults(func(op faultblob.Op, key string) faultblob.Fault {
		if op == faultblob.Create && strings.HasPrefix(key, "plans/") {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	_, err := w.Run(t.Context(), request(asset("b")))
	require.ErrorIs(t, err, faultblob.ErrInjected)
	require.Equal(t, 1, w.state().Runs.Len(), "a run without a plan is not triggered")
}

// unavailable is a compactor that does not respond.
type unavailable struct{}

func (unavailable) Compact(context.Context, compactor.Request) (compactor.Result, error) {
	return compactor.Result{}, errors.New("no response")
}

func TestFoldErrorSaysEntryIsDurable(t *testing.T) {
	w := newFixture(t, false)
	cfg := w.cfg
	cfg.Compactor = unavailable{}
	_, err := engine.New(cfg).As(engine.User("jane")).Run(t.Context(), request(asset("a")))
	require.ErrorContains(t, err, "which is durable and will be folded: no response")
	result, err := w.compact.Compact(t.Context(), compactor.Request{Barrier: true})
	require.NoError(t, err)
	require.Equal(t, 1, result.Folded)
	require.Equal(t, 1, w.state().Runs.Len())
}

func TestCancelEndsRun(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		handle := w.run(request(asset("a"), asset("b", "a")))
		w.report(&event.TaskStarted{AttemptRef: foldtest.Ref(handle.RunID, "raw/a", 1), StartedAt: event.At(clock.System{}.Now())})
		require.NoError(t, w.Cancel(t.Context(), handle.RunID[16:], "not needed", false), "the end of an id is enough")
		row := w.state().Runs.Get(handle.RunID)
		require.Equal(t, state.RunCancelling, row.State)
		require.Equal(t, "not needed", row.CancelReason)
		require.NoError(t, w.Cancel(t.Context(), "latest", "immediately", true))
		require.Equal(t, state.RunCancelled, w.state().Runs.Get(handle.RunID).State)
		require.ErrorIs(t, w.Cancel(t.Context(), handle.RunID, "", true), engine.ErrEnded)
		require.ErrorIs(t, w.Cancel(t.Context(), "none", "", true), engine.ErrNotFound)
	})
}

func TestRetryKeepsSucceededTasks(t *testing.T) {
	inBothProcesses(t, func(t *testing.T, w *fixture) {
		r := request(asset("a"), asset("b", "a"), asset("c", "b"), asset("d"))
		r.MaxParallelism, r.TimeoutSec = 2, 600
		parent := w.run(r)
		_, err := w.Retry(t.Context(), parent.RunID)
		require.ErrorContains(t, err, "wait until it ends, or cancel it")
		w.report(
			w.finished(parent.RunID, "raw/a", event.Succeeded), w.finished(parent.RunID, "raw/d", event.Succeeded),
			w.finished(parent.RunID, "raw/b", event.Failed),
		)
		require.Equal(t, state.RunFailed, w.state().Runs.Get(parent.RunID).State)

		handle, err := w.Retry(t.Context(), "latest")
		require.NoError(t, err)
		require.Equal(t, 2, handle.Tasks)
		row := w.state().Runs.Get(handle.RunID)
		require.Equal(t, parent.RunID, row.ParentRunID)
		require.Equal(t, []int32{2, 600}, []int32{row.MaxParallelism, row.TimeoutSec})
		require.JSONEq(t, `["raw/a","raw/b","raw/c","raw/d"]`, row.RootAssets, "the root assets of its parent")
		var keys []string
		w.state().TasksOf(handle.RunID, func(task *state.Task) bool {
			keys = append(keys, task.TaskKey+" "+string(task.State))
			return true
		})
		require.Equal(t, []string{"raw/b READY", "raw/c BLOCKED"}, keys)
		data, _, err := w.cfg.Store.Get(t.Context(), row.PlanRef)
		require.NoError(t, err)
		built, err := plan.Decode(data)
		require.NoError(t, err)
		items := built.Tasks[0].Inputs["raw/a"].Items
		require.Len(t, items, 1)
		require.Equal(t, "assets/raw/a/", items[0].URI, "b reads a's output of the first run")

		w.report(w.finished(handle.RunID, "raw/b", event.Succeeded), w.finished(handle.RunID, "raw/c", event.Succeeded))
		require.Equal(t, state.RunSucceeded, w.state().Runs.Get(handle.RunID).State)
		require.Equal(t, state.RunFailed, w.state().Runs.Get(parent.RunID).State, "the parent is unchanged")
	})
}

// A project may have any number of assets. The row of a run is rewritten at each change of the run, so the row lists
// only the first assets, and the number of all assets.
func TestLargeProjectIsRunAndRetried(t *testing.T) {
	w := newFixture(t, false)
	const n = event.MaxSelection + 1
	var assets []plan.Asset
	for i := range n {
		assets = append(assets, asset(fmt.Sprintf("a%05d", i)))
	}
	handle := w.run(request(assets...))
	require.Equal(t, n, handle.Tasks)
	row := w.state().Runs.Get(handle.RunID)
	require.Equal(t, int32(event.MaxSelection), row.RootAssetsTotal, "as many as an event may name")
	var named []string
	require.NoError(t, json.Unmarshal([]byte(row.RootAssets), &named))
	require.Len(t, named, 20)
	require.Equal(t, "raw/a00000", named[0])

	require.NoError(t, w.Cancel(t.Context(), handle.RunID, "", true))
	handle, err := w.Retry(t.Context(), handle.RunID)
	require.NoError(t, err)
	require.Equal(t, n, handle.Tasks)
	require.Equal(t, int32(event.MaxSelection), w.state().Runs.Get(handle.RunID).RootAssetsTotal)
}

func TestRetryFailsWithoutPlan(t *testing.T) {
	w := newFixture(t, false)
	parent := w.run(request(asset("a")))
	w.report(w.finished(parent.RunID, "raw/a", event.Failed))
	require.NoError(t, w.blobs.Delete(t.Context(), w.state().Runs.Get(parent.RunID).PlanRef))
	_, err := w.Retry(t.Context(), parent.RunID)
	require.ErrorIs(t, err, blob.ErrNotFound)
	require.ErrorContains(t, err, parent.RunID)
}

func TestMaterializedPartitionsAreInputsOfLaterRuns(t *testing.T) {
	w := newFixture(t, false)
	first := w.run(request(asset("a"), asset("b", "a")))
	w.report(w.finished(first.RunID, "raw/a", event.Succeeded))
	only := request(asset("a"), asset("b", "a"))
	only.Plan.All, only.Plan.Select = false, []ids.AssetKey{{Namespace: "raw", Name: "b"}}
	second := w.run(only)
	require.Equal(t, 1, second.Tasks)
	data, _, err := w.cfg.Store.Get(t.Context(), w.state().Runs.Get(second.RunID).PlanRef)
	require.NoError(t, err)
	built, err := plan.Decode(data)
	require.NoError(t, err)
	require.Equal(t, "assets/raw/a/", built.Tasks[0].Inputs["raw/a"].Items[0].URI)
	for name, want := range map[string]int{"a": 1, "b": 0} {
		made, err := engine.Materialized(t.Context(), &snapshot.Snapshot{State: w.state()}, ids.AssetKey{Namespace: "raw", Name: name})
		require.NoError(t, err)
		require.Len(t, made, want)
	}
}

func TestFindRunByIDSuffixOrLatest(t *testing.T) {
	w := foldtest.New(t)
	find := func(id string) (*state.Run, error) {
		_, run, err := engine.FindRun(t.Context(), &snapshot.Snapshot{State: w.State}, id)
		return run, err
	}
	_, err := find("latest")
	require.ErrorIs(t, err, engine.ErrNotFound)
	require.ErrorContains(t, err, "no run has been started here yet")
	first := w.Run(foldtest.Task("a"))
	w.Pass(time.Second)
	second := w.Run(foldtest.Task("a"))
	for id, want := range map[string]string{"": second, "latest": second, first: first, first[:5]: ""} {
		run, err := find(id)
		if want == "" {
			require.ErrorIs(t, err, engine.ErrNotFound, id)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, want, run.RunID)
	}
	shared := 0 // the length of the ids' common suffix
	for shared < len(first) && first[len(first)-1-shared] == second[len(second)-1-shared] {
		shared++
	}
	if shared > 0 {
		_, err = find(first[len(first)-shared:])
		require.ErrorContains(t, err, "2 runs end with it")
	}
	run, err := find(first[len(first)-shared-1:])
	require.NoError(t, err)
	require.Equal(t, first, run.RunID)
}

func TestFindTaskSuggestsNearestKey(t *testing.T) {
	w := foldtest.New(t)
	day := func(asset, date string) event.TaskDef {
		def := foldtest.Task(asset + "[date=" + date + "]")
		def.AssetKey = asset
		return def
	}
	run := w.Run(day("raw/a", "2025-01-01"), day("raw/a", "2025-01-02"), day("raw/b", "2025-01-03"))
	for name, want := range map[string]string{
		"raw/a[date=2025-01-01]": "raw/a[date=2025-01-01]", "raw/b": "raw/b[date=2025-01-03]", "01-03": "raw/b[date=2025-01-03]",
	} {
		task, err := engine.FindTask(w.State, run, name)
		require.NoError(t, err, name)
		require.Equal(t, want, task.TaskKey)
	}
	for name, want := range map[string]string{
		"raw/a": "it matches 2 tasks", "raw/bb": "", "": "3 tasks", "raw/b[date=2025-01-04]": "did you mean raw/b[date=2025-01-03]?",
	} {
		_, err := engine.FindTask(w.State, run, name)
		require.ErrorIs(t, err, engine.ErrNotFound, name)
		require.ErrorContains(t, err, want)
	}
}

func TestEventsRecordPrincipalOfCall(t *testing.T) {
	w := newFixture(t, false)
	handle, err := w.Run(t.Context(), request(asset("a")))
	require.NoError(t, err)
	require.NoError(t, w.As("service:scheduler").Cancel(t.Context(), handle.RunID, "test", false))
	events, more, err := engine.Events(t.Context(), w.cfg.Store, foldtest.Domain, w.state().Runs.Get(handle.RunID), engine.Filter{})
	require.NoError(t, err)
	require.False(t, more)
	var actors []string
	for _, e := range events {
		actors = append(actors, e.Info().Actor)
	}
	require.Contains(t, actors, "user:jane")
	require.Contains(t, actors, "service:scheduler")
}

func TestChangesRequirePrincipal(t *testing.T) {
	w := newFixture(t, false)
	_, err := w.As("").Run(t.Context(), request(asset("a")))
	require.ErrorContains(t, err, "the caller is unknown")
	snap, err := w.Current(t.Context())
	require.NoError(t, err)
	require.Zero(t, snap.RunCount())
}
