package dispatcher_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/faultblob"
	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/domain"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ledger"
	"github.com/servo-orchestration/servo/pkg/state"
)

// INV-9: a timer that fires while the projections are old is judged only after everything durable has been folded.
// Here, that includes a heartbeat that keeps the attempt alive. This test fails if the method fire does not refresh the
// state.
func TestINV9FiringIsJudgedOnFreshProjections(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbStarted, 1)).status)
	w.fold()
	liveness := w.timers(event.TimerLiveness)[0]
	w.pass(liveness.FireAt.Time().Sub(w.clock.Now()) - time.Second)
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbHeartbeat, 1)).status) // the heartbeat is durable, but not folded
	w.pass(2 * time.Second)
	before := w.compactor.barriers
	require.Equal(t, http.StatusOK, w.fire(liveness).status)
	require.Equal(t, before+1, w.compactor.barriers, "barriers")
	fired := appended[*event.TimerFired](w)
	require.Len(t, fired, 1)
	require.LessOrEqual(t, fired[0].FiredAt.Sub(fired[0].Observed.CaughtUpAt), fold.MaxCompactionLag)
	require.Equal(t, w.revision(), fired[0].Observed.Revision)
	w.fold()
	require.Equal(t, state.TaskRunning, w.task(run, "a").State, "it is alive")

	// Without another heartbeat the next liveness check fails the attempt.
	liveness = w.timers(event.TimerLiveness)[0]
	w.pass(liveness.FireAt.Time().Sub(w.clock.Now()))
	require.Equal(t, http.StatusOK, w.fire(liveness).status)
	w.fold()
	require.Equal(t, fold.CodeHeartbeatTimeout, w.task(run, "a").ErrorCode)
}

// This test fails if a firing is judged while a heartbeat lingers in the appender.
func TestFiringFlushesAcceptedHeartbeats(t *testing.T) {
	w := newFixture(t)
	w.appender = ledger.NewAppender(ledger.Config{
		Domain: acme, Store: w.blobs, IDs: w.ids, Clock: w.clock, Linger: time.Hour, OnStored: w.onDurable,
	})
	w.d = w.dispatcher(w.snapshots)
	short := foldtest.Task("b")
	short.HeartbeatTimeoutSec = 2
	run := w.trigger(foldtest.Task("a"), short)
	w.append(w.Started(run, "a", 1))
	w.append(w.Started(run, "b", 1))
	w.fold()
	beat := func(key string) int {
		require.Equal(t, http.StatusOK, w.report(w.callback(run, key, contract.VerbHeartbeat, 1)).status)
		return len(appended[*event.TaskHeartbeat](w))
	}
	require.Equal(t, 1, beat("b"), "its timeout is too short to linger")
	liveness := w.timers(event.TimerLiveness)[0]
	w.pass(time.Minute)
	require.Equal(t, 1, beat("a"))
	require.Equal(t, http.StatusOK, w.fire(liveness).status)
	require.Len(t, appended[*event.TaskHeartbeat](w), 2)
}

// waiting is a clock whose Sleep reports its duration and blocks until the test wakes it.
type waiting struct {
	*tick
	asleep chan time.Duration
	wake   chan struct{}
}

func (c *waiting) Sleep(ctx context.Context, d time.Duration) error {
	c.asleep <- d
	<-c.wake
	c.pass(d)
	return ctx.Err()
}

func TestHeartbeatsOfShortTasksShareAnEntry(t *testing.T) {
	w := newFixture(t)
	clock := &waiting{tick: w.clock, asleep: make(chan time.Duration), wake: make(chan struct{})}
	w.appender = ledger.NewAppender(ledger.Config{
		Domain: acme, Store: w.blobs, IDs: w.ids, Clock: w.clock, Linger: time.Hour, OnStored: w.onDurable,
	})
	w.d = w.dispatcher(w.snapshots)
	w.d.Change(func(c *dispatcher.Config) { c.Handle = w.handle(w.blobs, clock) })
	defs := []event.TaskDef{foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c")}
	for i := range defs {
		defs[i].HeartbeatTimeoutSec = 3
	}
	run := w.trigger(defs...)
	for _, def := range defs {
		w.append(w.Started(run, def.TaskKey, 1))
	}
	w.fold()
	beat := func(key string) int { return w.report(w.callback(run, key, contract.VerbHeartbeat, 1)).status }
	first := make(chan int)
	go func() { first <- beat("a") }()
	require.Equal(t, 250*time.Millisecond, <-clock.asleep)
	require.Equal(t, http.StatusOK, beat("b"), "only the first heartbeat waits")
	require.Equal(t, http.StatusOK, beat("c"))
	require.Empty(t, appended[*event.TaskHeartbeat](w))
	clock.wake <- struct{}{}
	require.Equal(t, http.StatusOK, <-first)
	require.Len(t, appended[*event.TaskHeartbeat](w), 3)
	require.Len(t, w.entries(), 1)

	w.pass(2 * time.Second)
	go func() { first <- beat("b") }()
	<-clock.asleep // a new batch begins with this heartbeat
	clock.wake <- struct{}{}
	require.Equal(t, http.StatusOK, <-first)
	require.Len(t, appended[*event.TaskHeartbeat](w), 4)
}

func TestFiringOnFreshProjectionsListsNothing(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Retrying("a", 2))
	w.append(w.Finished(run, "a", 1, event.Failed))
	w.fold()
	retry := w.timers(event.TimerRetry)[0]
	w.pass(retry.FireAt.Time().Sub(w.clock.Now()))
	_, err := w.compactor.c.Step(t.Context(), barrier)
	require.NoError(t, err)
	before := w.compactor.barriers
	require.Equal(t, http.StatusOK, w.fire(retry).status)
	require.Equal(t, before, w.compactor.barriers)
	w.fold()
	require.Equal(t, int32(2), w.task(run, "a").Attempt)
}

func TestFiringOfEndedTimerAppendsNothing(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Retrying("a", 2))
	w.append(w.Finished(run, "a", 1, event.Failed))
	w.fold()
	retry := w.timers(event.TimerRetry)[0]
	w.pass(retry.FireAt.Time().Sub(w.clock.Now()))
	require.Equal(t, http.StatusOK, w.fire(retry).status)
	w.fold()
	n := w.count()
	require.Equal(t, http.StatusOK, w.fire(retry).status, "already fired")
	require.Equal(t, http.StatusOK, w.fire(&state.Timer{TimerID: "timer:retry:none"}).status, "unknown")
	require.Equal(t, n, w.count())

	// A liveness timer keeps its row when it fires, and gets a new generation. When the run ends, the row is
	// cancelled.
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbStarted, 2)).status)
	w.fold()
	liveness := w.timers(event.TimerLiveness)[0]
	w.append(w.Finished(run, "a", 2, event.Succeeded))
	w.fold()
	require.Empty(t, w.timers(event.TimerLiveness))
	n = w.count()
	require.Equal(t, http.StatusOK, w.fire(liveness).status)
	require.Equal(t, n, w.count(), "cancelled when the run ended")
	got := w.post(w.url+"/v1/tenants/acme/workspaces/prod/timers/fire", `{"generation":1}`)
	require.Equal(t, http.StatusBadRequest, got.status)
	require.Equal(t, "timer_id", got.problem(t).Field)
}

func TestTimerIsOneScheduledQueueTask(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Retrying("a", 2))
	w.append(w.Finished(run, "a", 1, event.Failed))
	w.fold()
	retry := w.timers(event.TimerRetry)[0]
	require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
	require.Contains(t, w.queue.names(control.TimerQueue), retry.QueueTaskName)
	for _, task := range w.queue.tasks {
		if task.Name == retry.QueueTaskName {
			require.True(t, retry.FireAt.Time().Equal(task.ScheduleTime))
			require.Equal(t, w.url+"/v1/tenants/acme/workspaces/prod/timers/fire", task.URL)
		}
	}
	w.fold()
	require.NotZero(t, w.timers(event.TimerRetry)[0].EnqueuedAt)
}

// Heartbeats of several requests are written together. The write must not end when the context of the first request
// ends: the attempts of the other requests would time out although their heartbeats were answered.
func TestHeartbeatsOutliveTheFirstRequest(t *testing.T) {
	w := newFixture(t)
	clock := &waiting{tick: w.clock, asleep: make(chan time.Duration), wake: make(chan struct{})}
	w.appender = ledger.NewAppender(ledger.Config{
		Domain: acme, Store: w.blobs, IDs: w.ids, Clock: w.clock, Linger: time.Hour, OnStored: w.onDurable,
	})
	w.d = w.dispatcher(w.snapshots)
	w.d.Change(func(c *dispatcher.Config) { c.Handle = w.handle(w.blobs, clock) })
	ctx, hangUp := context.WithCancel(t.Context())
	beat := &event.TaskHeartbeat{HeartbeatAt: event.At(w.clock.Now()), AttemptRef: event.AttemptRef{
		RunID: w.ids.New(), TaskKey: "a", Attempt: 1, AttemptID: w.ids.New(), WorkerID: "w1",
	}}
	done := make(chan error)
	go func() { done <- w.d.AppendHeartbeat(ctx, beat.RunID, beat, 2*time.Second) }()
	<-clock.asleep
	hangUp()
	clock.wake <- struct{}{}
	require.NoError(t, <-done)
	require.Len(t, appended[*event.TaskHeartbeat](w), 1)
}

// While an entry is unreadable, the barrier cannot fold everything, so no firing may be recorded.
func TestFiringFailsWhileAnEntryIsUnreadable(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Retrying("a", 2))
	w.append(w.Finished(run, "a", 1, event.Failed))
	w.fold()
	retry := w.timers(event.TimerRetry)[0]
	sealed := true
	store := faultblob.New(w.blobs, func(op faultblob.Op, key string) faultblob.Fault {
		if sealed && op == faultblob.Get && strings.HasPrefix(key, "ledger/") {
			return faultblob.FailBefore
		}
		return faultblob.None
	})
	c, err := compactor.Open(t.Context(), compactor.Config{
		Handle: domain.Open(domain.Handle{Domain: acme, Store: store, Manifests: w.manifestsOver(store), Codec: codec, IDs: w.ids, Clock: w.clock}),
		Writer: "two",
	})
	require.NoError(t, err)
	w.compactor.c = c
	w.d = w.dispatcher(&watched{Snapshots: latest{c.Latest()}, waiting: make(chan int64, 1)})
	w.append(w.Finished(run, "a", 1, event.Succeeded)) // only a listing finds this entry
	w.pass(retry.FireAt.Time().Sub(w.clock.Now()) + time.Hour)

	answer := w.fire(retry)
	require.Equal(t, http.StatusInternalServerError, answer.status)
	require.Empty(t, appended[*event.TimerFired](w))
	sealed = false
	require.Equal(t, http.StatusOK, w.fire(retry).status)
}
