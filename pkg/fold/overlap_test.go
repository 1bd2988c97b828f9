package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// If too many requests of the domain wait to be planned, a tick cannot start. Then the tick must not end the live
// run, which it would have replaced: otherwise no run would be live.
func TestDroppedTickEndsNoRun(t *testing.T) {
	for policy, want := range map[string]state.TickOutcome{
		event.OverlapCancelOther: state.TickDropped, event.OverlapTerminateOther: state.TickDropped,
		event.OverlapAllowAll: state.TickDropped, event.OverlapSkip: state.TickSkipped, event.OverlapBufferAll: state.TickBuffered,
	} {
		t.Run(policy, func(t *testing.T) {
			w := newTicking(t, event.Schedule{Overlap: policy})
			w.minutes(1, func(int) (int, bool) { return 0, false })
			require.Equal(t, state.RunRunning, w.RunState(w.runs[0]))
			for i := range state.MaxPending {
				id := fmt.Sprintf("at:%d", i)
				w.State.Requests.Put(&state.RunRequest{
					RequestID: id, Spec: "{}", State: state.RequestPending, CreatedAt: event.At(w.Now), ReleasedAt: event.At(w.Now),
					RunID: ids.RequestedRunID(foldtest.Domain, id, w.Now),
				})
			}
			w.Pass(minute)
			w.MustFold(w.Fire(w.Timer(event.TimerWake)))
			tick := w.State.Ticks.Get(w.row().LastTick)
			require.Equal(t, want, tick.Outcome, tick.Detail)
			require.Equal(t, state.RunRunning, w.RunState(w.runs[0]))
		})
	}
}

// steady lets time pass for a schedule with the policy allow_all. Each run takes three minutes, so at least one run
// is always live.
func (w *ticking) steady(minutes int) {
	w.t.Helper()
	for range minutes {
		w.minutes(1, func(int) (int, bool) { return 0, false })
		for _, id := range w.runs {
			if run := w.State.Runs.Get(id); !run.State.Terminal() && event.At(w.Now).Sub(run.CreatedAt) >= 3*minute {
				w.finish(id, event.Succeeded)
				w.automate()
			}
		}
		live, _ := w.State.ActiveOf("clock")
		require.NotEmpty(w.t, live)
	}
}

// command folds a command about the schedule. For a backfill, instants are minutes relative to now.
func (w *ticking) command(verb, id, overlap string, instants ...int) {
	w.t.Helper()
	p := &event.AutomationCommand{CommandID: id, Target: event.TargetSchedule, Name: "clock", Verb: verb, Overlap: overlap}
	for _, n := range instants {
		p.Instants = append(p.Instants, event.At(w.Now.Truncate(minute).Add(time.Duration(n)*minute)))
	}
	w.MustFold(p)
	w.automate()
}

// Under allow_all, there may always be a live run. So a buffered tick must not wait for runs of later ticks, or it
// might never start. It must wait for earlier buffered ticks.
func TestI27BufferedTicksOfAllowAllNeverStarve(t *testing.T) {
	for name, c := range map[string]struct {
		first string // the schedule's policy at the time when the ticks are buffered
		act   func(w *ticking)
	}{
		"backfill": {event.OverlapAllowAll, func(w *ticking) {
			w.command(event.VerbBackfill, w.ID(), "", -6, -5, -4)
		}},
		"two backfills": {event.OverlapAllowAll, func(w *ticking) {
			late := w.ID() // the command with the smaller id is appended later
			w.Pass(time.Second)
			w.command(event.VerbBackfill, w.ID(), "", -3)
			w.command(event.VerbBackfill, late, "", -4)
		}},
		"trigger": {event.OverlapAllowAll, func(w *ticking) {
			w.command(event.VerbTrigger, w.ID(), event.OverlapBufferOne)
		}},
		"triggers": {event.OverlapAllowAll, func(w *ticking) {
			w.command(event.VerbTrigger, w.ID(), event.OverlapBufferAll)
			w.Pass(time.Second)
			w.command(event.VerbTrigger, w.ID(), event.OverlapBufferAll)
		}},
		"deployment": {event.OverlapBufferAll, func(w *ticking) {
			w.spec.Overlap = event.OverlapAllowAll
			w.deploy()
			w.automate()
			w.define()
			w.automate()
			require.Nil(w.t, w.State.SchedulesPending())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTicking(t, event.Schedule{Overlap: c.first})
			from := w.Now.Add(minute / 2)
			w.minutes(3, func(int) (int, bool) { return 0, false })
			c.act(w)
			var waiting []string
			for tick := range w.State.Ticks.All {
				if tick.Outcome == state.TickBuffered {
					waiting = append(waiting, tick.TickID)
				}
			}
			require.NotEmpty(t, waiting)
			w.steady(16)
			t.Log("\n" + w.diagram(from, 40))
			last := event.Time(0)
			for _, id := range waiting {
				run := w.State.Runs.Get(w.State.Ticks.Get(id).RunID)
				require.NotNil(t, run, "tick %s has no run", id)
				require.Equal(t, state.RunSucceeded, run.State)
				require.GreaterOrEqual(t, run.CreatedAt, last, "two buffered ticks ran at once")
				last = run.CompletedAt
			}
			_, buffered := w.State.BufferedOf("clock")
			require.Zero(t, buffered)
		})
	}
}
