package fold_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/control"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/fold"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// requested returns a world and its only request, which waits to be planned.
func requested(t foldtest.TB) (*foldtest.World, *state.RunRequest) {
	t.Helper()
	w := foldtest.New(t)
	command := w.ID()
	w.MustFold(&event.RunRequested{CommandID: command, At: event.At(w.Now.Add(time.Hour)), Run: event.RunSpec{All: true}})
	w.Pass(time.Hour)
	w.MustFold(w.Fire(w.Timer(event.TimerWake)))
	return w, w.State.Requests.Get("at:" + command)
}

func planOf(w *foldtest.World, r *state.RunRequest) []event.Payload {
	return w.Triggered(&event.RunTriggered{RunID: r.RunID, RequestID: r.RequestID}, foldtest.Task("a"))
}

func cancelled(w *foldtest.World, r *state.RunRequest) *event.AutomationCommand {
	return &event.AutomationCommand{CommandID: w.ID(), Target: event.TargetRequest, Name: r.RequestID, Verb: event.VerbCancel}
}

func TestRequestBecomesOneRun(t *testing.T) {
	w, r := requested(t)
	require.Equal(t, state.RequestPending, r.State)
	require.Equal(t, ids.RequestedRunID(foldtest.Domain, r.RequestID, r.ReleasedAt.Time()), r.RunID)
	require.GreaterOrEqual(t, ids.Time(r.RunID), w.Now.Truncate(time.Millisecond))

	first, second := w.Group(planOf(w, r)...), w.Group(planOf(w, r)...) // two automators have planned the request
	require.Equal(t, state.Folded, w.Apply(first).Row.Outcome)
	require.Equal(t, state.NoChange, w.Apply(second).Row.Outcome)
	require.Equal(t, state.RequestStarted, w.State.Requests.Get(r.RequestID).State)

	other := w.Triggered(&event.RunTriggered{RequestID: r.RequestID}, foldtest.Task("a"))
	result := w.Fold(other...)
	require.Equal(t, state.Stale, result.Row.Outcome)
	require.Contains(t, result.Row.Detail, "has become run "+r.RunID)
	require.Equal(t, 1, w.State.Runs.Len())
}

func TestCancelledRequestMakesGroupStale(t *testing.T) {
	w, r := requested(t)
	group := planOf(w, r)
	w.MustFold(cancelled(w, r))
	require.Equal(t, state.Stale, w.Fold(group...).Row.Outcome)
	require.Zero(t, w.State.Runs.Len(), "neither the run nor its plan")
	require.Equal(t, state.Stale, w.Fold(cancelled(w, r)).Row.Outcome)
}

func TestUnknownRequestIsStaleExceptInBareRebuild(t *testing.T) {
	for bare, want := range map[bool]state.EntryOutcome{false: state.Stale, true: state.Folded} {
		w, r := requested(t)
		empty := foldtest.New(t)
		empty.Now = w.Now
		g := empty.Group(planOf(empty, r)...)
		g.Bare = bare
		require.Equal(t, want, empty.Apply(g).Row.Outcome)
	}
}

func TestBareRebuildNeverAdoptsCancelledRequest(t *testing.T) {
	_, r := requested(t)
	w := foldtest.New(t)
	for _, want := range []struct {
		outcome  state.EntryOutcome
		payloads []event.Payload
	}{{state.Folded, []event.Payload{cancelled(w, r)}}, {state.Stale, planOf(w, r)}} {
		g := w.Group(want.payloads...)
		g.Bare = true
		require.Equal(t, want.outcome, w.Apply(g).Row.Outcome)
	}
	require.Zero(t, w.State.Runs.Len())
}

// The cancel command precedes the trigger of the run in the order of entry names. But it was originally folded too
// late, after the run had begun: a worker's report proves that the run was executed.
func TestBareRebuildKeepsExecutedRunOfCancelledRequest(t *testing.T) {
	_, r := requested(t)
	w := foldtest.New(t)
	cancel := w.Group(cancelled(w, r))
	cancel.Bare = true
	require.Equal(t, state.Folded, w.Apply(cancel).Row.Outcome)
	run := w.Group(planOf(w, r)...)
	run.Bare, run.Proven = true, true
	require.Equal(t, state.Folded, w.Apply(run).Row.Outcome)
	require.False(t, w.State.Runs.Get(r.RunID).State.Terminal())
	require.Equal(t, state.RequestStarted, w.State.Requests.Get(r.RequestID).State)
}

func TestBareRebuildKeepsLastRunOfRequest(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		_, r := requested(t)
		w := foldtest.New(t)
		later := *r
		later.RunID = ids.RequestedRunID(foldtest.Domain, r.RequestID, r.ReleasedAt.Time().Add(time.Minute))
		for _, i := range order {
			g := w.Group(planOf(w, []*state.RunRequest{r, &later}[i])...)
			g.Bare = true
			w.Apply(g)
		}
		require.Equal(t, later.RunID, w.State.Requests.Get(r.RequestID).RunID)
		require.False(t, w.State.Runs.Get(later.RunID).State.Terminal())
		if order[0] == 0 {
			require.Equal(t, state.RunCancelled, w.State.Runs.Get(r.RunID).State)
		}
	}
}

func TestRefusedRequestIsTriedAgain(t *testing.T) {
	w, r := requested(t)
	refused := func(r *state.RunRequest, retryable bool) *event.RequestRefused {
		return &event.RequestRefused{
			RequestID: r.RequestID, Generation: r.Generation, Error: event.Error{Code: "X", Message: "why", Retryable: retryable},
		}
	}
	before := *r
	delays := []time.Duration{}
	for range fold.MaxRequestTries {
		w.MustFold(refused(r, true))
		r = w.State.Requests.Get(r.RequestID)
		require.Equal(t, state.RequestWaiting, r.State)
		delays = append(delays, r.NextAt.Sub(event.At(w.Now)))
		w.Now = w.Timer(event.TimerWake).FireAt.Time()
		w.MustFold(w.Fire(w.Timer(event.TimerWake)))
		r = w.State.Requests.Get(r.RequestID)
	}
	require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second}, delays[:3])
	require.Equal(t, 10*time.Minute, delays[len(delays)-1])
	require.Greater(t, r.RunID, before.RunID, "its run is later than runs that started meanwhile")
	require.Equal(t, state.Stale, w.Fold(planOf(w, &before)...).Row.Outcome, "a planner of the first try is too late")
	require.Equal(t, state.Stale, w.Fold(refused(&before, false)).Row.Outcome)

	w.MustFold(refused(r, true))
	require.Equal(t, state.RequestRefused, w.State.Requests.Get(r.RequestID).State)
	require.Nil(t, w.Timer(event.TimerWake), "nothing is left to wait for")
}

func TestCommandOfRequestWorksOnce(t *testing.T) {
	w := foldtest.New(t)
	p := &event.RunRequested{CommandID: w.ID(), At: event.At(w.Now.Add(time.Minute)), Run: event.RunSpec{All: true}}
	w.MustFold(p)
	require.Equal(t, state.NoChange, w.Fold(p).Row.Outcome)
	w.Pass(31 * time.Minute)
	require.Equal(t, state.Stale, w.Fold(p).Row.Outcome, "its row may be gone")
}

func TestWakeTimerFollowsEarliestTime(t *testing.T) {
	w := foldtest.New(t)
	in := func(d time.Duration) *event.RunRequested {
		return &event.RunRequested{CommandID: w.ID(), At: event.At(w.Now.Add(d)), Run: event.RunSpec{All: true}}
	}
	due := func() time.Duration { return w.Timer(event.TimerWake).FireAt.Sub(event.At(w.Now)) }
	w.MustFold(in(time.Hour))
	require.Equal(t, time.Hour, due())
	w.MustFold(in(2 * time.Hour))
	require.Equal(t, time.Hour, due(), "a later time leaves the timer")
	w.MustFold(in(time.Minute))
	require.Equal(t, time.Minute, due(), "an earlier time replaces it")
	require.EqualValues(t, 1, w.Timer(event.TimerWake).Generation)

	w.Pass(time.Minute)
	w.MustFold(w.Fire(w.Timer(event.TimerWake)))
	require.Equal(t, 59*time.Minute, due())
	w.MustFold(in(0))
	require.Equal(t, time.Second, due(), "no hot loop")
}

// Calls that are slightly late must not delay work that is due in the next second.
func TestWakeTimerFiresInConsecutiveSeconds(t *testing.T) {
	w := foldtest.New(t)
	start := w.Now.Truncate(time.Second)
	at := func(d time.Duration) event.Time { return event.At(start.Add(d)) }
	for _, after := range []time.Duration{5 * time.Second, 6 * time.Second, 7 * time.Second} {
		w.MustFold(&event.RunRequested{CommandID: w.ID(), At: at(after), Run: event.RunSpec{All: true}})
	}
	w.Pass(5*time.Second + 3*time.Millisecond)
	w.MustFold(w.Fire(w.Timer(event.TimerWake)))
	require.Equal(t, at(6*time.Second), w.Timer(event.TimerWake).FireAt)
}

func TestI32IdleSchedulesNeedNothing(t *testing.T) {
	w := foldtest.New(t)
	deployed := &event.ProjectDeployed{DeployID: w.ID(), Release: hash("a"), Kind: event.DeployRelease, Schedules: "0123456789abcdef"}
	w.MustFold(deployed)
	const schedules = 10_000
	for part := range schedules / event.MaxSchedules {
		p := &event.SchedulesDefined{DeployID: deployed.DeployID, Part: int32(part), Last: part == schedules/event.MaxSchedules-1}
		for i := range event.MaxSchedules {
			p.Set = append(p.Set, event.Schedule{Name: name(part, i), EverySec: 60, Run: event.RunSpec{All: true}, Paused: true})
		}
		fold.Apply(w.State, w.Group(p))
	}
	require.Equal(t, schedules, w.State.Schedules.Len())
	for row := range w.State.Timers.All {
		require.NotEqual(t, event.TimerWake, row.TimerType, "a paused schedule has no timer")
	}
	require.True(t, control.Automate(w.State, 1).Empty())
	_, needed := control.Attention(w.State, event.At(w.Now))
	require.False(t, needed, "no wakeup either")
}

func name(part, i int) string { return fmt.Sprintf("s-%d-%d", part, i) }

// TestI26I27RandomSchedules folds random events about a schedule in a random order. The events come from clocks,
// automators and people, and from workers that crash, repeat their work and lag. After each of these actions, the test
// checks the ticks, the runs and the cursor of the schedule.
func TestI26I27RandomSchedules(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		policy := rapid.SampledFrom(event.Overlaps()).Draw(r, "policy")
		w := &ticking{World: foldtest.New(r), spec: event.Schedule{
			Name: "clock", EverySec: 60, Run: event.RunSpec{All: true}, Overlap: policy,
			CatchUp: rapid.SampledFrom([]string{"", event.CatchUpLatest}).Draw(r, "catch up"),
		}}
		w.chaos(r, policy)
	})
}

// chaos performs 60 random actions.
func (w *ticking) chaos(r *rapid.T, policy string) {
	d := &event.ProjectDeployed{DeployID: w.ID(), Release: hash("a"), Kind: event.DeployRelease, Schedules: "0123456789abcdef"}
	w.MustFold(d)
	w.define()
	var answers []*event.CalendarAdvanced
	var plans [][]event.Payload
	instants := map[event.Time]string{}
	for range 60 {
		before := *w.row()
		switch rapid.IntRange(0, 11).Draw(r, "what") {
		case 0, 1, 2: // the queue calls the timer, once or twice, late or early
			if timer := w.State.Wake(); timer != nil {
				w.Pass(time.Duration(rapid.SampledFrom([]int{0, 10, 60, 90, 3600}).Draw(r, "late")) * time.Second)
				w.Now = maxTime(w.Now, timer.FireAt.Time().Add(-time.Duration(rapid.IntRange(0, 1).Draw(r, "early"))*time.Second))
				w.Fold(w.Fire(timer))
			}
		case 3: // an automator reads the state
			if w.row().WantedAt != 0 {
				answers = append(answers, w.answer())
			}
			w.State.PendingRequests(func(q *state.RunRequest) bool {
				plans = append(plans, planOf(w.World, q))
				return true
			})
		case 4, 5: // an automator's answer is delivered, perhaps again
			if len(answers) > 0 {
				w.Fold(answers[rapid.IntRange(0, len(answers)-1).Draw(r, "answer")])
			}
		case 6, 7: // a plan is delivered, perhaps for a second time
			if len(plans) > 0 {
				w.Fold(plans[rapid.IntRange(0, len(plans)-1).Draw(r, "plan")]...)
			}
		case 8:
			w.endSome(r)
		case 9:
			verb := rapid.SampledFrom([]string{event.VerbPause, event.VerbResume, event.VerbResume, event.VerbTrigger}).Draw(r, "verb")
			w.Fold(&event.AutomationCommand{CommandID: w.ID(), Target: event.TargetSchedule, Name: "clock", Verb: verb, CatchUp: rapid.Bool().Draw(r, "catch up")})
		case 10:
			w.State.PendingRequests(func(q *state.RunRequest) bool {
				if rapid.Bool().Draw(r, "cancel") {
					w.Fold(cancelled(w.World, q))
				} else {
					w.Fold(&event.RequestRefused{
						RequestID: q.RequestID, Generation: q.Generation, Release: w.State.Release(),
						Error: event.Error{Code: "X", Retryable: rapid.Bool().Draw(r, "passes")},
					})
				}
				return false
			})
		case 11:
			w.spec.WindowSec++
			w.Fold(&event.ProjectDeployed{DeployID: w.ID(), Release: hash("b"), Force: true, Kind: event.DeployRelease, Schedules: event.HashSchedules([]event.Schedule{w.spec})})
			w.define()
		}
		w.checkTicks(r, policy, instants)
		w.checkCursor(r, &before)
	}
}

// checkCursor checks that the cursor of the schedule moves only forward and has reached every tick, and that a paused
// schedule does not wait for an instant.
func (w *ticking) checkCursor(r *rapid.T, before *state.Schedule) {
	row := w.row()
	if row.Cursor < before.Cursor {
		r.Fatalf("the cursor moved back from %s to %s", before.Cursor, row.Cursor)
	}
	if row.Paused && (row.Next != 0 || row.NextAt != 0 || row.WantedAt != 0) {
		r.Fatalf("the schedule is paused, and waits for %s, %s and %s", row.Next, row.NextAt, row.WantedAt)
	}
	for tick := range w.State.Ticks.All {
		if tick.Kind != state.TickManual && tick.Logical > row.Cursor {
			r.Fatalf("the tick %s is decided, but the cursor is %s", tick.Logical, row.Cursor)
		}
	}
}

// checkTicks checks that each instant has only one tick, and each tick its own run. It also checks that runs overlap
// only if the policy allows it, and that a tick waits only while a run or request of the schedule is active.
func (w *ticking) checkTicks(r *rapid.T, policy string, instants map[event.Time]string) {
	runs := map[string]bool{}
	for tick := range w.State.Ticks.All {
		if tick.Kind == state.TickManual {
			continue
		}
		if id := instants[tick.Logical]; id != "" && id != tick.TickID {
			r.Fatalf("the instant %s has two ticks", tick.Logical)
		}
		instants[tick.Logical] = tick.TickID
		if tick.Outcome == state.TickStarted && (runs[tick.RunID] || w.State.Runs.Get(tick.RunID) == nil) {
			r.Fatalf("the run %s of the tick %s is another one's, or does not exist", tick.RunID, tick.Logical)
		}
		runs[tick.RunID] = true
	}
	live, requests := w.State.ActiveOf("clock")
	if policy != event.OverlapAllowAll && len(live)+len(requests) > 1 {
		r.Fatalf("%s: %v and %v are active at once", policy, live, requests)
	}
	if first, n := w.State.BufferedOf("clock"); n > 0 && len(live)+len(requests) == 0 && w.row().Live() {
		r.Fatalf("%s: tick %s waits for nothing", policy, first.RequestID)
	}
	if row := w.row(); row.Live() && row.Next == 0 && row.WantedAt == 0 && row.Error == "" {
		r.Fatalf("nothing moves the schedule any more")
	}
}

// endSome ends the task of a live run.
func (w *ticking) endSome(r *rapid.T) {
	live, _ := w.State.ActiveOf("clock")
	if len(live) > 0 {
		w.Fold(w.Finished(live[0], "a", 1, rapid.SampledFrom([]event.Outcome{event.Succeeded, event.Cancelled}).Draw(r, "outcome")))
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
