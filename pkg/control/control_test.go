package control_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// busy returns a world with a dispatch and a timer in each state, and the id of its run.
func busy(t *testing.T) (*foldtest.World, string) {
	t.Helper()
	w := foldtest.New(t)
	run := w.Run(
		foldtest.Task("created"), foldtest.Task("pending"), foldtest.Retrying("retrying", 2), foldtest.Task("running"),
	)
	w.MustFold(enqueued(run, "created"))
	w.MustFold(w.Started(run, "running", 1))
	w.MustFold(w.Finished(run, "retrying", 1, event.Failed))
	return w, run
}

func enqueued(run, key string) *event.DispatchEnqueued {
	return &event.DispatchEnqueued{DispatchID: ids.DispatchID(run, key, 1), RunID: run, TaskKey: key, Attempt: 1}
}

// describe returns the actions as text.
func describe(actions []control.Action) []string {
	var words []string
	for _, a := range actions {
		switch a := a.(type) {
		case control.CreateDispatch:
			words = append(words, "create dispatch "+a.Row.TaskKey+acknowledged(a.Acknowledge))
		case control.DeleteDispatch:
			words = append(words, "delete dispatch "+a.Row.TaskKey)
		case control.CreateTimer:
			words = append(words, "create timer "+a.Row.TimerType+acknowledged(a.Acknowledge))
		case control.DeleteTimer:
			words = append(words, "delete timer "+a.Row.TimerType)
		case control.Redispatch:
			words = append(words, "redispatch "+a.Request.TaskKey)
		case control.Retime:
			words = append(words, "retime "+a.Request.TimerType)
		}
	}
	return words
}

func acknowledged(yes bool) string {
	if yes {
		return ""
	}
	return ", quietly"
}

func reactTo(w *foldtest.World) []control.Action {
	changed := w.State.Changed()
	return control.React(state.List[state.Dispatch](changed), state.List[state.Timer](changed), event.At(w.Now))
}

// INV-3: the same snapshot yields the same actions. The test fails if the generation of a request depends on the
// order of a map.
func TestINV3ControllerDeterminism(t *testing.T) {
	w, run := busy(t)
	lost := *w.State.Outbox.Get(ids.DispatchID(run, "pending", 1))
	lost.Deleted = true
	w.State.Outbox.Put(&lost)
	reloaded := state.New(foldtest.Domain)
	reloaded.Load(w.State.All())
	now := event.At(w.Now.Add(time.Hour))

	for name, controller := range map[string]func(*state.State, event.Time) []control.Action{
		"Dispatch": control.Dispatch, "Timers": control.Timers, "Sweep": control.Sweep, "Refill": control.Refill,
	} {
		first := controller(w.State, now)
		for range 20 {
			require.Equal(t, first, controller(w.State.Copy(), now), name)
			require.Equal(t, first, controller(reloaded, now), "%s, of a reloaded state", name)
		}
		require.Equal(t, names(first), names(controller(w.State, now.Add(time.Hour))), "%s: the same names later", name)
	}
	require.Equal(t, reactTo(w), reactTo(w))
}

// names returns the names and keys that make actions idempotent: the names of queue tasks, and the
// natural keys of ledger events.
func names(actions []control.Action) []string {
	var found []string
	for _, a := range actions {
		name := a.Name()
		switch a := a.(type) {
		case control.Redispatch:
			name += " " + a.Request.Key()
		case control.Retime:
			name += " " + a.Request.Key()
		}
		found = append(found, name)
	}
	return found
}

// This is the part of INV-5 that depends on the controllers only: Sweep finds every lost dispatch and timer. The test
// fails if Sweep ignores tasks without an outbox row, or if the fold rejects a DispatchRequested event for such a
// task.
func TestINV5NoLostWork(t *testing.T) {
	for name, before := range map[string]func(w *foldtest.World, run string){
		"ready":      func(*foldtest.World, string) {},
		"dispatched": func(w *foldtest.World, run string) { w.MustFold(enqueued(run, "a")) },
	} {
		w := foldtest.New(t)
		run := w.Run(foldtest.Task("a"), foldtest.Task("b", "a"))
		before(w, run)
		whole := *w.State.Outbox.Get(ids.DispatchID(run, "a", 1))
		lost := whole
		lost.Deleted = true
		w.State.Outbox.Put(&lost)

		sweep := control.Sweep(w.State, event.At(w.Now))
		require.Equal(t, []string{"redispatch a"}, describe(sweep), name)
		require.Empty(t, sweep[0].Name(), "the attempt has no queue task")
		w.MustFold(sweep[0].(control.Redispatch).Request)
		repaired := w.State.Outbox.Get(whole.DispatchID)
		require.NotNil(t, repaired, name)
		require.Equal(t, []any{state.DispatchPending, whole.AttemptID, whole.QueueTaskName},
			[]any{repaired.Status, repaired.AttemptID, repaired.QueueTaskName}, "the same attempt, under the same name")
		require.Equal(t, []string{"create dispatch a"}, describe(control.React([]*state.Dispatch{repaired}, nil, event.At(w.Now))))
		require.Empty(t, control.Sweep(w.State, event.At(w.Now)), "%s: already repaired", name)
		w.MustFold(w.Finished(run, "a", 1, event.Succeeded))
		require.Equal(t, []string{"a=SUCCEEDED", "b=READY"}, w.States(run))
	}
}

func TestReactActsOnPublishedRows(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *foldtest.World, run string)
		want   []string
	}{
		"a new task": {
			func(w *foldtest.World, _ string) { w.Run(foldtest.Task("new")) }, []string{"create dispatch new"},
		},
		"a task that started in the same publish": {
			func(w *foldtest.World, _ string) { w.MustFold(w.Started(w.Run(foldtest.Task("new")), "new", 1)) }, nil,
		},
		"an acknowledgement": {
			func(w *foldtest.World, run string) { w.MustFold(enqueued(run, "pending")) }, nil,
		},
		"a new generation": {
			func(w *foldtest.World, run string) {
				row := w.State.Outbox.Get(ids.DispatchID(run, "created", 1))
				w.MustFold(&event.DispatchRequested{
					RunID: run, TaskKey: "created", Attempt: 1, AttemptID: row.AttemptID, DispatchID: row.DispatchID, Generation: 1,
				})
			}, []string{"create dispatch created"},
		},
		"a failure": {
			func(w *foldtest.World, run string) {
				p := w.Finished(run, "running", 1, event.Failed)
				p.Error.Retryable = false
				w.MustFold(p)
			}, nil,
		},
		"a cancel": {
			func(w *foldtest.World, run string) { w.MustFold(&event.RunCancelRequested{RunID: run}) },
			[]string{"delete dispatch created", "delete dispatch pending", "create timer LIVENESS", "delete timer LIVENESS", "delete timer RETRY"},
		},
		"a timer that fired": {
			func(w *foldtest.World, _ string) {
				timer := w.Timer(event.TimerRetry)
				w.Now = timer.FireAt.Time()
				w.MustFold(w.Fire(timer))
			}, []string{"create dispatch retrying"},
		},
		"a timer called early": {
			func(w *foldtest.World, _ string) { w.MustFold(w.Fire(w.Timer(event.TimerRetry))) }, []string{"create timer RETRY"},
		},
		"a timer that was enqueued": {
			func(w *foldtest.World, _ string) {
				w.MustFold(&event.TimerEnqueued{TimerID: w.Timer(event.TimerRetry).TimerID})
			}, nil,
		},
	} {
		w, run := busy(t)
		w.State.Drain()
		c.change(w, run)
		require.Equal(t, c.want, describe(reactTo(w)), name)
	}
}

func TestDispatchTakesOverPendingRows(t *testing.T) {
	w, _ := busy(t)
	at := func(d time.Duration) []string { return describe(control.Dispatch(w.State, event.At(w.Now.Add(d)))) }
	require.Empty(t, at(control.PendingAge-time.Microsecond), "their publisher is still dispatching them")
	require.Equal(t, []string{"create dispatch pending"}, at(control.PendingAge))
}

func TestTimersTakesOverPendingTimers(t *testing.T) {
	w, _ := busy(t)
	at := func(d time.Duration) []string { return describe(control.Timers(w.State, event.At(w.Now.Add(d)))) }
	require.Empty(t, at(control.PendingAge-time.Microsecond))
	require.Equal(t, []string{"create timer LIVENESS", "create timer RETRY"}, at(control.PendingAge))
	w.MustFold(&event.TimerEnqueued{TimerID: w.Timer(event.TimerRetry).TimerID})
	require.Equal(t, []string{"create timer LIVENESS"}, at(control.PendingAge))
}

func TestFarTimerUsesHops(t *testing.T) {
	const day = 24 * time.Hour
	w := foldtest.New(t)
	far := &event.TimerRequested{TimerID: "timer:cron:x:1", TimerType: foldtest.TimerOther, FireAt: event.At(w.Now.Add(70 * day))}
	w.MustFold(far)
	for hops := 0; ; hops++ {
		w.Pass(control.PendingAge)
		actions := control.Timers(w.State, event.At(w.Now))
		require.Len(t, actions, 1)
		create := actions[0].(control.CreateTimer)
		w.MustFold(&event.TimerEnqueued{TimerID: far.TimerID, Generation: create.Row.Generation, HopAt: create.HopAt})
		if create.HopAt == 0 {
			require.Equal(t, 2, hops)
			require.LessOrEqual(t, far.FireAt.Sub(event.At(w.Now)), 30*day)
			return
		}
		require.Less(t, create.HopAt.Sub(event.At(w.Now)), 30*day)
		late := create.HopAt.Add(control.TimerGrace)
		require.Empty(t, control.Sweep(w.State, late-1))
		require.Equal(t, []string{"retime OTHER"}, describe(control.Sweep(w.State, late)), "a lost hop is a lost timer")
		w.Now = create.HopAt.Time()
		w.MustFold(w.Fire(w.Timer(foldtest.TimerOther)))
	}
}

func TestSweepChecksDispatchedButNeverStarted(t *testing.T) {
	w, run := busy(t)
	w.MustFold(enqueued(run, "pending"))
	w.MustFold(&event.TimerEnqueued{TimerID: w.Timer(event.TimerRetry).TimerID})
	w.MustFold(&event.TimerEnqueued{TimerID: w.Timer(event.TimerLiveness).TimerID})
	require.Empty(t, control.Sweep(w.State, event.At(w.Now)))
	actions := control.Sweep(w.State, event.At(w.Now.Add(fold.DispatchDeadline)))
	require.Equal(t, []string{"redispatch created", "redispatch pending", "retime LIVENESS", "retime RETRY"}, describe(actions))
	row := w.State.Outbox.Get(ids.DispatchID(run, "created", 1))
	require.Equal(t, control.Redispatch{Queue: "default", QueueTaskName: row.QueueTaskName, Request: &event.DispatchRequested{
		RunID: run, TaskKey: "created", Attempt: 1, AttemptID: row.AttemptID, DispatchID: row.DispatchID, Generation: 1,
		WorkerQueue: "default",
	}}, actions[0])
	for _, a := range actions {
		switch a := a.(type) {
		case control.Redispatch:
			w.MustFold(a.Request)
		case control.Retime:
			w.MustFold(a.Request)
		}
	}
	require.Equal(t, []string{"create dispatch created", "create dispatch pending", "create timer LIVENESS", "create timer RETRY"},
		describe(control.Sweep(w.State, event.At(w.Now.Add(fold.DispatchDeadline)))), "each is created again")
}

func TestSweepRestoresMissingLivenessTimer(t *testing.T) {
	w, _ := busy(t)
	lost := *w.Timer(event.TimerLiveness)
	lost.Deleted = true
	w.State.Timers.Put(&lost)
	actions := control.Sweep(w.State, event.At(w.Now))
	require.Equal(t, []string{"retime LIVENESS"}, describe(actions))
	require.Empty(t, actions[0].Name())
	require.NoError(t, event.Validate(w.Event(actions[0].(control.Retime).Request)))
	w.MustFold(actions[0].(control.Retime).Request)
	require.NotNil(t, w.Timer(event.TimerLiveness))
	require.Empty(t, control.Sweep(w.State, event.At(w.Now)))
}

func TestSweepOfIdleDomainIsEmpty(t *testing.T) {
	w, run := busy(t)
	w.MustFold(&event.RunCancelRequested{RunID: run, Force: true})
	require.Empty(t, control.Sweep(w.State, event.At(w.Now.Add(1000*time.Hour))))
}

func TestRefillRestoresQueue(t *testing.T) {
	w, run := busy(t)
	before := *w.State.Outbox.Get(ids.DispatchID(run, "pending", 1))
	w.MustFold(&event.TimerEnqueued{TimerID: w.Timer(event.TimerRetry).TimerID})
	ended := w.Run(foldtest.Task("ended"))
	w.MustFold(w.Finished(ended, "ended", 1, event.Succeeded))
	actions := control.Refill(w.State, event.At(w.Now))
	require.Equal(t, []string{
		"create dispatch created, quietly", "create dispatch pending", "create dispatch running, quietly",
		"create timer LIVENESS", "create timer RETRY, quietly",
	}, describe(actions))

	w.MustFold(w.Started(run, "pending", 1))
	for _, a := range control.Refill(w.State, event.At(w.Now)) {
		create, ok := a.(control.CreateDispatch)
		if !ok || create.Row.TaskKey != "pending" {
			continue
		}
		row := *create.Row
		row.Status, row.CreatedAt, row.Meta = before.Status, before.CreatedAt, before.Meta
		require.Equal(t, before, row, "the dispatch of a running attempt is unchanged")
	}
}
