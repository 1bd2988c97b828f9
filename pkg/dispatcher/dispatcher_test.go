package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/compactor"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/manifest"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/queue/localqueue"
	"github.com/servo-orchestration/servo/pkg/state"
)

var barrier = compactor.Request{Barrier: true}

// dispatches returns the names of the queue tasks that deliver attempts to workers.
func (w *fixture) dispatches() []string { return w.queue.names(w.state().Tasks.Rows()[0].WorkerQueue) }

func (w *fixture) outbox(run, key string) *state.Dispatch {
	t := w.task(run, key)
	return w.state().Outbox.Get(ids.DispatchID(run, key, t.Attempt))
}

// react returns the actions for the pending rows of the state.
func (w *fixture) react() []control.Action {
	return control.React(w.state().Outbox.Rows(), nil, event.At(w.clock.Now()))
}

// INV-4: executing an action twice has the same effect as executing it once, and the second acknowledgement says
// Deduplicated. This test fails if the name of the queue task contains a random id, or if ErrExists is treated as a
// failure.
func TestINV4SideEffectIdempotency(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	actions := w.react()
	require.Len(t, actions, 1)
	require.NoError(t, w.d.Execute(t.Context(), w.snapshot(), actions))
	w.pass(time.Minute)
	require.NoError(t, w.dispatcher(w.snapshots).Execute(t.Context(), w.snapshot(), actions), "by another instance, later")
	require.Equal(t, []string{w.outbox(run, "a").QueueTaskName}, w.dispatches())
	acks := appended[*event.DispatchEnqueued](w)
	require.Len(t, acks, 2)
	require.Equal(t, []bool{false, true}, []bool{acks[0].Deduplicated, acks[1].Deduplicated})

	w.fold()
	require.Equal(t, state.TaskDispatched, w.task(run, "a").State)
	require.Equal(t, state.DispatchCreated, w.outbox(run, "a").Status)
	require.Equal(t, acks[0].QueueTaskName, acks[1].QueueTaskName)
}

// INV-7: the dispatcher acts and answers from the projections only. This test fails if the ledger is read while the
// next manifest is loaded.
func TestINV7OnlyProjectionsAreRead(t *testing.T) {
	w := newFixture(t)
	d := w.dispatcher(w.reader())
	w.d = d // this dispatcher also receives the callbacks
	run := w.trigger(foldtest.Retrying("a", 2), foldtest.Task("b", "a"))
	require.NoError(t, d.HandOver(t.Context(), w.revision(), false))
	w.fold()
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbStarted, 1)).status)
	w.fold()
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbHeartbeat, 1)).status)
	require.Equal(t, http.StatusOK, w.report(w.callback(run, "a", contract.VerbFinished, 1)).status)
	w.fold()
	require.NoError(t, d.HandOver(t.Context(), w.revision(), false))
	require.NoError(t, d.Reconcile(t.Context()))
	w.pass(time.Hour)
	require.NoError(t, d.Sweep(t.Context(), w.revision()))
	require.Equal(t, http.StatusOK, w.fire(&state.Timer{TimerID: "timer:none"}).status)
	require.Len(t, w.dispatches(), 2)
	require.NotZero(t, w.reads["manifests"])
	for kind := range w.reads {
		require.Contains(t, []string{"state", "manifests", "boundary", "hints"}, kind)
	}
}

// INV-5: a sweep repairs everything that is lost between the fold and the worker: queue tasks and outbox rows. This
// test fails if a sweep ignores admitted attempts without a row, if it ignores overdue rows, or if it repairs a row
// without asking the queue first.
func TestINV5NoLostWork(t *testing.T) {
	t.Run("a queue task is lost", func(t *testing.T) {
		w := newFixture(t)
		run := w.trigger(foldtest.Task("a"))
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
		w.fold()
		first := w.outbox(run, "a")
		require.Equal(t, state.DispatchCreated, first.Status)
		w.pass(fold.DispatchDeadline - time.Second)
		w.sweep()
		require.Empty(t, w.queue.asked, "not overdue yet")

		w.pass(2 * time.Second)
		w.sweep()
		require.Equal(t, []string{first.QueueTaskName}, w.queue.asked)
		require.Empty(t, appended[*event.DispatchRequested](w), "the queue has the task; it is only slow")

		w.loseQueue()
		w.sweep()
		requested := appended[*event.DispatchRequested](w)
		require.Len(t, requested, 1)
		require.Equal(t, int32(1), requested[0].Generation)
		require.Equal(t, first.AttemptID, requested[0].AttemptID, "the attempt is the same")
		w.fold()
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
		w.fold()
		again := w.outbox(run, "a")
		require.Equal(t, state.DispatchCreated, again.Status)
		require.NotEqual(t, first.QueueTaskName, again.QueueTaskName, "a queue may refuse a used name")
		require.Equal(t, []string{first.QueueTaskName, again.QueueTaskName}, w.dispatches())
		w.succeed(run, "a")
	})
	t.Run("an outbox row is lost", func(t *testing.T) {
		w := newFixture(t)
		run := w.trigger(foldtest.Task("a"))
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
		w.fold()
		first := w.outbox(run, "a")
		w.loseRow(first)
		require.Nil(t, w.outbox(run, "a"))
		require.Equal(t, state.TaskDispatched, w.task(run, "a").State)
		w.loseQueue()
		// The row is restored with its first name, which the queue rejects because the name was used. When the queue
		// task is overdue and missing, the row gets the next name.
		w.sweep()
		w.fold()
		w.queue.remember(t, first.QueueTaskName)
		w.pass(control.PendingAge) // only after this time does this process create the same task again
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
		w.fold()
		acks := appended[*event.DispatchEnqueued](w)
		require.True(t, acks[len(acks)-1].Deduplicated)
		w.pass(fold.DispatchDeadline + time.Second)
		w.sweep()
		w.fold()
		require.Equal(t, int32(1), w.outbox(run, "a").Generation)
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
		require.Contains(t, w.dispatches(), w.outbox(run, "a").QueueTaskName)
		w.succeed(run, "a")
	})
	t.Run("the notification of a publish is lost", func(t *testing.T) {
		w := newFixture(t)
		run := w.trigger(foldtest.Task("a"))
		require.NoError(t, w.d.Reconcile(t.Context()))
		require.Empty(t, w.dispatches(), "a notified process gets time to act")
		w.pass(control.PendingAge)
		require.NoError(t, w.d.Reconcile(t.Context()))
		require.Len(t, w.dispatches(), 1)
		w.succeed(run, "a")
	})
	t.Run("a timer's call is lost", func(t *testing.T) {
		w := newFixture(t)
		run := w.trigger(foldtest.Retrying("a", 2))
		w.append(w.Finished(run, "a", 1, event.Failed))
		w.fold()
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
		w.fold()
		first := w.timers(event.TimerRetry)[0]
		w.pass(first.FireAt.Time().Sub(w.clock.Now()) + control.TimerGrace)
		w.sweep()
		require.Contains(t, w.queue.asked, first.QueueTaskName)
		require.Empty(t, appended[*event.TimerRequested](w))
		w.loseQueue()
		w.sweep()
		w.fold()
		again := w.timers(event.TimerRetry)[0]
		require.Equal(t, first.Generation+1, again.Generation)
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
		require.Contains(t, w.queue.names(control.TimerQueue), again.QueueTaskName)
		require.Equal(t, http.StatusOK, w.fire(again).status)
		w.fold()
		require.Equal(t, int32(2), w.task(run, "a").Attempt)
	})
}

// This test fails if the repairs of several tasks without a queue task are treated as one repair, because all of them
// name the queue task "".
func TestSweepRestoresAllLostRows(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"), foldtest.Task("b"), foldtest.Task("c"))
	require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
	w.fold()
	for _, key := range []string{"a", "b", "c"} {
		w.loseRow(w.outbox(run, key))
	}
	w.sweep()
	require.Len(t, appended[*event.DispatchRequested](w), 3)
}

func (w *fixture) sweep() {
	w.t.Helper()
	result, err := w.compactor.Compact(w.t.Context(), barrier)
	require.NoError(w.t, err)
	require.NoError(w.t, w.d.Sweep(w.t.Context(), result.Revision))
}

// loseQueue replaces the queue with an empty one that remembers no names.
func (w *fixture) loseQueue() { w.queue.Queue = localqueue.New(localqueue.Options{Clock: w.clock}) }

// remember makes the queue refuse a name, as after the deletion of a task with this name.
func (s *spool) remember(t *testing.T, name string) {
	t.Helper()
	queueName := s.tasks[0].Queue
	require.NoError(t, s.Create(t.Context(), queue.Task{Queue: queueName, Name: name, URL: "http://worker.example/execute"}))
	require.NoError(t, s.Delete(t.Context(), queueName, name))
}

// loseRow publishes a revision from which the given row of the outbox is missing. The fold never does that.
func (w *fixture) loseRow(row *state.Dispatch) {
	w.t.Helper()
	m, err := w.manifests.Load(w.t.Context())
	require.NoError(w.t, err)
	gone := *row
	gone.Deleted = true
	gone.Seq = m.FoldSeq + 1
	files, err := codec.Encode(state.Set(&state.Rows{}, []*state.Dispatch{&gone}))
	require.NoError(w.t, err)
	key := manifest.StateKey(acme, files[0].Table, manifest.TierL0, w.ids.New())
	object, err := w.blobs.Create(w.t.Context(), key, files[0].Data)
	require.NoError(w.t, err)
	next := m.Successor("a mishap")
	next.FoldSeq++
	next.L0 = append(next.L0, manifest.Delta{
		ID: w.ids.New(), Revision: next.Revision, Rows: 1, Bytes: object.Size,
		Files: []manifest.File{{Table: files[0].Table, Key: key, Size: object.Size, Rows: 1, CRC32C: object.CRC32C}},
	})
	next.L0Count = len(next.L0)
	require.NoError(w.t, w.manifests.Publish(w.t.Context(), next))
	w.compactor.c = w.open("after the mishap")
	w.snapshots.Snapshots = latest{w.compactor.c.Latest()}
}

func (w *fixture) succeed(run, key string) {
	w.t.Helper()
	attempt := w.task(run, key).Attempt
	require.Equal(w.t, http.StatusOK, w.report(w.callback(run, key, contract.VerbStarted, attempt)).status)
	require.Equal(w.t, http.StatusOK, w.report(w.callback(run, key, contract.VerbFinished, attempt)).status)
	w.fold()
	require.Equal(w.t, state.RunSucceeded, w.state().Runs.Get(run).State)
}

func TestDispatchIsASignedEnvelope(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
	task := w.queue.tasks[slices.IndexFunc(w.queue.tasks, func(t queue.Task) bool { return t.Queue != control.TimerQueue })]
	require.Equal(t, "http://worker.example/execute", task.URL)
	env, err := contract.Open(task.Body, keys, event.At(w.clock.Now()))
	require.NoError(t, err)
	require.Equal(t, run, env.RunID)
	require.Empty(t, env.Callbacks.Finished, "only a started attempt may finish")
	require.Greater(t, env.CausalToken, run)
	got := w.postAs(env.Callbacks.Started, env.Callbacks.Authorization.Started, contract.Started{AttemptID: env.AttemptID, WorkerID: "w1", StartedAt: event.At(w.clock.Now())})
	decoded[contract.StartedResponse](t, got)
}

// After each publish, the dispatcher receives the new state. Acknowledgements are folded later, so this state may still
// lack those of actions that the dispatcher has executed. HandOver must not repeat these actions.
func TestHandOverSkipsInFlightActions(t *testing.T) {
	w := newFixture(t)
	w.trigger(foldtest.Task("a"), foldtest.Task("b"))
	for range 3 {
		require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
	}
	require.Len(t, w.dispatches(), 2)
	require.Len(t, appended[*event.DispatchEnqueued](w), 2)

	// A hand-over repeats the action as soon as Reconcile would repeat it.
	w.pass(control.PendingAge)
	require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
	require.Len(t, w.dispatches(), 2)
	require.Len(t, appended[*event.DispatchEnqueued](w), 4)
}

func TestHandOverRetriesFailedActions(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	w.queue.failed = errors.New("away")
	require.ErrorContains(t, w.d.HandOver(t.Context(), w.revision(), false), "away")
	require.Empty(t, appended[*event.DispatchEnqueued](w))
	require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
	require.Equal(t, []string{w.outbox(run, "a").QueueTaskName}, w.dispatches(), "under the same name")
}

func TestTaskThatQueueRejectsFails(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	w.queue.failed = queue.ErrInvalid
	require.NoError(t, w.d.HandOver(t.Context(), w.revision(), false))
	w.fold()
	require.Equal(t, state.TaskFailed, w.task(run, "a").State)
	require.Equal(t, fold.CodeUndispatchable, w.task(run, "a").ErrorCode)
}

func TestHandOverAndNotificationOverHTTP(t *testing.T) {
	w := newFixture(t)
	w.trigger(foldtest.Task("a"))
	client := &dispatcher.Client{Domain: acme, URL: w.url, HTTP: http.DefaultClient}
	require.NoError(t, client.HandOver(t.Context(), w.revision(), false))
	require.Len(t, w.dispatches(), 1)

	run := w.trigger(foldtest.Task("b"))
	key := manifest.Key(acme, w.revision())
	push := map[string]any{"message": map[string]any{"attributes": map[string]string{"objectId": key}}}
	require.Equal(t, http.StatusOK, w.post(w.url+"/v1/notifications", push).status)
	require.Contains(t, w.dispatches(), w.outbox(run, "b").QueueTaskName)

	w.fold()
	w.pass(fold.DispatchDeadline + time.Second)
	w.loseQueue()
	require.NoError(t, client.HandOver(t.Context(), w.revision(), true))
	require.Len(t, appended[*event.DispatchRequested](w), 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, client.HandOver(ctx, 0, false))
	stranger := &dispatcher.Client{Domain: ids.Domain{Tenant: "globex", Workspace: "x"}, URL: w.url, HTTP: http.DefaultClient}
	require.ErrorContains(t, stranger.HandOver(t.Context(), 0, false), "404")
}

// Run executes the actions of a publish, and returns when its context is done.
func TestRunExecutesSubmittedActions(t *testing.T) {
	w := newFixture(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.d.Run(ctx) }()
	run := w.trigger(foldtest.Task("a"))
	snap, _ := w.compactor.c.Latest().Get()
	w.d.React(compactor.Published{Snapshot: snap, Changed: snap.State.All()})
	require.Eventually(t, func() bool { return len(appended[*event.DispatchEnqueued](w)) == 1 }, 10*time.Second, time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, []string{w.outbox(run, "a").QueueTaskName}, w.dispatches())
	var env contract.Envelope
	require.NoError(t, json.Unmarshal(w.queue.tasks[0].Body, &env))
}

// The envelope of a task that tolerates failures names the upstreams that did not succeed. The task must not read
// their outputs, even if they have committed some.
func TestDispatchNamesUpstreamsWithoutSuccess(t *testing.T) {
	w := newFixture(t)
	reader := foldtest.Task("reader", "failed", "good")
	reader.TriggerRule = event.RuleAllDone
	run := w.trigger(foldtest.Task("failed"), foldtest.Task("good"), reader, foldtest.Task("other", "good"))
	for _, key := range []string{"failed", "good"} {
		w.append(w.Finished(run, key, 1, map[bool]event.Outcome{true: event.Succeeded, false: event.Failed}[key == "good"]))
	}
	w.fold()
	require.NoError(t, w.d.Execute(t.Context(), w.snapshot(), w.react()))
	sent := map[string]contract.Without{}
	for _, task := range w.queue.created() {
		env, err := contract.DecodeEnvelope(task.Body)
		require.NoError(t, err)
		sent[env.TaskKey] = env.Without
	}
	require.Equal(t, contract.WithoutTasks([]string{"failed"}), sent["reader"])
	require.Contains(t, sent, "other")
	require.Empty(t, sent["other"])
}
