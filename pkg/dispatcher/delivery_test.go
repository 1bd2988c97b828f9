package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/pkg/contract"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/dispatcher"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold/foldtest"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/queue"
	"github.com/servo-orchestration/servo/pkg/snapshot"
	"github.com/servo-orchestration/servo/pkg/state"
)

// asking makes the dispatcher one whose queue asks before it delivers, and gives what
// the queue is told of the only task that it has.
func (w *world) asking() func() (env *contract.Envelope, wanted bool) {
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

// asked is the only task that the queue has, of a dispatcher whose queue asks.
func (w *world) asked() queue.Task {
	w.t.Helper()
	w.d.QueueAsks = true
	require.NoError(w.t, w.d.HandOver(w.t.Context(), w.revision(), false))
	return w.queue.tasks[slices.IndexFunc(w.queue.tasks, func(t queue.Task) bool { return t.Queue != control.TimerQueue })]
}

// end is the report of the end of a task's first attempt.
func (w *world) end(run string, change func(*contract.Finished)) []byte {
	w.t.Helper()
	body, _ := w.body(w.callback(run, "a", contract.VerbFinished, 1)).(contract.Finished)
	change(&body)
	data, err := json.Marshal(body)
	require.NoError(w.t, err)
	return data
}

func TestAQueueThatAsksDeliversAdmittedAttemptsWhoseAnswerMayTellOfTheEnd(t *testing.T) {
	w := newWorld(t)
	run := w.trigger(foldtest.Task("a"))
	task := w.asked()
	data, wanted, err := task.Prepare(t.Context())
	require.NoError(t, err)
	require.True(t, wanted)
	env, err := contract.Open(data, keys, event.At(w.clock.Now()))
	require.NoError(t, err)
	require.Equal(t, event.At(w.clock.Now().Add(time.Second)), env.AdmittedUntil)
	require.Empty(t, env.Callbacks.Finished, "who needs it is told when he tells of the start")

	require.NoError(t, task.Answered(t.Context(), nil))
	w.fold()
	require.Equal(t, state.TaskDispatched, w.task(run, "a").State, "an answer without a report says nothing")
	require.NoError(t, task.Answered(t.Context(), w.end(run, func(*contract.Finished) {})))
	w.fold()
	require.Equal(t, state.TaskSucceeded, w.task(run, "a").State)
}

func TestAnAnswerThatIsNoReportOfTheAttemptChangesNothing(t *testing.T) {
	for name, change := range map[string]func(*contract.Finished){
		"of another attempt": func(f *contract.Finished) { f.AttemptID = ids.AttemptID(domain, f.AttemptID, "a", 1) },
		"no outcome":         func(f *contract.Finished) { f.Outcome = "" },
		"another's output":   func(f *contract.Finished) { f.Output = &event.Output{URI: "assets/elsewhere/"} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			run := w.trigger(foldtest.Task("a"))
			task := w.asked()
			require.NoError(t, task.Answered(t.Context(), w.end(run, change)), "it would be no better the next time")
			w.fold()
			require.Equal(t, state.TaskDispatched, w.task(run, "a").State)
		})
	}
}

func TestAnAnswerThatCannotBeKeptIsDeliveredAgain(t *testing.T) {
	w := newWorld(t)
	run := w.trigger(foldtest.Task("a"))
	task := w.asked()
	w.d.Snapshots = broken{}
	require.ErrorContains(t, task.Answered(t.Context(), w.end(run, func(*contract.Finished) {})), "away")
}

func TestAQueueThatAsksDeliversNoAttemptThatMayNotBegin(t *testing.T) {
	w := newWorld(t)
	run := w.trigger(foldtest.Task("a"))
	ask := w.asking()
	w.append(&event.RunCancelRequested{RunID: run, Reason: "enough"})
	w.fold()
	_, wanted := ask()
	require.False(t, wanted)
}

// Else its slot could be given away while it is killed.
func TestATaskOfAPoolIsNotAdmittedWithItsDelivery(t *testing.T) {
	w := newWorld(t)
	def := foldtest.Task("a")
	def.Pool = "api"
	w.trigger(def)
	env, wanted := w.asking()()
	require.True(t, wanted)
	require.Zero(t, env.AdmittedUntil)
	require.Empty(t, env.Callbacks.Finished, "only a started attempt may finish")
}

func TestAStartThatOnlyTheEndTellsOfIsNotLaterThanThat(t *testing.T) {
	for _, started := range []event.Time{0, event.At(foldtest.Epoch.Add(time.Hour))} {
		w := newWorld(t)
		run := w.trigger(foldtest.Task("a"))
		require.NoError(t, w.asked().Answered(t.Context(), w.end(run, func(f *contract.Finished) { f.StartedAt = started })))
		w.fold()
		require.Equal(t, event.At(w.clock.Now()).Sub(w.task(run, "a").StartedAt).Truncate(time.Second), time.Duration(0))
	}
}

func TestAQueueThatAsksWhenNobodyKnowsDeliversWhatTheWorkerHasToAskFor(t *testing.T) {
	w := newWorld(t)
	w.trigger(foldtest.Task("a"))
	ask := w.asking()
	w.d.Snapshots = broken{}
	env, wanted := ask()
	require.True(t, wanted)
	require.Zero(t, env.AdmittedUntil)
	require.Empty(t, env.Callbacks.Finished)
}

// broken are snapshots that cannot be read.
type broken struct{ dispatcher.Snapshots }

func (broken) Current(context.Context) (*snapshot.Snapshot, error) { return nil, errors.New("away") }
