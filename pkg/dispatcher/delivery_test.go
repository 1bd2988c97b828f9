package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// asking sets InProcessQueue and returns a function that prepares a delivery of the only queue task.
func (w *fixture) asking() func() (env *contract.Envelope, wanted bool) {
	w.t.Helper()
	task := w.asked()
	return func() (*contract.Envelope, bool) {
		body, wanted, err := task.Prepare(w.t.Context())
		require.NoError(w.t, err)
		if !wanted {
			return nil, false
		}
		env, err := contract.Open(body, keys, event.At(w.clock.Now()))
		require.NoError(w.t, err)
		return env, true
	}
}

// asked sets InProcessQueue, and returns the only queue task of an attempt.
func (w *fixture) asked() queue.Task {
	w.t.Helper()
	w.d.Change(func(c *dispatcher.Config) { c.InProcessQueue = true })
	require.NoError(w.t, w.d.HandOver(w.t.Context(), w.revision(), false))
	return w.queue.tasks[slices.IndexFunc(w.queue.tasks, func(t queue.Task) bool { return t.Queue != control.TimerQueue })]
}

// end returns the encoded body of the finished callback of a task's first attempt.
func (w *fixture) end(run string, change func(*contract.Finished)) []byte {
	w.t.Helper()
	body, _ := w.body(w.callback(run, "a", contract.VerbFinished, 1)).(contract.Finished)
	change(&body)
	data, err := json.Marshal(body)
	require.NoError(w.t, err)
	return data
}

func TestPreparedDeliveryIsAdmittedAndMayFinish(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	task := w.asked()
	data, wanted, err := task.Prepare(t.Context())
	require.NoError(t, err)
	require.True(t, wanted)
	env, err := contract.Open(data, keys, event.At(w.clock.Now()))
	require.NoError(t, err)
	require.Equal(t, event.At(w.clock.Now().Add(time.Second)), env.AdmittedUntil)
	require.Empty(t, env.Callbacks.Finished, "a worker that needs it gets it in the answer to started")

	require.NoError(t, task.OnResponse(t.Context(), nil))
	w.fold()
	require.Equal(t, state.TaskDispatched, w.task(run, "a").State, "an empty answer changes nothing")
	require.NoError(t, task.OnResponse(t.Context(), w.end(run, func(*contract.Finished) {})))
	w.fold()
	require.Equal(t, state.TaskSucceeded, w.task(run, "a").State)
}

func TestAnswerOfAnotherAttemptChangesNothing(t *testing.T) {
	for name, change := range map[string]func(*contract.Finished){
		"another attempt":  func(f *contract.Finished) { f.AttemptID = ids.AttemptID(acme, f.AttemptID, "a", 1) },
		"without outcome":  func(f *contract.Finished) { f.Outcome = "" },
		"another's output": func(f *contract.Finished) { f.Output = &event.Output{URI: "assets/elsewhere/"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			run := w.trigger(foldtest.Task("a"))
			task := w.asked()
			require.NoError(t, task.OnResponse(t.Context(), w.end(run, change)), "a redelivery would not help")
			w.fold()
			require.Equal(t, state.TaskDispatched, w.task(run, "a").State)
		})
	}
}

func TestUnrecordedAnswerIsRedelivered(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	task := w.asked()
	w.d.Change(func(c *dispatcher.Config) { c.Snapshots = broken{} })
	require.ErrorContains(t, task.OnResponse(t.Context(), w.end(run, func(*contract.Finished) {})), "away")
}

func TestPrepareSkipsEndedAttempt(t *testing.T) {
	w := newFixture(t)
	run := w.trigger(foldtest.Task("a"))
	ask := w.asking()
	w.append(&event.RunCancelRequested{RunID: run, Reason: "enough"})
	w.fold()
	_, wanted := ask()
	require.False(t, wanted)
}

// A delivery does not admit a task of a pool. Otherwise, if the task were then cancelled, the pool could grant its slot
// to another task while the worker is still killing the cancelled one.
func TestPooledTaskIsNotAdmittedAtDelivery(t *testing.T) {
	w := newFixture(t)
	def := foldtest.Task("a")
	def.Pool = "api"
	w.trigger(def)
	env, wanted := w.asking()()
	require.True(t, wanted)
	require.Zero(t, env.AdmittedUntil)
	require.Empty(t, env.Callbacks.Finished, "only a started attempt may finish")
}

func TestReportedStartIsNotAfterTheEnd(t *testing.T) {
	for _, started := range []event.Time{0, event.At(foldtest.Epoch.Add(time.Hour))} {
		w := newFixture(t)
		run := w.trigger(foldtest.Task("a"))
		require.NoError(t, w.asked().OnResponse(t.Context(), w.end(run, func(f *contract.Finished) { f.StartedAt = started })))
		w.fold()
		require.Equal(t, event.At(w.clock.Now()).Sub(w.task(run, "a").StartedAt).Truncate(time.Second), time.Duration(0))
	}
}

func TestPrepareWithoutSnapshotAdmitsNothing(t *testing.T) {
	w := newFixture(t)
	w.trigger(foldtest.Task("a"))
	ask := w.asking()
	w.d.Change(func(c *dispatcher.Config) { c.Snapshots = broken{} })
	env, wanted := ask()
	require.True(t, wanted)
	require.Zero(t, env.AdmittedUntil)
	require.Empty(t, env.Callbacks.Finished)
}

// broken returns errors instead of snapshots.
type broken struct{ dispatcher.Snapshots }

func (broken) Current(context.Context) (*snapshot.Snapshot, error) { return nil, errors.New("away") }
