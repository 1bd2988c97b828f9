package fold_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/servo-orchestration/servo/internal/foldtest"
	"github.com/servo-orchestration/servo/pkg/event"
	"github.com/servo-orchestration/servo/pkg/ids"
	"github.com/servo-orchestration/servo/pkg/state"
)

// ticking is a world with an automator, workers, and one schedule that ticks at every full minute.
type ticking struct {
	*foldtest.World
	t    *testing.T
	spec event.Schedule
	runs []string // in the order of their starts
}

const minute = time.Minute

func newTicking(t *testing.T, spec event.Schedule) *ticking {
	t.Helper()
	w := &ticking{World: foldtest.New(t), t: t, spec: spec}
	w.Now = time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	w.spec.Name, w.spec.EverySec, w.spec.Run = "clock", 60, event.RunSpec{All: true}
	w.deploy()
	w.automate()
	return w
}

// deploy deploys a release with the schedule, and defines the schedule.
func (w *ticking) deploy() {
	w.t.Helper()
	p := &event.ProjectDeployed{
		DeployID: w.ID(), Release: strings.Repeat("a", 64), Force: true, Kind: event.DeployRelease,
		Schedules: event.HashSchedules([]event.Schedule{w.spec}),
	}
	w.MustFold(p)
	w.define()
}

func (w *ticking) define() {
	d := w.State.Deployment()
	w.Fold(&event.SchedulesDefined{DeployID: d.DeployID, Last: true, Set: []event.Schedule{w.spec}})
}

func (w *ticking) row() *state.Schedule { return w.State.Schedules.Get("clock") }

// answer returns the event in which an automator lists the instants that the schedule is waiting for.
func (w *ticking) answer() *event.CalendarAdvanced {
	row := w.row()
	item := event.CalendarItem{Schedule: "clock", Version: row.Version, After: row.Cursor, Through: row.Cursor, Calendar: "2025c"}
	next := event.At(row.Cursor.Time().Truncate(minute).Add(minute))
	for ; next <= row.WantedAt; next = next.Add(minute) {
		item.Missed, item.Through = append(item.Missed, next), next
	}
	if n := len(item.Missed); n > event.MaxInstants {
		item.Dropped = int64(n - event.MaxInstants)
		item.Missed = item.Missed[n-event.MaxInstants:]
	}
	item.Next, item.NextAt = next, next
	return &event.CalendarAdvanced{Items: []event.CalendarItem{item}}
}

// automate does the work of an automator.
func (w *ticking) automate() {
	w.t.Helper()
	for {
		switch {
		case w.row() != nil && w.row().WantedAt != 0:
			w.MustFold(w.answer())
		case w.State.PendingCount() > 0:
			w.State.PendingRequests(func(r *state.RunRequest) bool {
				w.start(r)
				return false
			})
		default:
			return
		}
	}
}

// start starts the run of a request.
func (w *ticking) start(r *state.RunRequest) {
	w.t.Helper()
	w.MustFold(w.Triggered(&event.RunTriggered{
		RunID: r.RunID, RequestID: r.RequestID, Trigger: event.Trigger{Type: "cron", ScheduleID: r.ScheduleID, TickID: r.TickID},
	}, foldtest.Task("a"))...)
	w.MustFold(w.Started(r.RunID, "a", 1))
	w.runs = append(w.runs, r.RunID)
}

// minutes lets n minutes pass, and fires the wake timer on time. After each minute, it calls the function end, which
// may return the index of a run that ends now.
func (w *ticking) minutes(n int, end func(now int) (run int, ends bool)) {
	w.t.Helper()
	began := w.Now
	for i := 1; i <= n; i++ {
		w.Now = began.Add(time.Duration(i) * minute)
		if timer := w.State.Wake(); timer != nil && timer.State == state.TimerScheduled && timer.FireAt <= event.At(w.Now) {
			now := w.Now
			w.Now = timer.FireAt.Time()
			w.MustFold(w.Fire(timer))
			w.automate()
			w.Now = now
		}
		if run, ends := end(i); ends && run < len(w.runs) {
			w.finish(w.runs[run], event.Succeeded)
			w.automate()
		}
	}
}

// finish ends the task of a run.
func (w *ticking) finish(run string, outcome event.Outcome) {
	w.t.Helper()
	w.Fold(w.Finished(run, "a", 1, outcome))
}

// diagram draws each tick, and when its run began and ended. A column is half a minute.
func (w *ticking) diagram(from time.Time, columns int) string {
	var b strings.Builder
	for tick := range w.State.Ticks.All {
		line := []rune(strings.Repeat(" ", columns))
		column := func(t event.Time) int { return int(t.Time().Sub(from) / (30 * time.Second)) }
		if run := w.State.Runs.Get(tick.RunID); run != nil {
			last := columns - 1
			if run.CompletedAt != 0 {
				last = min(last, column(run.CompletedAt))
			}
			for i := column(tick.DecidedAt); i <= last; i++ {
				line[i] = '·'
				if i >= column(run.CreatedAt) {
					line[i] = '━'
				}
			}
		}
		if i := column(tick.DecidedAt); line[i] == ' ' {
			line[i] = '×'
		}
		fmt.Fprintf(&b, "%s %s%s\n", tick.Logical.Time().Format("15:04"), strings.TrimRight(string(line), " "), note(tick, w.State.Runs.Get(tick.RunID)))
	}
	return b.String()
}

func note(t *state.Tick, run *state.Run) string {
	switch {
	case run != nil:
		return " " + string(run.State)
	case t.Outcome == state.TickStarted:
		return ""
	}
	return " " + string(t.Outcome)
}

// Each run takes three and a half minutes, and the schedule ticks every minute. Each line shows how long a tick waits
// (·) and how long its run is live (━). A tick without a run is shown as ×. A column is half a minute.
func TestI27OverlapPoliciesAsDiagrams(t *testing.T) {
	for policy, want := range map[string]string{
		event.OverlapSkip: `
03:01 ━━━━━━━━ SUCCEEDED
03:02   × SKIPPED_OVERLAP
03:03     × SKIPPED_OVERLAP
03:04       × SKIPPED_OVERLAP
03:05         ━━━━━ RUNNING
03:06           × SKIPPED_OVERLAP
`, event.OverlapBufferOne: `
03:01 ━━━━━━━━ SUCCEEDED
03:02   ·····━━━━━━ RUNNING
03:03     × SKIPPED_OVERLAP
03:04       × SKIPPED_OVERLAP
03:05         × BUFFERED
03:06           × SKIPPED_OVERLAP
`, event.OverlapBufferAll: `
03:01 ━━━━━━━━ SUCCEEDED
03:02   ·····━━━━━━ RUNNING
03:03     × BUFFERED
03:04       × BUFFERED
03:05         × BUFFERED
03:06           × BUFFERED
`, event.OverlapCancelOther: `
03:01 ━━━━━━━━ CANCELLED
03:02   × REPLACED
03:03     × REPLACED
03:04       ·━━━━━━ CANCELLING
03:05         × REPLACED
03:06           × BUFFERED
`, event.OverlapTerminateOther: `
03:01 ━━━ CANCELLED
03:02   ━━━ CANCELLED
03:03     ━━━ CANCELLED
03:04       ━━━ CANCELLED
03:05         ━━━ CANCELLED
03:06           ━━━ RUNNING
`, event.OverlapAllowAll: `
03:01 ━━━━━━━━ SUCCEEDED
03:02   ━━━━━━━━━━━ RUNNING
03:03     ━━━━━━━━━ RUNNING
03:04       ━━━━━━━ RUNNING
03:05         ━━━━━ RUNNING
03:06           ━━━ RUNNING
`,
	} {
		t.Run(policy, func(t *testing.T) {
			w := newTicking(t, event.Schedule{Overlap: policy})
			from := w.Now.Add(30 * time.Second)
			w.minutes(6, func(now int) (int, bool) { return 0, now == 4 }) // half a minute after the tick at 03:04
			require.Equal(t, strings.TrimPrefix(want, "\n"), w.diagram(from, 13))
		})
	}
}

// A laptop sleeps for three days. Its wake timer fires when it wakes up.
func TestLaptopSleepsForThreeDays(t *testing.T) {
	for name, c := range map[string]struct {
		spec          event.Schedule
		ran           int // number of runs after the sleep
		dropped       int64
		first, newest string
	}{
		"none":                 {event.Schedule{CatchUp: event.CatchUpNone, Overlap: event.OverlapAllowAll}, 15, 4305, "2026-01-05 02:46", "2026-01-05 03:00"},
		"latest":               {event.Schedule{CatchUp: event.CatchUpLatest}, 1, 4319, "2026-01-05 03:00", "2026-01-05 03:00"},
		"latest in time":       {event.Schedule{CatchUp: event.CatchUpLatest, WindowSec: 10}, 0, 4320, "", ""},
		"all of the last hour": {event.Schedule{CatchUp: event.CatchUpAll, Overlap: event.OverlapBufferAll, WindowSec: 3600}, 60, 4260, "2026-01-05 02:01", "2026-01-05 03:00"},
		"all, at once":         {event.Schedule{CatchUp: event.CatchUpAll, Overlap: event.OverlapAllowAll}, 100, 4220, "2026-01-05 01:21", "2026-01-05 03:00"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTicking(t, c.spec)
			w.Pass(72 * time.Hour)
			w.MustFold(w.Fire(w.Timer(event.TimerWake)))
			w.automate()
			for i := 0; i < len(w.runs); i++ { // runs of buffered ticks run one after the other
				w.finish(w.runs[i], event.Succeeded)
				w.automate()
			}
			require.Len(t, w.runs, c.ran)
			var instants []string
			for tick := range w.State.Ticks.All {
				require.Equal(t, []any{state.TickCaughtUp, state.TickStarted}, []any{tick.Kind, tick.Outcome})
				instants = append(instants, tick.Logical.Time().Format("2006-01-02 15:04"))
			}
			if c.ran > 0 {
				require.Equal(t, []string{c.first, c.newest}, []string{instants[0], instants[len(instants)-1]})
			}
			require.Equal(t, c.dropped, w.row().TicksDropped)
			require.Equal(t, "03:01", w.row().Next.Time().Format("15:04"))
		})
	}
}

// A SchedulesDefined event lists only the differences from the state that its writer saw, and a rebuild from the bare
// ledger may not reproduce this state.
func TestDefinitionInBareRebuildStaysPending(t *testing.T) {
	w := newTicking(t, event.Schedule{})
	w.spec.EverySec = 120
	w.MustFold(&event.ProjectDeployed{
		DeployID: w.ID(), Release: strings.Repeat("b", 64), Force: true, Kind: event.DeployRelease,
		Schedules: event.HashSchedules([]event.Schedule{w.spec}),
	})
	d := w.State.Deployment()
	g := w.Group(&event.SchedulesDefined{DeployID: d.DeployID, Last: true, Set: []event.Schedule{w.spec}})
	g.Bare = true
	require.Equal(t, state.Folded, w.Apply(g).Row.Outcome)
	require.Equal(t, w.spec.DefinitionVersion(), w.row().Version)
	require.NotNil(t, w.State.SchedulesPending())
	w.MustFold(&event.SchedulesDefined{DeployID: d.DeployID, Last: true})
	require.Nil(t, w.State.SchedulesPending())
}

func TestI26AdoptedTickMovesCursor(t *testing.T) {
	w := newTicking(t, event.Schedule{})
	instant := w.row().Next
	tick := ids.TickID(foldtest.Domain, "clock", instant.Time(), "", instant.Time())
	request := fmt.Sprintf("tick:clock:%d", instant)
	w.Pass(minute)
	g := w.Group(w.Triggered(&event.RunTriggered{
		RunID: ids.RequestedRunID(foldtest.Domain, request, w.Now), RequestID: request,
		Trigger: event.Trigger{Type: "cron", ScheduleID: "clock", TickID: tick},
	}, foldtest.Task("a"))...)
	g.Bare = true
	require.Equal(t, state.Folded, w.Apply(g).Row.Outcome)
	require.Equal(t, instant, w.State.Ticks.Get(tick).Logical)
	require.Equal(t, instant, w.row().Cursor)
	require.Zero(t, w.row().Next)
	require.Equal(t, instant, w.row().WantedAt)
}

func TestAdoptedManualTickIsNoInstant(t *testing.T) {
	w := newTicking(t, event.Schedule{})
	cursor, tick := w.row().Cursor, "01KDYAK34823TSEY4GB2ZHVHBQ"
	g := w.Group(w.Triggered(&event.RunTriggered{
		RunID: ids.RequestedRunID(foldtest.Domain, "manual:"+tick, w.Now), RequestID: "manual:" + tick,
		Trigger: event.Trigger{Type: "cron", ScheduleID: "clock", TickID: tick},
	}, foldtest.Task("a"))...)
	g.Bare = true
	require.Equal(t, state.Folded, w.Apply(g).Row.Outcome)
	require.Equal(t, state.TickManual, w.State.Ticks.Get(tick).Kind)
	require.Equal(t, cursor, w.row().Cursor)
}
